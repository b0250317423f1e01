// Marsit: one-bit multi-hop all-reduce.
//
// Paper: F. Wu et al., "Sign Bit is Enough: A Learning Synchronization Framework for Multi-hop All-reduce
// with Ultimate Compression", DAC 2022. Algorithm 1 is Marsit::synchronize. Section 4.1.1 is OneBitAllReduce.
// Section 4.1.3 is the residual.
//
// A one-bit step, with p = gradient + residual:
//
//   p --pack_signs--> bits
//     --ring reduce-scatter, at each hop out = t ? own : received--> final bits of one segment
//     --ring all-gather, copies only--> all final bits
//     --apply_signs--> mean = eta_s * (+-1), residual = p - mean
//
// t is 1 with probability own weight / (own + received weight), which is 1/m at the m-th worker of a ring.
// That is reservoir sampling: every worker's sign survives with probability 1/W. So E[bit] is the mean of the
// workers' bits at every hop.
//
// Every full_every-th step is an ordinary all-reduce of p. After it the residual is 0. With full_above such a
// step also follows one after which the residual is so many times as long as what a one-bit step delivers.
//
// A torus has four phases: reduce-scatter along the row, reduce-scatter of the owned segment along the
// column, all-gather along the column, all-gather along the row. Ranks outside the rectangle send all their
// bits to a core rank first. They get the result last.
//
// Bytes per rank:
//   one-bit step on a ring: 2 * sum of ceil(len/8) over W - 1 segments;
//   one-bit step on a torus: as much, in 2 (rows - 1) + 2 (columns - 1) hops;
//   full step: 4 for every element of a dense ring.
//
// Deviations from the paper:
// - The local learning rate stays with the optimizer. So p = g + c instead of eta_l g + c. With eta_s=theorem
//   it is inside, as the paper has it.
// - eta_s has no value in the paper's experiments. Theorem 1's sqrt(1 / (T D)) is eta_s=theorem. auto takes
//   eta_factor * mean |average of g|, per parameter, at the last full step. The residual is left out of it,
//   since mean |p| grows without bound.
// - A factor of 1 starves. A one-bit step delivers at most eta_s per element, and gradients are heavy-tailed.
//   What piles up over full_every steps then arrives in one lump. docs/systems.md has the derivation,
//   docs/gain.md the runs.
// - From the second full step on the average is read off a sample, because the all-reduce carries p. With
//   full_every=0 ranks agree on it once, off the first step's sample.
// - The operator's three gates are one selection with the same probabilities (equation 2).

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <stdexcept>
#include <vector>

#include "core/bucket_vectors.h"
#include "core/partition.h"
#include "exchange/collectives.h"
#include "kernels/dense/dense.h"
#include "kernels/signs/sign_bits.h"
#include "stages/learning_rate.h"
#include "systems/marsit/one_bit_all_reduce.h"
#include "systems/systems.h"
#include "thinwire/state.h"

