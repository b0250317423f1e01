// Clipping that knows of compression: each worker's own gradient is clipped before it is compressed. What a
// lossy system delivers has another norm than the exact mean, and what waited comes in lumps: a mean that is
// clipped after it loses of both for good. Clipped before, whatever is taken into the residual is delivered.
//
//   g --min(1, norm / |g of all buckets|)--> inner system --> mean, residual
//
// - A bucket travels before the others are there, so the norm of the whole gradient is estimated. Each
//   parameter's share of it is known from earlier steps, as a moving average of |g_i|^2 / |g|^2. The
//   estimate is the norm of this session's buckets so far in the step, divided by the root of their shares.
// - With one bucket the estimate is the norm, as `clip_grad_norm_` has it. In its first step a bucket takes
//   itself for the whole gradient.
// - Ranks scale by factors of their own. So nothing is agreed about, and no message is sent.
// - What is cut off is not delivered, on purpose: the contract's equation holds for the clipped gradient.
// - A rank's gradient has the noise of its own examples. Where that is most of it, its norm is sqrt(W) times
//   the mean's: so the limit for the mean, times sqrt(W), is the one to give.
// - Under a loss scale the limit is norm * Step::loss_scale.
//
// Source: for the clipping, R. Pascanu, T. Mikolov, Y. Bengio, "On the difficulty of training recurrent
// neural networks", ICML 2013, algorithm 1; for its place before the residual, Y. Lin et al., "Deep Gradient
// Compression", ICLR 2018, section 3.3.
//
// Bytes per rank: those of the inner system.

#include "stages/clip.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <utility>
#include <vector>

#include "kernels/codes/quantize.h"
#include "kernels/dense/dense.h"
#include "stages/forwarding.h"
#include "stages/stages.h"

namespace thinwire {
namespace {

/// Of a share, what one step makes of it.
constexpr float kNewest = 0.1f;
/// What buckets count for at least. One of a smaller share cannot make the norm large; and a parameter that
/// had no gradient for long does not have the others cut to nothing when it has one again.
constexpr double kLeastShare = 0.01;

class Clip final : public Forwarding {
 public:
  Clip(double norm, ClipLimit limit, std::unique_ptr<Synchronizer> inner)
      : Forwarding(std::move(inner)), norm_(norm), limit_(limit) {}

  bool takes_rows() const override { return inner().takes_rows(); }

  void synchronize(BucketId bucket, Span<float> gradient, Span<float> residual, Step& step) override {
    const double factor = factor_for(bucket, gradient, step);
    if (factor < 1) scale(step.executor, gradient, static_cast<float>(factor));
    inner().synchronize(bucket, gradient, residual, step);
  }

  RowSparse synchronize_rows(BucketId bucket, const RowSparse& gradient, Span<float> residual,
                             Step& step) override {
    const double factor = factor_for(bucket, gradient.values, step);
    if (factor == 1) return inner().synchronize_rows(bucket, gradient, residual, step);
    RowSparse clipped = gradient;
    const auto values = step.scratch.take<float>(gradient.values.size());
    copy<float>(step.executor, gradient.values, values);
    scale(step.executor, values, static_cast<float>(factor));
    clipped.values = values;
    return inner().synchronize_rows(bucket, clipped, residual, step);
  }

  double step_squares() const override {
    double sum = inner().step_squares();
    for (const auto& [bucket, own] : buckets_) sum += own.squares_so_far();
    return sum;
  }

  void take_squares(double whole) override {
    for (auto& [bucket, own] : buckets_) {
      if (own.came && whole > 0 && std::isfinite(whole)) renew(own, whole);
      own.came = false;
    }
    inner().take_squares(whole);
  }

  void undo_step(BucketId bucket) override {
    const auto found = buckets_.find(bucket);
    if (found != buckets_.end()) found->second.came = false;
    Forwarding::undo_step(bucket);
  }
  using Forwarding::undo_step;

  void save(BucketWriter& writer) const override {
    for (const auto& [bucket, own] : buckets_) {
      writer.values(kClipShare, bucket, Span<const float>(own.shares));
      if (own.came) writer.values(kClipSquares, bucket, Span<const float>(own.squares));
    }
    Forwarding::save(writer);
  }

  void load(const BucketReader& reader) override {
    std::map<BucketId, Own> all;
    for (BucketId bucket = 0; bucket < reader.buckets(); ++bucket) {
      Own own;
      const bool has_shares = read(kClipShare, bucket, reader, 1, own.shares);
      own.came = read(kClipSquares, bucket, reader, std::numeric_limits<float>::max(), own.squares);
      if (!has_shares) own.shares.clear();
      if (has_shares || own.came) all[bucket] = std::move(own);
    }
    buckets_ = std::move(all);
    index_.reset();
    Forwarding::load(reader);
  }

