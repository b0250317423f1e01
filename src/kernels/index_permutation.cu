// Places of indices on a CUDA device, one thread to an index.

#include "kernels/device.h"
#include "kernels/index_permutation.h"

namespace thinwire::cuda {
namespace {

/// Indices that a thread has in flight. `in` may be `out`, so the compiler could not read ahead by itself.
constexpr std::size_t kAtOnce = 4;

template <bool kForward>
__global__ void __launch_bounds__(kThreads)
    walk_kernel(IndexPermutation permutation, std::uint32_t first, const std::uint32_t* in,
                std::uint32_t* out, std::size_t count) {
  const std::size_t step = threads_of_grid();
  for (std::size_t i = thread_of_grid(); i < count; i += kAtOnce * step) {
    std::uint32_t x[kAtOnce] = {};
#pragma unroll
    for (std::size_t k = 0; k < kAtOnce; ++k) {
      if (i + k * step < count) x[k] = in[i + k * step] + first;
    }
#pragma unroll
    for (std::size_t k = 0; k < kAtOnce; ++k) {
      if (i + k * step >= count) continue;
      out[i + k * step] = kForward ? permutation.place_of(x[k]) : permutation.index_of(x[k]);
    }
  }
}

template <bool kForward>
void walk(Executor& executor, const IndexPermutation& permutation, std::uint32_t first,
          Span<const std::uint32_t> in, Span<std::uint32_t> out) {
  CudaExecutor& own = executor_on_device(executor);
  Operand i(own, in);
  Operand o(own, out);
  launch(own.stream(), grid_for(in.size(), kAtOnce), walk_kernel<kForward>, permutation, first, i.data(),
         o.data(), in.size());
  finish(own, i, o);
}

}  // namespace

void permute(Executor& executor, const IndexPermutation& permutation, Span<const std::uint32_t> indices,
             Span<std::uint32_t> places) {
  walk<true>(executor, permutation, 0, indices, places);
}

void unpermute(Executor& executor, const IndexPermutation& permutation, std::uint32_t first,
               Span<const std::uint32_t> places, Span<std::uint32_t> indices) {
  walk<false>(executor, permutation, first, places, indices);
}

}  // namespace thinwire::cuda