namespace thinwire {
namespace {

constexpr StateKind kEta = {.name = "marsit_eta", .unit = StateKind::Unit::gradient};
/// Of every parameter of a bucket alike: 1 where the bucket's next step is a full one by full_above, else 0.
constexpr StateKind kDue = {.name = "marsit_due"};

/// Elements off which eta_s is read when no dense all-reduce of the bare gradient is at hand: this many of a
/// bucket, and at least kLeastSample of each parameter.
constexpr std::size_t kSampleElements = 4096;
constexpr std::size_t kLeastSample = 16;

std::size_t sample_size(std::size_t parameter, std::size_t bucket) {
  return std::min(parameter, std::max(kLeastSample, part_begin(kSampleElements, bucket, parameter)));
}

/// Calls body(parameter index, begin, end) for every parameter of a bucket; a bucket without ends is one.
template <class Body>
void for_each_parameter(Span<const std::size_t> ends, std::size_t elements, Body body) {
  if (ends.empty()) return body(std::size_t{0}, std::size_t{0}, elements);
  std::size_t begin = 0;
  for (std::size_t i = 0; i < ends.size(); begin = ends[i], ++i) body(i, begin, ends[i]);
}

std::size_t sample_size(Span<const std::size_t> ends, std::size_t elements) {
  std::size_t total = 0;
  for_each_parameter(ends, elements, [&](std::size_t, std::size_t begin, std::size_t end) {
    total += sample_size(end - begin, elements);
  });
  return total;
}

std::size_t parameter_count(const Step& step) {
  return std::max<std::size_t>(1, step.parameter_ends.size());
}

/// apply_signs for elements [begin, end) of a chunk's bits, which need not begin at a word.
double apply_range(Step& step, Span<const std::uint64_t> words, std::size_t begin, std::size_t end, float eta,
                   Span<float> gradient, ResidualSpan residual) {
  double squares = 0;
  if (begin % 64 != 0) {
    const std::size_t head = std::min(64 - begin % 64, end - begin);
    const std::uint64_t word = words[begin / 64] >> (begin % 64);
    squares = apply_signs(step.executor, Span<const std::uint64_t>(&word, 1), eta, gradient.first(head),
                          residual.first(head));
    gradient = gradient.subspan(head, gradient.size() - head);
    residual = residual.empty() ? residual : residual.subspan(head, residual.size() - head);
    begin += head;
  }
  if (begin == end) return squares;
  return squares + apply_signs(step.executor, words.subspan(begin / 64, sign_words(end - begin)), eta,
                               gradient, residual);
}

struct Config {
  std::uint64_t full_every = 100;
  double full_above = 0;  // 0: no step is a full one for its residual
  std::optional<float> eta;
  std::uint64_t horizon = 0;    // T of theorem 1, whose eta_s it is unless 0
  std::uint64_t dimension = 0;  // D of theorem 1; 0: the bucket's elements
  float eta_factor = 10;

  bool automatic() const { return !eta && horizon == 0; }
  bool torus = false;
  int rows = 0;
  std::uint64_t drift_every = 0;
};

class Marsit final : public Synchronizer {
 public:
  explicit Marsit(const Config& config) : config_(config) {}

  void synchronize(BucketId bucket, Span<float> gradient, Span<float> residual, Step& step) override {
    if (!residual.empty() && config_.drift_every != 0 && step.index % config_.drift_every == 0) {
      step.report.residual_deviation = deviation(residual, step);
    }
    if (full_step(step.index) || is_due(bucket)) {
      full_precision(bucket, gradient, residual, step);
    } else {
      one_bit(bucket, gradient, residual, step);
    }
  }

  void require_world(int world_size) const override { torus(world_size); }

  std::uint64_t payload_bytes(const Workload& workload) const override {
    const auto world = static_cast<std::size_t>(workload.world_size);
    const auto position = static_cast<std::size_t>(workload.rank);
    if (world == 1 || workload.elements == 0) return 0;
    auto dense_bytes = [&](std::size_t elements) {
      return 4 * ring_sent_elements(elements, world, position);
    };
    const std::size_t sample = sample_size(workload.parameter_ends, workload.elements);
    const bool drift =
        workload.feedback && config_.drift_every != 0 && workload.step % config_.drift_every == 0;
    const std::uint64_t extra = drift ? dense_bytes(workload.elements) : 0;
    if (full_step(workload.step) || is_due(workload.bucket)) {
      const bool sampled = config_.automatic() && workload.feedback && workload.step != 0;
      return extra + dense_bytes(workload.elements) + (sampled ? dense_bytes(sample) : 0);
    }
    // Not counted, for the formula knows no history: when no step has counted yet (all before were not
    // finite), a one-bit step agrees on its step sizes as well.
    const bool agrees = config_.automatic() && config_.full_every == 0 && workload.step == 0;
    return extra + one_bit_payload_bytes(workload.elements, torus(workload.world_size), workload.rank) +
           (agrees ? dense_bytes(sample) : 0);
  }

