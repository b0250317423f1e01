// Slots of indices on a CUDA device, one thread to an index.

#include "kernels/device/device.h"
#include "kernels/rows/index_permutation.h"

namespace thinwire {
using namespace cuda;
namespace {

/// `in` may be `out`.
template <bool kForward>
THINWIRE_KERNEL void walk_kernel(IndexPermutation permutation, std::uint32_t first, const std::uint32_t* in,
                                 std::uint32_t* out, std::size_t count) {
  for_each_element(
      count, [&](std::size_t i) { return in[i]; },
      [&](std::size_t i, std::uint32_t x) {
        out[i] = kForward ? permutation.slot_of(x + first) : permutation.index_of(x + first);
      });
}

THINWIRE_KERNEL void walk_into_kernel(IndexPermutation permutation, std::uint32_t first, std::uint32_t owned,
                                      const std::uint32_t* in, std::uint32_t* out, std::size_t count,
                                      std::uint32_t* flag) {
  bool wrong = false;
  for_each_element(
      count, [&](std::size_t i) { return in[i]; },
      [&](std::size_t i, std::uint32_t x) {
        const std::uint32_t slot = permutation.slot_of(x) - first;  // something large when below
        out[i] = slot;
        wrong = wrong || slot >= owned;
      });
  report_if(wrong, flag);
}

template <bool kForward>
void walk(Executor& executor, const IndexPermutation& permutation, std::uint32_t first,
          Span<const std::uint32_t> in, Span<std::uint32_t> out) {
  run(executor, grid_for_elements(in.size()), walk_kernel<kForward>, permutation, first, in, out, in.size());
}

}  // namespace

void permute_on_cuda(Executor& executor, const IndexPermutation& permutation,
                     Span<const std::uint32_t> indices, Span<std::uint32_t> slots) {
  walk<true>(executor, permutation, 0, indices, slots);
}

bool permute_into_on_cuda(Executor& executor, const IndexPermutation& permutation, std::uint32_t first,
                          std::uint32_t count, Span<const std::uint32_t> indices, Span<std::uint32_t> slots) {
  return run_flagged(executor, grid_for_elements(indices.size()), walk_into_kernel, permutation, first, count,
                     indices, slots, indices.size());
}

void unpermute_on_cuda(Executor& executor, const IndexPermutation& permutation, std::uint32_t first,
                       Span<const std::uint32_t> slots, Span<std::uint32_t> indices) {
  walk<false>(executor, permutation, first, slots, indices);
}

}  // namespace thinwire
