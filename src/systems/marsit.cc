// Marsit: one-bit multi-hop all-reduce.
//
// Paper: F. Wu et al., "Sign Bit is Enough: A Learning Synchronization Framework for Multi-hop All-reduce with Ultimate
// Compression", DAC 2022 (shared as marsit.txt). Algorithm 1 is Marsit::synchronize, section 4.1.1 is
// OneBitAllReduce, section 4.1.3 the residual.
//
// Way of the data in a one-bit step, p = gradient + residual:
//
//   p --pack_signs--> bits --ring reduce-scatter: at each hop out = t ? own : received--> final bits of one segment
//     --ring all-gather, copies only--> all final bits --apply_signs--> mean = eta_s * (+-1), residual = p - mean
//
// t is 1 with probability own weight / (own + received weight): 1/m at the m-th worker of a ring. That is reservoir
// sampling: every worker's sign survives with probability 1/W, so E[bit] is the mean of the workers' bits at every hop.
// Every full_every-th step is an ordinary all-reduce of p, after which the residual is 0.
//
// Torus: reduce-scatter along the row, reduce-scatter and all-gather of the owned segment along the column, all-gather
// along the row. Ranks outside the rectangle send all their bits to a core rank first and get the result last.
//
// Bytes per rank: one-bit ring 2 * sum of ceil(len/8) over W - 1 segments, the torus as much in 2 (rows - 1) +
// 2 (columns - 1) hops; full step 4 bytes for every element of a dense ring.
//
// Deviations from the paper:
// - The local learning rate stays with the optimizer, so p = g + c rather than eta_l g + c.
// - eta_s has no value in the paper. auto takes mean |average of g| of the last full step, the residual excluded (mean
//   |p| grows without bound). From the second full step on this is read off a sample of at most kSampleElements, since
//   the all-reduce carries p; full_every=0 agrees on it once, off the first step's sample.
// - The operator's three gates are one selection with the same probabilities (equation 2).

#include "systems/marsit.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <stdexcept>

#include "core/partition.h"
#include "core/stopwatch.h"
#include "kernels/dense.h"
#include "kernels/sign_bits.h"
#include "systems/one_bit_all_reduce.h"
#include "thinwire/state.h"

namespace thinwire {
namespace {

/// Elements off which eta_s is read when no dense all-reduce of the bare gradient is at hand.
constexpr std::size_t kSampleElements = 4096;

struct Config {
  std::uint64_t full_every = 100;
  std::optional<float> eta;  // empty: auto
  bool torus = false;
  int rows = 0;
  std::uint64_t drift_every = 0;
};

class Marsit final : public Synchronizer {
 public:
  explicit Marsit(const Config& config) : config_(config) {}

  void synchronize(BucketId bucket, Span<float> gradient, Span<float> residual, Step& step) override {
    require_matching(gradient, residual);
    step.delivered = {};
    if (gradient.empty()) return;
    if (!residual.empty() && config_.drift_every != 0 && step.index % config_.drift_every == 0) {
      step.report.residual_deviation = deviation(residual, step);
    }
    if (full_step(step.index)) {
      full_precision(bucket, gradient, residual, step);
    } else {
      one_bit(bucket, gradient, residual, step);
    }
  }

  std::uint64_t payload_bytes(const Workload& workload) const override {
    const auto world = static_cast<std::size_t>(workload.world_size);
    const auto position = static_cast<std::size_t>(workload.rank);
    if (world == 1) return 0;
    auto dense_bytes = [&](std::size_t elements) { return 4 * ring_sent_elements(elements, world, position); };
    const std::size_t sample = std::min<std::size_t>(workload.elements, kSampleElements);
    const bool drift = workload.feedback && config_.drift_every != 0 && workload.step % config_.drift_every == 0;
    const std::uint64_t extra = drift ? dense_bytes(workload.elements) : 0;
    if (full_step(workload.step)) {
      const bool sampled = !config_.eta && workload.feedback && workload.step != 0;
      return extra + dense_bytes(workload.elements) + (sampled ? dense_bytes(sample) : 0);
    }
    const bool agrees = !config_.eta && config_.full_every == 0 && workload.step == 0;
    return extra + one_bit_payload_bytes(workload.elements, torus(workload.world_size), workload.rank) +
           (agrees ? dense_bytes(sample) : 0);
  }

  void save(BucketWriter& writer) const override {
    for (const auto& [bucket, eta] : etas_) writer.value("marsit_eta", bucket, static_cast<double>(eta));
  }
  void load(const BucketReader& reader) override {
    for (BucketId bucket = 0; bucket < reader.buckets(); ++bucket) {
      if (const auto eta = reader.value("marsit_eta", bucket)) etas_[bucket] = static_cast<float>(*eta);
    }
  }

 private:
  bool full_step(std::uint64_t step) const { return config_.full_every != 0 && step % config_.full_every == 0; }
  Torus torus(int world_size) const { return {world_size, config_.torus ? config_.rows : 1}; }