  void save(BucketWriter& writer) const override {
    etas_.for_each([&](BucketId bucket, const std::vector<float>& etas) {
      writer.values(kEta, bucket, Span<const float>(etas));
      if (config_.full_above == 0) return;
      const std::vector<float> due(etas.size(), is_due(bucket) ? 1.0f : 0.0f);
      writer.values(kDue, bucket, Span<const float>(due));
    });
  }
  void load(const BucketReader& reader) override {
    std::map<BucketId, std::vector<float>> loaded;
    std::map<BucketId, bool> due;
    for (BucketId bucket = 0; bucket < reader.buckets(); ++bucket) {
      std::vector<float> etas(reader.parameters(bucket));
      if (reader.values(kEta, bucket, Span<float>(etas))) loaded[bucket] = etas;
      // Parameters may come from buckets of which one was due.
      std::ranges::fill(etas, 0.0f);
      reader.values(kDue, bucket, Span<float>(etas));
      due[bucket] = std::ranges::find(etas, 1.0f) != etas.end();
    }
    etas_.assign(std::move(loaded));
    due_.assign(std::move(due));
  }
  void keep_step(BucketId bucket) override {
    etas_.keep(bucket);
    due_.keep(bucket);
  }
  void undo_step(BucketId bucket) override {
    etas_.undo(bucket);
    due_.undo(bucket);
  }

 private:
  bool full_step(std::uint64_t step) const {
    return config_.full_every != 0 && step % config_.full_every == 0;
  }
  bool is_due(BucketId bucket) const {
    const bool* due = due_.find(bucket);
    return due != nullptr && *due;
  }
  Torus torus(int world_size) const { return {world_size, config_.torus ? config_.rows : 1}; }

  /// eta_s of every parameter, off the average over ranks of a sample of the gradient; the same on all ranks.
  /// Collective.
  Span<float> sampled_etas(Span<const float> gradient, Step& step) const {
    const Span<float> sample = step.workspace.take<float>(sample_size(step.parameter_ends, gradient.size()));
    std::size_t at = 0;
    for_each_parameter(
        step.parameter_ends, gradient.size(), [&](std::size_t, std::size_t begin, std::size_t end) {
          const std::size_t count = sample_size(end - begin, gradient.size());
          sample_evenly(step.executor, gradient, begin, end - begin, sample.subspan(at, count));
          at += count;
        });
    all_reduce_sum(step, sample);
    scale(step.executor, sample, 1.0f / static_cast<float>(step.communicator.size()));
    const Span<float> etas = step.workspace.take<float>(parameter_count(step));
    at = 0;
    for_each_parameter(step.parameter_ends, gradient.size(),
                       [&](std::size_t i, std::size_t begin, std::size_t end) {
                         const std::size_t count = sample_size(end - begin, gradient.size());
                         etas[i] = automatic_eta(step.executor, sample.subspan(at, count));
                         at += count;
                       });
    return etas;
  }

  /// The same, off the average itself.
  Span<float> etas_of(Span<const float> average, Step& step) const {
    const Span<float> etas = step.workspace.take<float>(parameter_count(step));
    for_each_parameter(step.parameter_ends, average.size(),
                       [&](std::size_t i, std::size_t begin, std::size_t end) {
                         etas[i] = automatic_eta(step.executor, average.subspan(begin, end - begin));
                       });
    return etas;
  }

  /// Unless automatic: given, or theorem 1's.
  Span<float> fixed_etas(std::size_t elements, Step& step) const {
    const Span<float> etas = step.workspace.take<float>(parameter_count(step));
    std::ranges::fill(etas, config_.eta ? *config_.eta : theorem_eta(elements));
    return etas;
  }

  float theorem_eta(std::size_t elements) const {
    const auto dimension = static_cast<double>(config_.dimension != 0 ? config_.dimension : elements);
    return static_cast<float>(1 / std::sqrt(static_cast<double>(config_.horizon) * dimension));
  }

  float automatic_eta(Executor& executor, Span<const float> average) const {
    if (average.empty()) return 0;
    const double mean = sum_of_magnitudes(executor, average, {}) / static_cast<double>(average.size());
    return config_.eta_factor * static_cast<float>(mean);
  }

  /// Remembers and reports the step sizes of a step that counts. A parameter that had no gradient in it keeps
  /// the step size that it had: with 0 it would get nothing until the next full step.
  void keep(BucketId bucket, Span<const float> etas, std::size_t elements, Step& step) {
    std::vector<float>& kept = etas_.open(bucket);
    kept.resize(etas.size());
    for (std::size_t i = 0; i < kept.size(); ++i) {
      if (etas[i] != 0) kept[i] = etas[i];
    }
    double sum = 0;
    for_each_parameter(step.parameter_ends, elements, [&](std::size_t i, std::size_t begin, std::size_t end) {
      sum += static_cast<double>(kept[i]) * static_cast<double>(end - begin);
    });
    step.report.scale = sum / static_cast<double>(elements);
  }

