// Sign bits on a CUDA device. A warp votes: lane l of a vote is bit l of half a word.

#include "kernels/device.h"
#include "kernels/sign_bits.h"

namespace thinwire::cuda {
namespace {

/// Words that a warp packs at once: its lanes write them side by side, which matters most where they go to
/// the host over a bus.
constexpr unsigned kWordsAtOnce = 16;

__global__ void __launch_bounds__(kThreads)
    pack_kernel(const float* __restrict__ gradient, const float* __restrict__ residual, std::size_t count,
                std::uint64_t* __restrict__ bits, std::uint32_t* flag) {
  const std::size_t words = (count + 63) / 64;
  const unsigned lane = lane_of_warp();
  bool wrong = false;
  for (std::size_t first = warp_of_grid() * kWordsAtOnce; first < words;
       first += warps_of_grid() * kWordsAtOnce) {
    std::uint64_t own = 0;
#pragma unroll 4
    for (unsigned k = 0; k < kWordsAtOnce; ++k) {
      const std::size_t low = (first + k) * 64 + lane;
      const std::size_t high = low + kWarp;
      const float a = low < count ? sum_at(gradient, residual, low) : -1.0f;
      const float b = high < count ? sum_at(gradient, residual, high) : -1.0f;
      wrong = wrong || !is_finite(a) || !is_finite(b);
      const std::uint64_t word = __ballot_sync(kAllLanes, a >= 0.0f) |
                                 (static_cast<std::uint64_t>(__ballot_sync(kAllLanes, b >= 0.0f)) << kWarp);
      if (lane == k) own = word;
    }
    if (lane < kWordsAtOnce && first + lane < words) bits[first + lane] = own;
  }
  report_if(wrong, flag);
}

__global__ void __launch_bounds__(kThreads)
    merge_kernel(std::uint64_t* __restrict__ own, const std::uint64_t* __restrict__ received,
                 const std::uint64_t* __restrict__ take_own, std::size_t words) {
  for (std::size_t i = thread_of_grid(); i < words; i += threads_of_grid()) {
    own[i] = (take_own[i] & own[i]) | (~take_own[i] & received[i]);
  }
}

/// gradient = mean where there is one, else the step itself.
__global__ void __launch_bounds__(kThreads)
    apply_kernel(const std::uint64_t* __restrict__ bits, float scale, const float* __restrict__ mean,
                 std::size_t count, float* __restrict__ gradient, float* __restrict__ residual,
                 double* __restrict__ sums) {
  double squares = 0;
  for (std::size_t i = thread_of_grid(); i < count; i += threads_of_grid()) {
    const float step = bit_at(bits, i) ? scale : -scale;
    if (residual != nullptr) {
      const float left = gradient[i] + residual[i] - step;
      residual[i] = left;
      squares += static_cast<double>(left) * static_cast<double>(left);
    }
    gradient[i] = mean != nullptr ? mean[i] : step;
  }
  if (residual != nullptr) write_block_sum(squares, sums + blockIdx.x);
}

__global__ void __launch_bounds__(kThreads)
    accumulate_kernel(const std::uint64_t* __restrict__ bits, float scale, std::size_t count,
                      float* __restrict__ sums) {
  for (std::size_t i = thread_of_grid(); i < count; i += threads_of_grid()) {
    sums[i] += bit_at(bits, i) ? scale : -scale;
  }
}

}  // namespace

bool pack_signs(Executor& executor, Span<const float> gradient, Span<const float> residual,
                Span<std::uint64_t> bits) {
  CudaExecutor& own = executor_on_device(executor);
  const Operand g(own, gradient);
  const Operand r(own, residual);
  Operand b(own, bits);
  const Findings findings(own);
  launch(own.stream(), grid_for(sign_words(gradient.size()), 1), pack_kernel, g.data(), r.data(),
         gradient.size(), b.data(), findings.flag());
  finish(own, b);
  return !findings.flagged();
}

void merge_signs(Executor& executor, Span<std::uint64_t> own_bits, Span<const std::uint64_t> received,
                 Span<const std::uint64_t> take_own) {
  CudaExecutor& own = executor_on_device(executor);
  Operand o(own, own_bits);
  Operand r(own, received);
  Operand t(own, take_own);
  launch(own.stream(), grid_for(own_bits.size()), merge_kernel, o.data(), r.data(), t.data(),
         own_bits.size());
  finish(own, o, r, t);
}

double subtract_signs(Executor& executor, Span<const std::uint64_t> bits, float scale, Span<const float> mean,
                      Span<float> gradient, Span<float> residual) {
  CudaExecutor& own = executor_on_device(executor);
  Operand b(own, bits);
  Operand m(own, mean);
  Operand g(own, gradient);
  Operand r(own, residual);
  const Grid grid = grid_for(gradient.size());
  const Findings findings(own, grid);
  launch(own.stream(), grid, apply_kernel, b.data(), scale, m.data(), gradient.size(), g.data(), r.data(),
         findings.sums());
  finish(own, b, m, g, r);
  return residual.empty() ? 0 : findings.sum();
}

void accumulate_signs(Executor& executor, Span<const std::uint64_t> bits, float scale, Span<float> sums) {
  CudaExecutor& own = executor_on_device(executor);
  Operand b(own, bits);
  Operand s(own, sums);
  launch(own.stream(), grid_for(sums.size()), accumulate_kernel, b.data(), scale, sums.size(), s.data());
  finish(own, b, s);
}

}  // namespace thinwire::cuda
