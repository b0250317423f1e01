// ClusterFinder's sample on a CUDA device. Integers alone are added: elements of one bin differ only in the
// low bits of their magnitudes, so the order of the atomics leaves no trace, and the host's sums, which are
// exact too, come out the same.

#include <array>

#include "kernels/codes/kmeans.h"
#include "kernels/device/device.h"

namespace thinwire::cuda {
namespace {

/// Of one sign, all zero where nothing was seen.
struct SeenBins {
  unsigned below_least;  ///< Bins above and with the least one.
  unsigned most;         ///< One more than the largest bin.
};

struct Counts {
  std::array<std::array<BinCount, kBins>, 2> of_sign;
  std::array<SeenBins, 2> seen;
};

__device__ unsigned warp_max(unsigned value) {
  for (int lanes = kWarp / 2; lanes > 0; lanes /= 2) {
    const unsigned other = __shfl_xor_sync(kAllLanes, value, lanes);
    value = other > value ? other : value;
  }
  return value;
}

THINWIRE_KERNEL void count_kernel(Reads<float> gradient, Reads<float> residual, Sample sample,
                                  Writes<Counts> counts) {
  SeenBins seen[2] = {};
  unsigned long long zeros = 0;  // one bin that many may share
  const std::size_t sampled = sample.strata() * kSampleRun;
  for (std::size_t k = thread_of_grid(); k < sampled; k += threads_of_grid()) {
    const std::size_t stratum = k / kSampleRun;
    const PhiloxCounter words = sample.random_of(stratum / 4);
    const std::uint32_t low_word = stratum % 2 == 0 ? words[0] : words[1];
    const std::uint32_t high_word = stratum % 2 == 0 ? words[2] : words[3];
    const std::size_t i = sample.begin(stratum, stratum % 4 < 2 ? low_word : high_word) + k % kSampleRun;
    if (i >= sample.elements) continue;
    const float p = sum_at(gradient, residual, i);
    const unsigned magnitude = __float_as_uint(p) & 0x7fffffffu;
    const unsigned sign = p < 0.0f ? 1 : 0;
    const unsigned bin = magnitude >> kBinShift;
    const auto below = static_cast<unsigned>(kBins) - bin;
    if (seen[sign].below_least < below) seen[sign].below_least = below;
    if (seen[sign].most < bin + 1) seen[sign].most = bin + 1;
    if (magnitude == 0) {
      ++zeros;
      continue;
    }
    BinCount& own = counts->of_sign[sign][bin];
    atomicAdd(&own.count, 1ull);
    atomicAdd(&own.low, static_cast<unsigned long long>(magnitude & ((1u << kBinShift) - 1)));
  }
  zeros = warp_sum(zeros);
  if (lane_of_warp() == 0 && zeros != 0) atomicAdd(&counts->of_sign[0][0].count, zeros);
  for (unsigned sign = 0; sign < 2; ++sign) {
    const unsigned below = warp_max(seen[sign].below_least);
    const unsigned most = warp_max(seen[sign].most);
    if (lane_of_warp() == 0 && most != 0) {
      atomicMax(&counts->seen[sign].below_least, below);
      atomicMax(&counts->seen[sign].most, most);
    }
  }
}

}  // namespace

void count_sample(Executor& executor, Span<const float> gradient, Span<const float> residual,
                  const Sample& sample,
                  FunctionRef<void(std::size_t sign, std::size_t first, Span<const BinCount> counts)> use) {
  CudaExecutor& own = executor_on_device(executor);
  const Scratch<Counts> counts(own, 1);
  check(cudaMemsetAsync(counts.data(), 0, sizeof(Counts), own.stream()), "no zeros");
  run(own, grid_for(sample.strata() * kSampleRun, 4), count_kernel, gradient, residual, sample,
      counts.data());
  // The bins that are used are few, which is worth finding out before they cross the bus.
  auto* const seen_there = static_cast<SeenBins*>(own.results(2 * sizeof(SeenBins)));
  submit_copy(own, counts.data()->seen.data(), seen_there, 2, "counts could not be copied");
  own.wait();
  const std::array<SeenBins, 2> seen = {seen_there[0], seen_there[1]};
  std::array<std::size_t, 2> first{};
  std::array<std::size_t, 2> size{};
  for (std::size_t sign = 0; sign < 2; ++sign) {
    if (seen[sign].most == 0) continue;
    first[sign] = kBins - seen[sign].below_least;
    size[sign] = seen[sign].most - first[sign];
  }
  auto* const bins = static_cast<BinCount*>(own.results((size[0] + size[1]) * sizeof(BinCount)));
  for (std::size_t sign = 0; sign < 2; ++sign) {
    submit_copy(own, &counts.data()->of_sign[sign][first[sign]], bins + sign * size[0], size[sign],
                "counts could not be copied");
  }
  own.wait();
  for (std::size_t sign = 0; sign < 2; ++sign) {
    if (size[sign] != 0) use(sign, first[sign], {bins + sign * size[0], size[sign]});
  }
}

}  // namespace thinwire::cuda
