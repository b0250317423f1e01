// The cut that keeps the k largest magnitudes, on a CUDA device: radix histograms in shared memory, one digit
// per pass. The last block of a pass to finish chooses the digit, so that nothing returns to the host in
// between. Then the cut itself, among elements that were listed.

#include "kernels/selection/radix_cut.h"

#include "kernels/device/device.h"
#include "kernels/device/device_algorithms.h"

namespace thinwire::cuda {
namespace {

constexpr unsigned kLoadsAtOnce = 8;

/// Sum of the values of the block's threads before this one; *total: of all.
__device__ std::uint32_t block_sum_before(std::uint32_t value, std::uint32_t* total) {
  __shared__ std::uint32_t sums[kThreads / kWarp];
  std::uint32_t sum = value;
  for (unsigned lanes = 1; lanes < kWarp; lanes *= 2) {
    const std::uint32_t before = __shfl_up_sync(kAllLanes, sum, lanes);
    if (lane_of_warp() >= lanes) sum += before;
  }
  if (lane_of_warp() == kWarp - 1) sums[threadIdx.x / kWarp] = sum;
  __syncthreads();
  std::uint32_t before = sum - value;
  *total = 0;
  for (unsigned warp = 0; warp < kThreads / kWarp; ++warp) {
    if (warp < threadIdx.x / kWarp) before += sums[warp];
    *total += sums[warp];
  }
  __syncthreads();
  return before;
}

/// The digit in whose bin the `wanted`-th largest lies, by all threads of a block.
__device__ void choose_digit(RadixDigit digit, std::uint64_t wanted, const std::uint32_t* bins,
                             RadixState* state) {
  const volatile std::uint32_t* counts = bins;  // of other blocks: not what a cache holds
  const unsigned per_thread = (1u << digit.bits) / kThreads;
  // Thread 0 has the highest bins. Nobody counted the bin of 0, which is what is left.
  const unsigned end = (1u << digit.bits) - threadIdx.x * per_thread;
  std::uint32_t own = 0;
  for (unsigned i = 1; i <= per_thread; ++i) own += counts[end - i];
  std::uint32_t total = 0;
  std::uint32_t above = block_sum_before(own, &total);
  const std::uint32_t known = state->bits;
  __syncthreads();
  if (above < wanted && wanted <= above + std::uint64_t{own}) {
    unsigned bin = end - 1;
    for (; counts[bin] < wanted - above; --bin) above += counts[bin];
    state->bits = known | bin << digit.shift;
    state->wanted = wanted - above;
  } else if (threadIdx.x == 0 && wanted > total) {
    state->wanted = wanted - total;
  }
}

/// One pass: counts the digit of all elements whose higher digits are state->bits, and chooses it.
THINWIRE_KERNEL void count_digit_kernel(SelectInput input, RadixDigit digit, unsigned pass, std::uint64_t k,
                                        RadixState* state) {
  __shared__ std::uint32_t bins[kMostBins];
  __shared__ bool last;
  for (unsigned bin = threadIdx.x; bin < kMostBins; bin += kThreads) bins[bin] = 0;
  __syncthreads();
  const std::uint32_t known = state->bits;
  const std::uint32_t known_mask = ~0u << (digit.shift + digit.bits);
  const std::uint32_t digit_mask = (1u << digit.bits) - 1;
  constexpr std::size_t kRound = kThreads * kLoadsAtOnce;
  for (std::size_t base = blockIdx.x * kRound; base < input.count; base += gridDim.x * kRound) {
    std::uint32_t magnitudes[kLoadsAtOnce];
#pragma unroll
    for (unsigned j = 0; j < kLoadsAtOnce; ++j) {
      const std::size_t i = base + j * kThreads + threadIdx.x;
      const float p = i < input.count ? sum_at(input.gradient, input.residual, i) : 0.0f;
      magnitudes[j] = magnitude_at(p);
    }
#pragma unroll
    for (unsigned j = 0; j < kLoadsAtOnce; ++j) {
      const std::uint32_t bin = (magnitudes[j] >> digit.shift) & digit_mask;
      // Sparse gradients: most are 0, and would all wait for one another.
      if ((magnitudes[j] & known_mask) == known && bin != 0) atomicAdd(&bins[bin], 1u);
    }
  }
  __syncthreads();
  for (unsigned bin = threadIdx.x; bin <= digit_mask; bin += kThreads) {
    if (bins[bin] != 0) atomicAdd(&state->bins[pass][bin], bins[bin]);
  }
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) last = atomicAdd(&state->blocks_done[pass], 1u) == gridDim.x - 1;
  __syncthreads();
  if (!last) return;
  __threadfence();
  choose_digit(digit, pass == 0 ? k : state->wanted, state->bins[pass], state);
}

// ---------------------------------------------------------------------------------------------------------
// Keeping what the cut keeps.

/// counts[tile]: values above the cut in the upper half, those equal to it in the lower.
THINWIRE_KERNEL void count_cut_kernel(Reads<float> values, std::size_t count, const RadixState* state,
                                      std::size_t tiles, Writes<std::uint64_t> counts) {
  __shared__ std::uint64_t of_warps[kThreads / kWarp];
  const std::uint32_t cut = state->bits;
  for (std::size_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    std::uint64_t own = 0;
#pragma unroll 8
    for (unsigned j = 0; j < kTile / kThreads; ++j) {
      const std::size_t i = tile * kTile + j * kThreads + threadIdx.x;
      const std::uint32_t bits = i < count ? magnitude_at(values[i]) : 0;
      own += bits > cut ? std::uint64_t{1} << 32 : std::uint64_t{bits == cut ? 1u : 0u};
    }
    own = warp_sum(own);
    if (lane_of_warp() == 0) of_warps[threadIdx.x / kWarp] = own;
    __syncthreads();
    if (threadIdx.x == 0) {
      std::uint64_t total = 0;
      for (const std::uint64_t of_warp : of_warps) total += of_warp;
      counts[tile] = total;
    }
    __syncthreads();
  }
}

/// Moves what the cut keeps. before: [tiles], as count_cut_kernel counts.
THINWIRE_KERNEL void keep_kernel(Reads<std::uint32_t> from_indices, Reads<float> from_values,
                                 std::size_t count, const RadixState* state, Reads<std::uint64_t> before,
                                 std::size_t tiles, Writes<std::uint32_t> indices, Writes<float> values) {
  const SelectInput input{from_values, nullptr, count};
  const bool aligned = aligned_for_four(from_values);
  const std::uint32_t cut = state->bits;
  const std::uint64_t kept_ties = state->wanted;
  for (std::size_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const std::size_t first = first_element(tile);
    float p[kGroups][4];
    unsigned above[kGroups];
    unsigned equal[kGroups];
#pragma unroll
    for (unsigned g = 0; g < kGroups; ++g) {
      load_four(input, aligned, first + g * 4 * kWarp, p[g]);
      above[g] = 0;
      equal[g] = 0;
#pragma unroll
      for (unsigned c = 0; c < 4; ++c) {
        above[g] |= (magnitude_at(p[g][c]) > cut ? 1u : 0u) << c;
        equal[g] |= (magnitude_at(p[g][c]) == cut ? 1u : 0u) << c;
      }
    }
    const TileRanks above_ranks(above);
    const TileRanks tie_ranks(equal);
#pragma unroll
    for (unsigned g = 0; g < kGroups; ++g) {
      std::uint64_t at = (before[tile] >> 32) + above_ranks.groups[g];
      std::uint64_t ties = (before[tile] & 0xffffffffu) + tie_ranks.groups[g];
#pragma unroll
      for (unsigned c = 0; c < 4; ++c) {
        const bool is_above = (above[g] >> c & 1) != 0;
        const bool is_equal = (equal[g] >> c & 1) != 0;
        if (is_above || (is_equal && ties < kept_ties)) {
          const std::uint64_t to = at + (ties < kept_ties ? ties : kept_ties);
          indices[to] = from_indices[first + g * 4 * kWarp + c];
          values[to] = p[g][c];
        }
        at += is_above ? 1 : 0;
        ties += is_equal ? 1 : 0;
      }
    }
  }
}

}  // namespace

