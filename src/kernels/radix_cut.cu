// The cut that keeps the k largest magnitudes, on a CUDA device: radix histograms in shared memory, one digit
// per pass. The last block of a pass to finish chooses the digit, so that nothing returns to the host in
// between.

#include "kernels/device.h"
#include "kernels/select_device.h"

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
__global__ void __launch_bounds__(kThreads)
    count_digit_kernel(SelectInput input, RadixDigit digit, unsigned pass, std::uint64_t k,
                       RadixState* state) {
  __shared__ std::uint32_t bins[kMostBins];
  __shared__ bool last;
  for (unsigned bin = threadIdx.x; bin < kMostBins; bin += kThreads) bins[bin] = 0;
  __syncthreads();
  const std::uint32_t known = state->bits;
  const std::uint32_t known_mask = ~0u << (digit.shift + digit.bits);
  const std::uint32_t digit_mask = (1u << digit.bits) - 1;
  constexpr std::size_t kTile = kThreads * kLoadsAtOnce;
  for (std::size_t base = blockIdx.x * kTile; base < input.count; base += gridDim.x * kTile) {
    std::uint32_t magnitudes[kLoadsAtOnce];
#pragma unroll
    for (unsigned j = 0; j < kLoadsAtOnce; ++j) {
      const std::size_t i = base + j * kThreads + threadIdx.x;
      const float p = i < input.count ? sum_at(input.gradient, input.residual, i) : 0.0f;
      magnitudes[j] = __float_as_uint(p) & 0x7fffffffu;
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
  check(cudaMemcpyAsync(head, state_.data(), sizeof(Head), cudaMemcpyDefault, executor_.stream()),
        "a result could not be copied");
  executor_.wait();
  if (head->bits == 0) return {};  // fewer than k are not 0
  return {.bits = head->bits, .ties = static_cast<std::size_t>(head->wanted)};
}

}  // namespace thinwire::cuda