  /// Mean |average of g| over the sample, the same on all ranks.
  static float sampled_eta(Span<const float> gradient, Step& step) {
    const std::size_t count = std::min(gradient.size(), kSampleElements);
    const Span<float> sample = step.workspace.take<float>(count);
    for (std::size_t i = 0; i < count; ++i) sample[i] = gradient[part_begin(gradient.size(), count, i)];
    step.communicator.all_reduce_sum(sample);
    return mean_magnitude(step.executor, sample) / static_cast<float>(step.communicator.size());
  }
  static float mean_magnitude(Executor& executor, Span<const float> values) {
    return static_cast<float>(sum_of_magnitudes(executor, values, {}) / static_cast<double>(values.size()));
  }

  static double deviation(Span<const float> residual, Step& step) {
    const Span<float> mean = step.workspace.take<float>(residual.size());
    std::copy(residual.begin(), residual.end(), mean.begin());
    step.communicator.all_reduce_sum(mean);
    // The negative mean, so that the sum below is the difference.
    scale(step.executor, mean, -1.0f / static_cast<float>(step.communicator.size()));
    return std::sqrt(sum_of_squares(step.executor, residual, mean));
  }

  void full_precision(BucketId bucket, Span<float> gradient, Span<float> residual, Step& step) {
    std::optional<float> eta = config_.eta;
    if (!eta && !residual.empty() && step.index != 0) eta = sampled_eta(gradient, step);
    if (!residual.empty()) add(step.executor, gradient, residual);
    step.communicator.all_reduce_sum(gradient);
    step.report.finite = scale(step.executor, gradient, 1.0f / static_cast<float>(step.communicator.size()));
    if (!step.report.finite) return;
    if (!eta) eta = mean_magnitude(step.executor, gradient);
    etas_[bucket] = *eta;
    step.report.scale = static_cast<double>(*eta);
    if (!residual.empty()) {
      fill(step.executor, residual, 0);
      step.report.residual_norm = 0;
    }
  }

  void one_bit(BucketId bucket, Span<float> gradient, Span<float> residual, Step& step) {
    const auto known = etas_.find(bucket);
    // Without a full step behind it (full_every=0, or a bucket added late) the step size is agreed here, once.
    const float eta = config_.eta              ? *config_.eta
                      : known != etas_.end() ? known->second
                                               : sampled_eta(gradient, step);
    const Torus shape = torus(step.communicator.size());
    OneBitAllReduce bits(bucket, gradient, residual, step, shape);
    bits.run();

    Stopwatch watch;
    step.report.finite = !bits.non_finite() && std::isfinite(eta);
    if (!step.report.finite) {
      fill(step.executor, gradient, std::numeric_limits<float>::quiet_NaN());
      return;
    }
    double squares = 0;
    bits.for_each_piece([&](const RingPiece& piece) {
      squares += apply_signs(step.executor, bits.words(piece), eta, gradient.subspan(piece.begin, piece.elements()),
                             residual.subspan(piece.begin, piece.elements()));
    });
    etas_[bucket] = eta;
    step.report.scale = static_cast<double>(eta);
    if (!residual.empty()) step.report.residual_norm = std::sqrt(squares);
    step.report.seconds_decompress += watch.seconds();
  }

  Config config_;
  std::map<BucketId, float> etas_;
};

}  // namespace

SystemInfo marsit_info() {
  SystemInfo info;
  info.name = "marsit";
  info.summary = "one-bit multi-hop all-reduce with a full-precision step every K steps";
  info.paper = "Wu et al., Sign Bit is Enough, DAC 2022";
  info.formula = "one-bit step: 2 * sum of ceil(len/8) over W-1 segments, about 2(W-1)/W * d/8; full step: 2(W-1)/W * 4d";
  info.feedback_default = true;
  info.options = {
      {"full_every", "100", "full-precision step every K steps; 0: never"},
      {"eta_s", "auto", "step size of a one-bit step; auto: mean |average gradient| at the last full step"},
      {"topology", "ring", "ring or torus"},
      {"rows", "auto", "rows of the torus; auto: the most nearly square one"},
      {"drift_every", "0", "measure |c_w - mean(c)| every N steps, by a dense all-reduce of the residual; 0: never"}};
  info.make = [](const Options& options, std::unique_ptr<Synchronizer>) -> std::unique_ptr<Synchronizer> {
    constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
    Config config;
    config.full_every = static_cast<std::uint64_t>(options.integer("full_every", 0, kMost));
    if (options.text("eta_s") != "auto") {
      config.eta = static_cast<float>(options.real("eta_s", 1e-30, 1e30));
    }
    config.torus = options.choice("topology", {"ring", "torus"}) == "torus";
    if (options.text("rows") != "auto") {
      config.rows = static_cast<int>(options.integer("rows", 1, 1 << 20));
      if (!config.torus) throw std::invalid_argument("marsit: rows goes with topology=torus");
    }
    config.drift_every = static_cast<std::uint64_t>(options.integer("drift_every", 0, kMost));
    return std::make_unique<Marsit>(config);
  };
  return info;
}

}  // namespace thinwire
