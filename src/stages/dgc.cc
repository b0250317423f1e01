// Deep Gradient Compression: local top-k with momentum correction.
//
// Source: Y. Lin, S. Han, H. Mao, Y. Wang, W. Dally, "Deep Gradient Compression", ICLR 2018.
//
//   g --clip--> u = m u + g --> p = u + residual --threshold of a sample--> selection --inner system--> mean
//                \-- u = 0 where delivered (momentum factor masking)
//
// - Clipping (section 3.3): this rank's gradient is scaled down to an l2 norm of clip / sqrt(W), over all
//   buckets as clip.cc has it.
// - Threshold (section 5): the k-th largest of a random sample, scaled; where more than k elements pass, the
//   largest k of those that passed are selected exactly. Fewer may pass: the others wait for the next step.
// - Warm-up (section 3.3): 25 %, 6.25 %, ... of the elements in equal parts of the first warmup_steps, until
//   the next quarter would be below `ratio`.

#include <cmath>

#include "core/philox.h"
#include "kernels/dense/dense.h"
#include "kernels/selection/select.h"
#include "stages/clip.h"
#include "stages/momentum.h"
#include "stages/sparsifier.h"
#include "stages/stages.h"

namespace thinwire {
namespace {

class SampledTopK final : public Sparsifier {
 public:
  SampledTopK(Inner inner, double ratio, double sample, std::uint64_t warmup_steps)
      : Sparsifier(std::move(inner), 1), ratio_(ratio), sample_(sample), warmup_steps_(warmup_steps) {
    double stage = 0.25;
    while (stage > ratio) {
      stage /= 4;
      ++warmup_stages_;
    }
  }

 protected:
  std::size_t wanted(std::size_t units, std::uint64_t step) const override {
    double ratio = ratio_;
    if (step < warmup_steps_) {
      const auto progress = static_cast<double>(step) / static_cast<double>(warmup_steps_);
      const double stage = std::floor(progress * warmup_stages_);
      ratio = std::max(ratio_, std::pow(0.25, stage + 1));
    }
    return share_of(ratio, units);
  }

  RowSparse select(BucketId bucket, Span<const float> gradient, Span<const float> residual,
                   std::size_t wanted, Step& step) override {
    constexpr std::size_t kFewestSamples = 4096;
    const std::size_t n = gradient.size();
    const auto rank = static_cast<std::uint32_t>(step.communicator.rank());
    const std::size_t sample =
        std::max(kFewestSamples, static_cast<std::size_t>(sample_ * static_cast<double>(n)));
    Selection chosen;
    if (sample >= n) {
      chosen = select_largest(step.executor, step.workspace, gradient, residual, wanted);
    } else {
      const auto random = random_stream(step.seed, step.index, bucket, RandomPurpose::sample, rank);
      const std::uint32_t threshold = sampled_threshold(step.executor, step.workspace, gradient, residual,
                                                        wanted, sample, 0, random.block(0, 0)[0]);
      chosen = select_at_least(step.executor, step.workspace, gradient, residual, threshold);
      if (chosen.size() > wanted) {
        chosen = apply_cut(chosen, cut_of_largest(step.executor, chosen.values, {}, wanted));
      }
    }
    return {chosen.indices, chosen.values, n, 1};
  }

 private:
  double ratio_;
  double sample_;
  std::uint64_t warmup_steps_;
  int warmup_stages_ = 0;
};

}  // namespace

SystemInfo dgc_info() {
  SystemInfo info = sparsifier_info();
  info.name = "dgc";
  info.summary = "top-k by a sampled threshold, with momentum before compression, clipping and warm-up";
  info.paper = "Lin et al., Deep Gradient Compression, ICLR 2018";
  info.corrects_momentum = true;
  info.bears_momentum = [](const Options& options) { return options.real("momentum", 0, 1) == 0; };
  info.state = {kVelocity, kClipShare, kClipSquares};
  info.undoes_steps = true;
  info.options = {
      {"ratio", "0.001", "share of a bucket's elements to deliver, above 0, up to 1"},
      {"momentum", "0.9", "decay of the velocity per step, 0 to 1; leave the optimizer's at 0"},
      {"clip", "0", "l2 norm to which this rank's gradient is clipped, divided by sqrt(W); 0: not at all"},
      {"sample", "0.01",
       "share of the elements that the threshold is estimated from, at least 4096 elements"},
      {"warmup_steps", "0", "steps in which the share falls from 25 % to ratio, by quarters"}};
  info.make = [](const Options& options, Inner inner) -> std::unique_ptr<Synchronizer> {
    auto selecting = std::make_unique<SampledTopK>(
        std::move(inner), options.real("ratio", Sparsifier::kSmallestRatio, 1), options.real("sample", 0, 1),
        static_cast<std::uint64_t>(options.integer("warmup_steps", 0, 1'000'000'000)));
    auto corrected =
        correct_momentum(static_cast<float>(options.real("momentum", 0, 1)), std::move(selecting));
    const double clip = options.real("clip", 0, 1e30);
    if (clip == 0) return corrected;
    return clip_gradient(clip, ClipLimit::norm_over_root, std::move(corrected));
  };
  return info;
}

}  // namespace thinwire
