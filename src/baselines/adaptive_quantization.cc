// ALQ and AMQ: random rounding to levels that follow the gradient's distribution, unbiased.
//
// Source: F. Faghri et al., "Adaptive gradient quantization for data-parallel SGD", NeurIPS 2020.
//
//   every `every` steps, rank 0: r = |p| / n of a sample --> histogram --> levels --broadcast--> all ranks
//   chunk of p, its norm n: |p| / n rounded up or down at random to a level
//     --all-gather--> mean of all Q(p), residual = p - Q(p)
//
// ALQ moves every level to where the expected variance is least given its neighbours, by coordinate descent.
// AMQ chooses the multiplier of exponential levels (kernels/codes/level_fit.h). A chunk's data counts with
// its norm's square, which makes the sum the expected variance. normalised=on counts all chunks alike (ALQ-N
// and AMQ-N).
//
// Bytes per rank: (W-1) * (ceil(bits d/8) + 4 ceil(d/chunk)). Every `every` steps the levels that may move go
// along the broadcast's tree: 4 (s-1) bytes, or 4 s with zero=off, s = 2^(bits-1) - 1.
//
// Deviations from the paper:
// - The paper fits a truncated normal to the statistics of r on every worker. Here a histogram of rank 0's
//   elements stands for all. Its levels are broadcast, so that all ranks have the same ones to the bit.
// - AMQ's levels in the paper leave 0 out and round between the smallest magnitude and its negative. So does
//   zero=off, which at 2 bits has one level to adapt. By default 0 is a level: at 2 bits the levels are 0 and
//   1, and nothing is left to adapt.
// - Codes have a fixed length and are not Huffman coded.
// - Until rank 0 has had something other than zeros the levels are the powers of 1/2.

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <stdexcept>
#include <vector>

#include "baselines/baselines.h"
#include "baselines/stochastic_quantizer.h"
#include "core/bucket_vectors.h"
#include "exchange/collectives.h"
#include "kernels/codes/level_fit.h"
#include "kernels/codes/quantize.h"
#include "kernels/dense/dense.h"
#include "kernels/device/on_device.h"
#include "thinwire/errors.h"
#include "thinwire/state.h"

namespace thinwire {
namespace {

enum class Fit { levels, multiplier };

/// Elements and chunks that a fit looks at, at most about.
// The same for all parameters of a bucket.
constexpr StateKind kLevels = {.name = "adaptive_levels"};

constexpr std::size_t kSampleElements = std::size_t{1} << 18;
constexpr std::size_t kSampleChunks = 64;

struct AdaptiveSettings {
  ChunkedQuantization chunked;
  Fit fit = Fit::levels;
  ZeroLevel zero = ZeroLevel::with;
  std::uint64_t every = 100;
  bool normalised = false;

  std::size_t levels() const { return std::size_t{1} << (chunked.bits - 1); }
  std::size_t first_free() const { return zero == ZeroLevel::with ? 1 : 0; }
  /// Levels that may move: all but 0 and 1.
  std::size_t free() const { return levels() - 1 - first_free(); }
};

using LevelValues = std::array<float, QuantizationLevels::kMost>;

/// Floats that still ascend strictly to 1, from levels[first] on.
LevelValues as_floats(Span<const double> levels, std::size_t first) {
  constexpr float kLeast = 0x1p-60f;
  constexpr float kApart = 1 - 0x1p-16f;
  LevelValues values{};
  std::size_t j = levels.size() - 1;
  values[j] = 1;
  while (j-- > first) {
    values[j] = std::min(std::max(static_cast<float>(levels[j]), kLeast), values[j + 1] * kApart);
  }
  return values;
}

/// A part of a vector where the CPU can read it.
class HostCopy {
 public:
  HostCopy(Executor& executor, Span<const float> values) : values_(values) {
    if (!on_device(values)) return;
    copy_.resize(values.size());
    copy(executor, values, Span<float>(copy_));
    values_ = copy_;
  }
  float operator[](std::size_t i) const { return values_[i]; }