  static double deviation(Span<const float> residual, Step& step) {
    const Span<float> mean = step.scratch.take<float>(residual.size());
    copy(step.executor, residual, mean);
    all_reduce_sum(step, mean);
    // The negative mean, so that the sum below is the difference.
    scale(step.executor, mean, -1.0f / static_cast<float>(step.communicator.size()));
    return std::sqrt(sum_of_squares(step.executor, residual, mean));
  }

  void full_precision(BucketId bucket, Span<float> gradient, Span<float> residual, Step& step) {
    step.communicator.commit_exchange();
    Span<float> etas;
    if (!config_.automatic()) {
      etas = fixed_etas(gradient.size(), step);
    } else if (!residual.empty() && step.index != 0) {
      etas = sampled_etas(gradient, step);
    }
    step.clock.enter(Phase::exchange);  // as dense
    if (!residual.empty()) add(step.executor, gradient, residual);
    all_reduce_sum(step, gradient);
    step.report.finite = scale(step.executor, gradient, 1.0f / static_cast<float>(step.communicator.size()));
    if (!step.report.finite) return;
    keep(bucket, etas.empty() ? etas_of(gradient, step) : etas, gradient.size(), step);
    if (config_.full_above > 0) due_.open(bucket) = false;
    if (!residual.empty()) {
      fill(step.executor, step.turn.write(residual).after, 0);
      step.report.residual_norm = 0;
    }
  }

  void one_bit(BucketId bucket, Span<float> gradient, Span<float> residual, Step& step) {
    const std::vector<float>* known = etas_.find(bucket);
    // Without a full step behind it (full_every=0, or a bucket added late) the step size is agreed here,
    // once.
    const Span<const float> etas = !config_.automatic() ? Span<const float>(fixed_etas(gradient.size(), step))
                                   : known != nullptr   ? Span<const float>(*known)
                                                        : sampled_etas(gradient, step);
    if (etas.size() != parameter_count(step)) {
      throw std::invalid_argument("bucket " + std::to_string(bucket) + " had " + std::to_string(etas.size()) +
                                  " parameters in earlier steps, now " +
                                  std::to_string(parameter_count(step)));
    }
    step.communicator.commit_exchange();
    OneBitAllReduce bits(bucket, gradient, residual, step, torus(step.communicator.size()));
    bits.run();

    step.clock.enter(Phase::decompress);
    step.report.finite =
        !bits.non_finite() && std::ranges::all_of(etas, [](float eta) { return std::isfinite(eta); });
    if (!step.report.finite) return;
    double squares = 0;
    const ResidualSpan turned = step.turn.write(residual);
    bits.for_each_chunk([&](const RingChunk& chunk) {
      for_each_parameter(
          step.parameter_ends, gradient.size(), [&](std::size_t i, std::size_t first, std::size_t last) {
            const std::size_t begin = std::max(first, chunk.begin);
            const std::size_t end = std::min(last, chunk.end);
            if (begin >= end) return;
            squares += apply_range(step, bits.words(chunk), begin - chunk.begin, end - chunk.begin, etas[i],
                                   gradient.subspan(begin, end - begin), turned.subspan(begin, end - begin));
          });
    });
    keep(bucket, etas, gradient.size(), step);
    if (residual.empty()) return;
    step.report.residual_norm = std::sqrt(squares);
    if (config_.full_above > 0) due_.open(bucket) = exceeds(squares, etas, gradient.size(), step);
  }

  /// Whether the residual, as a root mean square over ranks, is longer than `full_above` times what a one-bit
  /// step delivers. The same on all ranks. Collective.
  bool exceeds(double squares, Span<const float> etas, std::size_t elements, Step& step) const {
    double delivered = 0;
    for_each_parameter(step.parameter_ends, elements, [&](std::size_t i, std::size_t begin, std::size_t end) {
      delivered +=
          static_cast<double>(etas[i]) * static_cast<double>(etas[i]) * static_cast<double>(end - begin);
    });
    const Span<double> all = gather(step, squares);
    step.report.frame_header_bytes += sizeof(double) * (all.size() - 1);
    double sum = 0;
    for (const double one : all) sum += one;
    return sum > config_.full_above * config_.full_above * delivered * static_cast<double>(all.size());
  }

