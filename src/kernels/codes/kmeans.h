#pragma once
// CASQ's clustering: the centres that a sample of the elements gathers around, by sign, and what the sizes of
// their arrays of cells depend on.

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "core/philox.h"
#include "kernels/codes/cluster_sketch.h"
#include "thinwire/executor.h"
#include "thinwire/function_ref.h"
#include "thinwire/span.h"

namespace thinwire {

// Which elements ClusterFinder samples, and the bins that it counts them in; a CUDA device counts for it.

/// Consecutive elements that are sampled together: one of every stratum.
inline constexpr std::size_t kSampleRun = 16;
/// The exponent and 7 bits of the mantissa tell the bin.
inline constexpr std::uint32_t kBinShift = 16;
inline constexpr std::size_t kBins = std::size_t{1} << (31 - kBinShift);

struct Sample {
  std::size_t elements = 0;
  std::size_t period = kSampleRun;  ///< Of a stratum.
  std::uint32_t seed = 0;

  Sample(std::size_t n, double fraction, std::uint32_t seed_)
      : elements(n), period(static_cast<std::size_t>(std::llround(1 / fraction)) * kSampleRun), seed(seed_) {
    constexpr std::size_t kFewest = 4096;
    if (n / period * kSampleRun < kFewest) period = kSampleRun;
  }

  constexpr std::size_t strata() const { return (elements + period - 1) / period; }
  /// Tells where the samples of strata 4 i to 4 i + 3 lie.
  constexpr PhiloxCounter random_of(std::size_t i) const {
    return philox4x32({static_cast<std::uint32_t>(i), 0, 0, 0}, {seed, 0});
  }
  constexpr std::size_t begin(std::size_t stratum, std::uint32_t random) const {
    const std::size_t run = (std::uint64_t{random} * (period / kSampleRun)) >> 32;
    return stratum * period + run * kSampleRun;
  }
};

}  // namespace thinwire

namespace thinwire::cuda {

/// A bin's elements: how many, and the sum of what their magnitudes' bits have below kBinShift.
struct BinCount {
  unsigned long long count;
  unsigned long long low;
};

/// Counts the sample of p = gradient + residual on the device. Calls use(sign, first, counts) for each sign
/// that has elements, 1 below 0: bins from `first` on, the last of them not empty.
void count_sample(Executor& executor, Span<const float> gradient, Span<const float> residual,
                  const Sample& sample,
                  FunctionRef<void(std::size_t sign, std::size_t first, Span<const BinCount> counts)> use);

}  // namespace thinwire::cuda

namespace thinwire {

/// One cluster of a sample.
struct Cluster {
  double centre = 0;    ///< Mean of its elements.
  double share = 0;     ///< Of all sampled elements.
  double variance = 0;  ///< Of its elements.
  /// In bits, of its histogram over 256 bins from the least sampled value to the largest.
  double entropy = 0;
};

/// Where a sign's centres are: where the squared distances are least (K-means), or at ALQ's levels
/// (kernels/codes/level_fit.h) of the magnitudes of both signs over a norm, which is that of 8,192 elements.
/// An element belongs to the nearest one.
enum class CentreKind : std::uint8_t { kmeans, alq };

enum class SampleKind { usable, all_zero, not_finite };

/// Finds clusters of p = gradient + residual in one dimension: 2^(bits-1) for each sign, those of a sign with
/// the least sum of squared distances to their means, exactly (by dynamic programming) over bins of relative
/// width 2^-7. A sign of which the sample has no magnitude but 0 takes the mirrored clusters of the other,
/// with share 0; where a sign has fewer distinct magnitudes than levels, the levels above repeat its largest.
///
/// The sample: 16 consecutive elements of every round(1/fraction) * 16, at a place that `seed` chooses; all
/// of a span that is so short that fewer than 4,096 would be left. The same on every machine for equal input.
///
/// Elements on a CUDA device are counted there; what is made of the counts is the CPU's work.
class ClusterFinder {
 public:
  /// Takes 4 MB of the workspace, of which little is touched.
  ClusterFinder(Executor& executor, Workspace& workspace);

  /// fraction: above 0, at most 1. Unless the sample is usable, clusters is not written. Serial: about 4 ns
  /// for each sampled element that the CPU counts and up to 1 ms.
  SampleKind find(Span<const float> gradient, Span<const float> residual, std::size_t bits, double fraction,
                  std::uint32_t seed, PerCluster<Cluster>& clusters, CentreKind kind = CentreKind::kmeans);

 private:
  struct Bin {
    std::uint64_t count;
    double sum;  // of magnitudes
  };
  /// Bins of one sign that are not empty lie in [first, last).
  struct Range {
    std::size_t first;
    std::size_t last;
  };
  struct Prefixes;

  bool fill(Span<const float> gradient, Span<const float> residual, const Sample& sample);
  void count(Span<const float> gradient, Span<const float> residual, const Sample& sample);
  void count_on_device(Span<const float> gradient, Span<const float> residual, const Sample& sample);
  Prefixes drain(std::size_t sign);
  static void find_alq_levels(const std::array<Prefixes, 2>& signs, Span<double> levels);
  void cut_into_levels(const Prefixes& prefixes, std::size_t levels, Span<std::size_t> ends);

  Executor& executor_;
  Span<Bin> bins_;  // all empty between calls; those of elements below 0 behind the others
  // Of one call.
  Span<double> sums_;
  Span<double> best_;
  Span<std::uint32_t> cuts_;
  std::array<Range, 2> used_{};
};

}  // namespace thinwire