RadixCut::RadixCut(CudaExecutor& executor, const SelectInput& input, std::size_t k)
    : executor_(executor), state_(executor, 1) {
  check(cudaMemsetAsync(state_.data(), 0, sizeof(RadixState), executor.stream()), "memory could not be set");
  for (unsigned pass = 0; pass < kRadixDigits.size(); ++pass) {
    launch(executor.stream(), grid_for(input.count, kLoadsAtOnce), count_digit_kernel, input,
           kRadixDigits[pass], pass, std::uint64_t{k}, state_.data());
  }
}

MagnitudeCut RadixCut::read() const {
  struct Head {
    std::uint32_t bits;
    std::uint32_t blocks_done[kRadixDigits.size()];
    std::uint64_t wanted;
  };
  static_assert(offsetof(Head, wanted) == offsetof(RadixState, wanted));
  auto* head = static_cast<Head*>(executor_.results(sizeof(Head)));
  submit_copy(executor_, reinterpret_cast<const Head*>(state_.data()), head, 1,
              "a result could not be copied");
  executor_.wait();
  if (head->bits == 0) return {};  // fewer than k are not 0
  return {.bits = head->bits, .ties = static_cast<std::size_t>(head->wanted)};
}

void keep_largest(CudaExecutor& executor, const std::uint32_t* indices, const float* values,
                  std::size_t count, const RadixState* state, std::uint32_t* kept_indices,
                  float* kept_values) {
  const std::size_t tiles = tiles_of(count);
  const Scratch<std::uint64_t> counts(executor, tiles);
  const Scratch<std::uint64_t> before(executor, tiles);
  launch(executor.stream(), grid_of_tiles(tiles), count_cut_kernel, values, count, state, tiles,
         counts.data());
  exclusive_sum(executor, counts.data(), before.data(), tiles);
  launch(executor.stream(), grid_of_tiles(tiles), keep_kernel, indices, values, count, state, before.data(),
         tiles, kept_indices, kept_values);
}

}  // namespace thinwire::cuda