  Config config_;
  BucketStates<std::vector<float>> etas_;  // one per parameter
  BucketStates<bool> due_;                 // the next step is a full one, by full_above
};

/// eta_s and what goes with it.
void read_step_size(const Options& options, Config& config) {
  const std::string eta = options.text("eta_s");
  const bool theorem = eta == "theorem";
  if (eta != "auto" && !theorem) config.eta = static_cast<float>(options.real("eta_s", 1e-30, 1e30));
  config.eta_factor = static_cast<float>(options.real("eta_factor", 1e-6, 1e6));
  constexpr std::int64_t kMost = 1'000'000'000'000'000;
  config.horizon = static_cast<std::uint64_t>(options.integer("horizon", 0, kMost));
  config.dimension = static_cast<std::uint64_t>(options.integer("dimension", 0, kMost));
  if (theorem && config.horizon == 0) {
    throw std::invalid_argument(
        "marsit: eta_s=theorem is sqrt(1 / (T D)) and needs T: give the steps of the training, as in "
        "eta_s=theorem:horizon=10000");
  }
  if (!theorem && (config.horizon != 0 || config.dimension != 0)) {
    throw std::invalid_argument("marsit: horizon and dimension go with eta_s=theorem, not with eta_s=" + eta);
  }
}

}  // namespace

SystemInfo marsit_info() {
  SystemInfo info;
  info.name = "marsit";
  info.summary = "one-bit multi-hop all-reduce with a full-precision step every K steps";
  info.paper = "Wu et al., Sign Bit is Enough, DAC 2022";
  info.formula =
      "one-bit step: 2 * sum of ceil(len/8) over W-1 segments, about 2(W-1)/W * d/8; full step: 2(W-1)/W * "
      "4d";
  info.feedback_default = true;
  info.incomparable = [](const Options& options) {
    return options.text("eta_s") == "theorem" ? "give it another eta_s" : "";
  };
  info.rate_inside = [](const Options& options) { return options.text("eta_s") == "theorem"; };
  info.state = {kEta, kDue};
  info.undoes_steps = true;
  info.turns_residual = true;
  info.options = {{"full_every", "100", "full-precision step every K steps; 0: never"},
                  {"full_above", "0",
                   "a full-precision step as well where the residual is this many times as long as what a "
                   "one-bit step delivers; 0: none for that"},
                  {"eta_s", "auto",
                   "step size of a one-bit step; auto: eta_factor * mean |average gradient| per parameter, "
                   "at the last full step; theorem: sqrt(1 / (horizon * dimension)), learning rate inside"},
                  {"eta_factor", "10", "what auto is multiplied by"},
                  {"horizon", "0", "of eta_s=theorem: T, how many steps the training has"},
                  {"dimension", "0", "of eta_s=theorem: D, elements of the model; 0: those of the bucket"},
                  {"topology", "ring", "ring or torus"},
                  {"rows", "auto", "rows of the torus; auto: the most nearly square one"},
                  {"drift_every", "0",
                   "measure |c_w - mean(c)| every N steps, by a dense all-reduce of the residual; 0: never"}};
  info.make = [](const Options& options, Inner) -> std::unique_ptr<Synchronizer> {
    constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
    Config config;
    config.full_every = static_cast<std::uint64_t>(options.integer("full_every", 0, kMost));
    config.full_above = options.real("full_above", 0, 1e12);
    if (config.full_above > 0 && !options.flag("feedback")) {
      throw std::invalid_argument(
          "marsit: full_above goes by the residual, and with feedback=off there is none: "
          "leave one of them out");
    }
    read_step_size(options, config);
    config.torus = options.choice("topology", {"ring", "torus"}) == "torus";
    if (options.text("rows") != "auto") {
      config.rows = static_cast<int>(options.integer("rows", 1, 1 << 20));
      if (!config.torus) throw std::invalid_argument("marsit: rows goes with topology=torus");
    }
    config.drift_every = static_cast<std::uint64_t>(options.integer("drift_every", 0, kMost));
    auto marsit = std::make_unique<Marsit>(config);
    // Algorithm 2 compresses eta_l g, so that a one-bit step moves every parameter by eta_s.
    if (config.horizon != 0) return put_learning_rate_inside(std::move(marsit));
    return marsit;
  };
  return info;
}

}  // namespace thinwire
