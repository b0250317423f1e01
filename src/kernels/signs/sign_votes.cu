// Counters as bit planes on a CUDA device: a thread has 64 of them.

#include "kernels/device/device.h"
#include "kernels/signs/sign_votes.h"

namespace thinwire {
using namespace cuda;
namespace {

THINWIRE_KERNEL void add_kernel(Writes<std::uint64_t> planes, std::size_t words, int plane_count,
                                Reads<std::uint64_t> bits) {
  for (std::size_t i = thread_of_grid(); i < words; i += threads_of_grid()) {
    std::uint64_t carry = bits[i];
    // Four planes are read before the first is written.
    for (int first = 0; first < plane_count; first += 4) {
      const int here = plane_count - first < 4 ? plane_count - first : 4;
      std::uint64_t* plane = planes + static_cast<std::size_t>(first) * words + i;
      std::uint64_t old[4];
#pragma unroll
      for (int k = 0; k < 4; ++k) old[k] = k < here ? plane[static_cast<std::size_t>(k) * words] : 0;
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        if (k < here) plane[static_cast<std::size_t>(k) * words] = old[k] ^ carry;
        carry &= old[k];
      }
    }
  }
}

/// Compares with workers / 2 digit by digit, the most significant plane first.
THINWIRE_KERNEL void majority_kernel(Reads<std::uint64_t> planes, std::size_t words, int plane_count,
                                     std::uint32_t workers, Reads<std::uint64_t> ties,
                                     Writes<std::uint64_t> majority) {
  const std::uint32_t half = workers / 2;
  for (std::size_t i = thread_of_grid(); i < words; i += threads_of_grid()) {
    std::uint64_t above = 0;
    std::uint64_t equal = ~std::uint64_t{0};
#pragma unroll 4
    for (int k = plane_count - 1; k >= 0; --k) {
      const std::uint64_t digit = planes[static_cast<std::size_t>(k) * words + i];
      const bool one = ((half >> k) & 1) != 0;
      if (!one) above |= equal & digit;
      equal &= one ? digit : ~digit;
    }
    if (workers % 2 == 0) above |= equal & ties[i];
    majority[i] = above;
  }
}

}  // namespace

void add_votes_on_cuda(Executor& executor, Span<std::uint64_t> planes, int plane_count,
                       Span<const std::uint64_t> bits) {
  run(executor, grid_for(bits.size()), add_kernel, planes, bits.size(), plane_count, bits);
}

void majority_of_votes_on_cuda(Executor& executor, Span<const std::uint64_t> planes, int plane_count,
                               std::uint32_t workers, Span<const std::uint64_t> ties,
                               Span<std::uint64_t> majority) {
  run(executor, grid_for(majority.size()), majority_kernel, planes, majority.size(), plane_count, workers,
      ties, majority);
}

}  // namespace thinwire
