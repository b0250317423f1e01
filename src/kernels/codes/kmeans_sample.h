#pragma once
// Which elements ClusterFinder samples, and the bins that it counts them in; a CUDA device counts for it.

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "core/philox.h"
#include "thinwire/executor.h"
#include "thinwire/function_ref.h"
#include "thinwire/span.h"

namespace thinwire {

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
