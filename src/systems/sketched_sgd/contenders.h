#pragma once
// Top-k of a sum over ranks: what systems share whose ranks all deliver the same elements. They differ in how
// they find them: global_top_k sums buckets, Sketched-SGD sums sketches.

#include <memory>
#include <vector>

#include "kernels/selection/select.h"
#include "thinwire/registry.h"

namespace thinwire {

/// Options that such systems have in common.
struct GlobalTopKSettings {
  std::size_t k = 0;  ///< Elements to deliver; 0: by ratio.
  double ratio = 0;   ///< Share of the contending elements to deliver.
  std::size_t dense_below = 0;

  /// k or ratio * contending, rounded; 1 to `contending`, so a bucket of k or fewer is sent in full.
  std::size_t wanted(std::size_t contending) const;
};

/// k, ratio, dense_below, momentum and lr_after, in this order.
std::vector<OptionInfo> global_top_k_options();
GlobalTopKSettings read_global_top_k(const Options& options);

/// SystemInfo::rate_inside.
bool has_rate_inside(const Options& options);
/// SystemInfo::incomparable, by lr_after.
std::string units_of_global_top_k(const Options& options);

/// What `momentum` and `lr_after` put around the system: momentum correction next to it, the learning rate
/// outside.
std::unique_ptr<Synchronizer> with_momentum_and_rate(const Options& options,
                                                     std::unique_ptr<Synchronizer> system);

/// Which of a bucket's elements contend for delivery: those of parameters with at least `dense_below`
/// elements. The others, biases and norms, are always sent.
class Contenders {
 public:
  Contenders(std::size_t elements, Span<const std::size_t> parameter_ends, std::size_t dense_below);

  std::size_t contending() const { return contending_; }
  std::size_t always_sent() const { return elements_ - contending_; }

  /// Copies p = gradient + residual: contending elements one after the other to `contending`, the others to
  /// `always_sent`. residual may be empty.
  void pack(Executor& executor, Span<const float> gradient, Span<const float> residual,
            Span<float> contending, Span<float> always_sent) const;

  /// The end of a step that all ranks found finite: chosen: indices among the contending elements and sums
  /// over ranks there; always_sums: [always_sent()]. gradient becomes the mean, residual p with delivered
  /// elements 0; fills in step.delivered and report.density_out.
  void deliver(const Selection& chosen, Span<const float> always_sums, Span<float> gradient,
               Span<float> residual, Step& step) const;

 private:
  /// body(begin, end, always_sent) for the ranges between parameter_ends, ascending.
  template <class Body>
  void for_each_range(Body body) const;

  std::size_t elements_;
  Span<const std::size_t> parameter_ends_;
  std::size_t dense_below_;
  std::size_t contending_ = 0;
};

/// The k sums largest in magnitude that are not 0, or all of them when there are no more than k. Indices are
/// positions in `sums`. In the workspace.
Selection largest_sums(Executor& executor, Workspace& workspace, Span<const float> sums, std::size_t k);

/// One step of true top-k: an all-reduce of p, then the largest sums. Bytes: R * 4 per element, R = 2(W-1)/W.
void synchronize_global_top_k(const Contenders& contenders, std::size_t k, Span<float> gradient,
                              Span<float> residual, Step& step);

}  // namespace thinwire
