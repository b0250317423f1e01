#pragma once
// What all stages that sparsify share. A sparsifier hands a part of p = gradient + residual to the system
// behind it, as rows, and keeps the rest in the residual.
//
//   p --select--> rows --inner system--> mean
//    \-> residual: p outside the selection, 0 inside, plus what the inner system leaves when it has feedback
//
// At the start gradients turn quickly, so a ramp lets the share begin high and fall: a little in each step,
// or by quarters, as in Y. Lin et al., "Deep Gradient Compression", ICLR 2018, section 3.3. It is an option
// of each sparsifier and no stage of its own: only what selects knows what a share is, and its last value
// stands beside it already. Within `warm_up` its steps count from the end of the warm-up on, as all do.

#include <vector>

#include "stages/forwarding.h"
#include "thinwire/registry.h"

namespace thinwire {

/// How a share of units falls at the start.
class Ramp {
 public:
  /// Smooth: from * units at step 0, and each step the same factor below the one before it. A last share that
  /// is the larger one is taken at once. Reads "ramp_from" and "ramp_steps".
  explicit Ramp(const Options& options);
  /// Those two, for SystemInfo::options.
  static std::vector<OptionInfo> options();
  /// By quarters: 25 %, 6.25 % and so on, each in an equal part of `steps`, until the next quarter would be
  /// below `ratio`, the last share.
  static Ramp by_quarters(double ratio, std::uint64_t steps);

  /// The units of a step, 1 to `units`; `last` from the ramp's end on.
  std::size_t units_at(std::uint64_t step, std::size_t last, std::size_t units) const;

 private:
  enum class Form : std::uint8_t { smooth, quarters };
  Ramp(Form form, double from, std::uint64_t steps) : form_(form), from_(from), steps_(steps) {}

  Form form_;
  double from_;          // the first step's share
  std::uint64_t steps_;  // from which step on the share is the last one; 0: at once
  int quarters_ = 0;     // above the last share; by quarters alone
};

class Sparsifier : public Forwarding {
 public:
  /// A unit of selection is `width` elements; of a bucket's last unit the missing ones count as 0.
  Sparsifier(Inner inner, std::size_t width)
      : Forwarding(std::move(inner.synchronizer)), inner_feedback_(inner.feedback), width_(width) {}

  /// Least value of a ratio option.
  static constexpr double kSmallestRatio = 1e-9;
  /// ratio * units, rounded, 1 to `units`.
  static std::size_t share_of(double ratio, std::size_t units);

  void synchronize(BucketId bucket, Span<float> gradient, Span<float> residual, Step& step) final;
  std::uint64_t payload_bytes(const Workload& workload) const final;

 protected:
  /// Units to send out of `units` (at least one) in a step: 1 to `units`.
  virtual std::size_t wanted(std::size_t units, std::uint64_t step) const = 0;

  /// About `wanted` units of p and their values, [size * width()], in the step's workspace: ascending, only
  /// units that hold something. Where p has inf or NaN, one that holds such a value must be among them: so
  /// the inner system tells every rank.
  virtual RowSparse select(BucketId bucket, Span<const float> gradient, Span<const float> residual,
                           std::size_t wanted, Step& step) = 0;

  std::size_t width() const { return width_; }

 private:
  void keep_rest(const RowSparse& own, Span<const float> left, Span<const float> gradient,
                 Span<float> residual, Step& step) const;
  void write_mean(const RowSparse& mean, Span<float> gradient, Step& step) const;
  Delivered delivered(const RowSparse& own, std::size_t elements, Step& step) const;

  bool inner_feedback_;
  std::size_t width_;
};

/// What the infos of all of them have in common.
SystemInfo sparsifier_info();

}  // namespace thinwire