 private:
  std::vector<float> copy_;
  Span<const float> values_;
};

/// |p| / norm of a sample of evenly spaced chunks. False when there is nothing to fit to: only zeros, or a
/// value that is not finite.
bool sample_magnitudes(const AdaptiveSettings& settings, Span<const float> gradient,
                       Span<const float> residual, Executor& executor, MagnitudeHistogram& magnitudes) {
  const std::size_t chunk = settings.chunked.chunk;
  const std::size_t chunks = chunk_count(gradient.size(), chunk);
  const std::size_t taken = std::min(chunks, kSampleChunks);
  const std::size_t stride = taken * std::min(chunk, gradient.size()) / kSampleElements + 1;
  for (std::size_t i = 0; i < taken; ++i) {
    const std::size_t begin = i * chunks / taken * chunk;
    const std::size_t count = std::min(chunk, gradient.size() - begin);
    const auto g = gradient.subspan(begin, count);
    const auto r = residual.subspan(begin, count);
    const double norm = settings.chunked.norm == QuantizationNorm::largest
                            ? static_cast<double>(largest_magnitude(executor, g, r))
                            : std::sqrt(sum_of_squares(executor, g, r));
    if (!std::isfinite(norm)) return false;
    if (norm < static_cast<double>(std::numeric_limits<float>::min())) continue;
    const double weight = settings.normalised ? 1 : norm * norm;
    const HostCopy host_g(executor, g);
    const HostCopy host_r(executor, r);
    for (std::size_t e = 0; e < count; e += stride) {
      const double p = static_cast<double>(host_g[e]) + (r.empty() ? 0 : static_cast<double>(host_r[e]));
      magnitudes.add(static_cast<float>(std::fabs(p) / norm), weight);
    }
  }
  return magnitudes.finish();
}

class AdaptiveQuantization final : public Synchronizer {
 public:
  explicit AdaptiveQuantization(const AdaptiveSettings& settings) : settings_(settings) {}

  void synchronize(BucketId bucket, Span<float> gradient, Span<float> residual, Step& step) override {
    const BucketState* known = states_.find(bucket);
    BucketState state;
    if (known != nullptr) {
      state = *known;
    } else {
      state.levels = starting_levels();
    }
    step.report.formula_bytes =
        coded_bytes(gradient.size(), settings_.chunked.shape(gradient.size()), step.communicator.size());
    const bool due = known == nullptr || step.index % settings_.every == 0;
    const bool fitted = due && settings_.free() != 0 && refit(bucket, gradient, residual, step, state);
    average_quantized(bucket, gradient, residual, step, settings_.chunked, state.levels);
    if (!fitted || !step.report.finite) return;
    state.parameters = std::max<std::size_t>(1, step.parameter_ends.size());
    states_.open(bucket) = state;
  }

  std::uint64_t payload_bytes(const Workload& workload) const override {
    if (workload.elements == 0) return 0;
    // Not counted, for the formula knows no history: steps that fit because none before has.
    const std::uint64_t agreed =
        workload.step % settings_.every == 0
            ? broadcast_payload_bytes(4 * settings_.free(), workload.rank, workload.world_size)
            : 0;
    return agreed +
           coded_bytes(workload.elements, settings_.chunked.shape(workload.elements), workload.world_size);
  }

  void save(BucketWriter& writer) const override {
    states_.for_each([&](BucketId bucket, const BucketState& state) {
      for (std::size_t parameter = 0; parameter < state.parameters; ++parameter) {
        writer.array(kLevels, bucket, parameter, state.levels.used());
      }
    });
  }

  void load(const BucketReader& reader) override {
    std::map<BucketId, BucketState> loaded;
    for (BucketId bucket = 0; bucket < reader.buckets(); ++bucket) {
      std::vector<float> values(settings_.levels());
      for (std::size_t parameter = 0; parameter < reader.parameters(bucket); ++parameter) {
        if (!reader.array(kLevels, bucket, parameter, Span<float>(values))) continue;
        loaded[bucket] = {levels_in_state(values), reader.parameters(bucket)};
        break;
      }
    }
    states_.assign(std::move(loaded));
  }
  void keep_step(BucketId bucket) override { states_.keep(bucket); }
  void undo_step(BucketId bucket) override { states_.undo(bucket); }