 private:
  struct Own {
    std::vector<float> shares{};   // of each parameter; empty: not known yet
    std::vector<float> squares{};  // of each parameter in this step
    bool came = false;             // in this step

    double squares_so_far() const { return came ? std::accumulate(squares.begin(), squares.end(), 0.0) : 0; }
  };

  /// What the gradient is to be multiplied by. 1 where it is not finite, which is for the inner system to
  /// report.
  double factor_for(BucketId bucket, Span<const float> values, Step& step) {
    if (index_ && *index_ != step.index) {
      for (auto& [one, own] : buckets_) own.came = false;  // in a step that did not count
    }
    index_ = step.index;
    measure(values, buckets_[bucket], step);
    double seen = 0;
    double share = 0;
    for (const auto& [one, own] : buckets_) {
      if (!own.came) continue;
      seen += own.squares_so_far();
      // One that is not known yet takes itself for the whole.
      share += own.shares.empty() ? 1 : std::accumulate(own.shares.begin(), own.shares.end(), 0.0);
    }
    if (!std::isfinite(seen)) return 1;
    const double whole = std::sqrt(seen / std::clamp(share, kLeastShare, 1.0));
    const double ranks = limit_ == ClipLimit::norm ? 1 : step.communicator.size();
    const double limit = norm_ * step.loss_scale / std::sqrt(ranks);
    return whole > limit ? limit / whole : 1;
  }

  /// Of each parameter. A table of rows is one.
  static void measure(Span<const float> values, Own& own, Step& step) {
    const std::size_t parameters = std::max<std::size_t>(1, step.parameter_ends.size());
    own.squares.resize(parameters);
    own.came = true;
    if (parameters == 1) {
      const double sum = values.empty() ? 0 : sum_of_squares(step.executor, values, {});
      own.squares[0] = static_cast<float>(sum);
      return;
    }
    const auto largest = step.workspace.take<float>(parameters);
    const auto squares = step.workspace.take<double>(parameters);
    measure_ranges(step.executor, step.parameter_ends, values, {}, largest, squares);
    std::ranges::transform(squares, own.squares.begin(), [](double one) { return static_cast<float>(one); });
  }

  static void renew(Own& own, double whole) {
    const bool is_new = own.shares.empty();
    own.shares.resize(own.squares.size());
    for (std::size_t i = 0; i < own.squares.size(); ++i) {
      const auto share = static_cast<float>(std::min(static_cast<double>(own.squares[i]) / whole, 1.0));
      own.shares[i] += (is_new ? 1 : kNewest) * (share - own.shares[i]);
    }
  }

  /// Whether the bucket has any; what it lacks is 0. values: one per parameter.
  static bool read(const StateKind& kind, BucketId bucket, const BucketReader& reader, float most,
                   std::vector<float>& values) {
    values.assign(reader.parameters(bucket), 0);
    bool any = false;
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (!reader.array(kind, bucket, i, Span<float>(&values[i], 1))) continue;
      if (!(values[i] >= 0 && values[i] <= most)) {
        throw std::runtime_error("the state of clip for parameter '" + reader.parameter(bucket, i).name +
                                 "' has a number out of range: it was not written by clip");
      }
      any = true;
    }
    return any;
  }

  double norm_;
  ClipLimit limit_;
  std::map<BucketId, Own> buckets_;
  std::optional<std::uint64_t> index_;  // of this step; none after load(), which may be within one
};

}  // namespace

std::unique_ptr<Synchronizer> clip_gradient(double norm, ClipLimit limit,
                                            std::unique_ptr<Synchronizer> inner) {
  return std::make_unique<Clip>(norm, limit, std::move(inner));
}

SystemInfo clip_info() {
  SystemInfo info;
  info.name = "clip";
  info.summary = "each worker's own gradient is clipped to a norm before it is compressed";
  info.paper = "Pascanu et al., ICML 2013, algorithm 1; Lin et al., Deep Gradient Compression, section 3.3";
  info.formula = "that of the system behind it";
  info.stage = true;
  info.forgets = true;
  info.clips = true;
  info.state = {kClipShare, kClipSquares};
  info.undoes_steps = true;
  info.turns_residual = true;
  info.reduce_scatters = true;
  info.incomparable = [](const Options&) { return "put clip in front"; };
  info.options = {{"norm", "1", "the largest l2 norm of this rank's gradient over all parameters, above 0"}};
  info.make = [](const Options& options, Inner inner) -> std::unique_ptr<Synchronizer> {
    return clip_gradient(options.real("norm", 1e-30, 1e30), ClipLimit::norm, std::move(inner.synchronizer));
  };
  return info;
}

}  // namespace thinwire
