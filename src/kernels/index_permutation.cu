// Places of indices on a CUDA device, one thread to an index.

#include "kernels/device.h"
#include "kernels/index_permutation.h"

namespace thinwire::cuda {
namespace {

/// `in` may be `out`.
template <bool kForward>
__global__ void __launch_bounds__(kThreads)
    walk_kernel(IndexPermutation permutation, std::uint32_t first, const std::uint32_t* in,
                std::uint32_t* out, std::size_t count) {
  for_each_element(
      count, [&](std::size_t i) { return in[i]; },
      [&](std::size_t i, std::uint32_t x) {
        out[i] = kForward ? permutation.place_of(x + first) : permutation.index_of(x + first);
      });
}

template <bool kForward>
void walk(Executor& executor, const IndexPermutation& permutation, std::uint32_t first,
          Span<const std::uint32_t> in, Span<std::uint32_t> out) {
  CudaExecutor& own = executor_on_device(executor);
  Operand i(own, in);
  Operand o(own, out);
  launch(own.stream(), grid_for_elements(in.size()), walk_kernel<kForward>, permutation, first, i.data(),
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