 private:
  struct BucketState {
    QuantizationLevels levels;
    std::size_t parameters = 1;
  };

  static QuantizationLevels levels_in_state(Span<const float> values) {
    try {
      return QuantizationLevels::given(values);
    } catch (const std::invalid_argument& error) {
      throw std::runtime_error(std::string("the state has levels that cannot be: ") + error.what());
    }
  }

  QuantizationLevels starting_levels() const {
    std::array<double, QuantizationLevels::kMost> storage{};
    const Span<double> levels(storage.data(), settings_.levels());
    exponential_levels(0.5, settings_.zero, levels);
    const LevelValues values = as_floats(levels, settings_.first_free());
    return QuantizationLevels::given(Span<const float>(values).first(settings_.levels()));
  }

  /// Takes over rank 0's levels. False when it has none to offer. Collective.
  bool refit(BucketId bucket, Span<const float> gradient, Span<const float> residual, Step& step,
             BucketState& state) {
    LevelValues values{};
    const Span<float> free(values.data() + settings_.first_free(), settings_.free());
    bool usable = true;
    if (step.communicator.rank() == 0) {
      MagnitudeHistogram magnitudes;
      usable = sample_magnitudes(settings_, gradient, residual, step.executor, magnitudes);
      if (usable) {
        std::array<double, QuantizationLevels::kMost> storage{};
        const Span<double> levels(storage.data(), settings_.levels());
        if (settings_.fit == Fit::levels) {
          fit_levels(magnitudes, settings_.zero, levels);
        } else {
          fit_multiplier(magnitudes, settings_.zero, levels);
        }
        values = as_floats(levels, settings_.first_free());
      }
    }
    if (!take_from_rank_0(step, free, usable)) return false;
    if (settings_.zero == ZeroLevel::with) values[0] = 0;
    values[settings_.levels() - 1] = 1;
    try {
      state.levels = QuantizationLevels::given(Span<const float>(values).first(settings_.levels()));
    } catch (const std::invalid_argument& error) {
      throw CorruptFrame("rank 0 sent levels for bucket " + std::to_string(bucket) +
                         " that cannot be: " + error.what());
    }
    return true;
  }

  AdaptiveSettings settings_;
  BucketStates<BucketState> states_;
};

SystemInfo adaptive_info(Fit fit) {
  SystemInfo info;
  info.paper = "Faghri et al., Adaptive gradient quantization, NeurIPS 2020";
  info.formula =
      "(W-1) * (ceil(bits d/8) + 4 ceil(d/chunk)); every N steps 4 (2^(bits-1) - 2) more along a tree "
      "(zero=off: - 1)";
  info.state = {kLevels};
  info.undoes_steps = true;
  info.options = chunked_options("l2");
  info.options.push_back(
      {"zero", "on", "whether 0 is a level; off: rounds between the lowest and its negative"});
  info.options.push_back({"every", "100", "steps between fits"});
  info.options.push_back(
      {"normalised", "off", "count all chunks alike in a fit, instead of by the square of their norm"});
  info.make = [fit](const Options& options, Inner) -> std::unique_ptr<Synchronizer> {
    AdaptiveSettings settings;
    settings.chunked = read_chunked_options(options);
    settings.fit = fit;
    settings.zero = options.flag("zero") ? ZeroLevel::with : ZeroLevel::without;
    settings.every = static_cast<std::uint64_t>(options.integer("every", 1, 1'000'000'000));
    settings.normalised = options.flag("normalised");
    return std::make_unique<AdaptiveQuantization>(settings);
  };
  return info;
}

}  // namespace

SystemInfo alq_info() {
  SystemInfo info = adaptive_info(Fit::levels);
  info.name = "alq";
  info.summary = "random rounding to levels of least variance for the gradient at hand, unbiased";
  return info;
}

SystemInfo amq_info() {
  SystemInfo info = adaptive_info(Fit::multiplier);
  info.name = "amq";
  info.summary = "random rounding to powers of a multiplier of least variance, unbiased";
  return info;
}

}  // namespace thinwire
