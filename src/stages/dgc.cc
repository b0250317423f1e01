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
// - With threshold=shards the sample is that of all ranks with parts of the same layers (Step::shards): of a
//   host whose ranks act as one worker, or of tensor parallelism. So each rank selects what is large among
//   all parts, by one threshold. (Z. Wang et al., "Zen", section 3.4.) More than k of all parts are cut off.
// - Warm-up (section 3.3): 25 %, 6.25 %, ... of the elements in equal parts of the first warmup_steps, until
//   the next quarter would be below `ratio`.

#include <algorithm>
#include <string>

#include "core/philox.h"
#include "kernels/dense/dense.h"
#include "kernels/selection/select.h"
#include "kernels/selection/select_sample.h"
#include "stages/clip.h"
#include "stages/momentum.h"
#include "stages/sparsifier.h"
#include "stages/stages.h"
#include "thinwire/errors.h"

namespace thinwire {
namespace {

class SampledTopK final : public Sparsifier {
 public:
  SampledTopK(Inner inner, double ratio, double sample, std::uint64_t warmup_steps, bool by_shards)
      : Sparsifier(std::move(inner), 1),
        ratio_(ratio),
        sample_(sample),
        warm_up_(Ramp::by_quarters(ratio, warmup_steps)),
        by_shards_(by_shards) {}

 protected:
  std::size_t wanted(std::size_t units, std::uint64_t step) const override {
    return warm_up_.units_at(step, share_of(ratio_, units), units);
  }

  RowSparse select(BucketId bucket, Span<const float> gradient, Span<const float> residual,
                   std::size_t wanted, Step& step) override {
    const std::size_t n = gradient.size();
    const auto rank = static_cast<std::uint32_t>(step.communicator.rank());
    const std::size_t sample =
        std::max(kFewestSamples, static_cast<std::size_t>(sample_ * static_cast<double>(n)));
    Selection chosen;
    if (by_shards_ && step.shards != nullptr && step.shards->size() > 1) {
      const Cut cut = cut_of_shards(bucket, gradient, residual, step);
      chosen = select_at_least(step.executor, step.workspace, gradient, residual, cut.threshold);
      if (chosen.size() > cut.wanted) {
        chosen = apply_cut(chosen, cut_of_largest(step.executor, chosen.values, {}, cut.wanted));
      }
    } else if (sample >= n) {
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
  static constexpr std::size_t kFewestSamples = 4096;

  struct Cut {
    std::uint32_t threshold;
    std::size_t wanted;  // of all parts
  };

  /// The threshold that about as many elements of all parts pass as all parts together shall send, by a
  /// sample of each in proportion to its length. Collective over step.shards.
  Cut cut_of_shards(BucketId bucket, Span<const float> gradient, Span<const float> residual,
                    Step& step) const {
    Communicator& shards = *step.shards;
    const StepClock::During waiting(&step.clock, Phase::wait);
    const auto parts = step.workspace.take<std::uint64_t>(static_cast<std::size_t>(shards.size()));
    const std::uint64_t mine = gradient.size();
    shards.all_gather(as_bytes(Span<const std::uint64_t>(&mine, 1)), as_writable_bytes(parts));
    std::uint64_t elements = 0;
    for (std::size_t place = 0; place < parts.size(); ++place) {
      if (parts[place] == 0 || parts[place] >> 32 != 0) {
        throw CorruptFrame("rank " + std::to_string(place) + " of those with parts of bucket " +
                           std::to_string(bucket) + " announced " + std::to_string(parts[place]) +
                           " elements, expected 1 to 2^32 less 1: bytes changed on the way");
      }
      elements += parts[place];
    }
    const double share =
        std::min(1.0, std::max(sample_, static_cast<double>(kFewestSamples) / static_cast<double>(elements)));
    const auto bytes = step.workspace.take<std::size_t>(parts.size());
    std::size_t samples = 0;
    const auto samples_of = [share](std::uint64_t part) { return share_of(share, part); };
    for (std::size_t place = 0; place < parts.size(); ++place) {
      bytes[place] = samples_of(parts[place]) * sizeof(float);
      samples += samples_of(parts[place]);
    }
    const auto all = step.workspace.take<float>(samples);
    const auto own = sample_of(bucket, gradient, residual, samples_of(mine), step);
    shards.all_gather_v(as_bytes(own), as_writable_bytes(all), bytes);
    const std::size_t most = wanted(elements, step.index);
    const auto rank = share_of(static_cast<double>(most) / static_cast<double>(elements), samples);
    // Another part's NaN must not be what this one's inf is below.
    constexpr std::uint32_t kInfinity = 0x7f800000;
    return {std::min(cut_of_largest(step.executor, all, {}, rank).bits, kInfinity), most};
  }

  /// `count` elements of p, spread over all of it.
  static Span<const float> sample_of(BucketId bucket, Span<const float> gradient, Span<const float> residual,
                                     std::size_t count, Step& step) {
    const auto rank = static_cast<std::uint32_t>(step.communicator.rank());
    const auto random = random_stream(step.seed, step.index, bucket, RandomPurpose::sample, rank);
    const std::uint32_t seed = random.block(0, 0)[0];
    const std::size_t n = gradient.size();
    const auto own = step.workspace.take<float>(count);
    if (step.executor.memory() == Memory::host) {
      const double stride = static_cast<double>(n) / static_cast<double>(count);
      for (std::size_t s = 0; s < count; ++s) {
        const std::size_t i = sample_position(s, seed, stride, n);
        own[s] = residual.empty() ? gradient[i] : gradient[i] + residual[i];
      }
      return own;
    }
    // At even distances, which begin anywhere.
    const std::size_t first = seed % std::max<std::size_t>(1, n / count);
    sample_evenly(step.executor, gradient, first, n - first, own);
    const auto kept = step.workspace.take<float>(residual.empty() ? 0 : count);
    if (!residual.empty()) sample_evenly(step.executor, residual, first, n - first, kept);
    step.executor.wait();
    for (std::size_t i = 0; i < kept.size(); ++i) own[i] += kept[i];
    return own;
  }

  double ratio_;
  double sample_;
  Ramp warm_up_;
  bool by_shards_;
};

}  // namespace

SystemInfo dgc_info() {
  SystemInfo info = sparsifier_info();
  info.name = "dgc";
  info.summary = "top-k by a sampled threshold, with momentum before compression, clipping and warm-up";
  info.paper = "Lin et al., Deep Gradient Compression, ICLR 2018";
  info.clip_option = "clip";
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
      {"warmup_steps", "0", "steps in which the share falls from 25 % to ratio, by quarters"},
      {"threshold", "own",
       "own, or shards: one for all ranks with parts of the same layers, see SessionOptions::shards"}};
  info.make = [](const Options& options, Inner inner) -> std::unique_ptr<Synchronizer> {
    auto selecting = std::make_unique<SampledTopK>(
        std::move(inner), options.real("ratio", Sparsifier::kSmallestRatio, 1), options.real("sample", 0, 1),
        static_cast<std::uint64_t>(options.integer("warmup_steps", 0, 1'000'000'000)),
        options.choice("threshold", {"own", "shards"}) == "shards");
    auto corrected =
        correct_momentum(static_cast<float>(options.real("momentum", 0, 1)), std::move(selecting));
    const double clip = options.real("clip", 0, 1e30);
    if (clip == 0) return corrected;
    return clip_gradient(clip, ClipLimit::norm_over_root, std::move(corrected));
  };
  return info;
}

}  // namespace thinwire
