// Bitmaps on a CUDA device.

#include "kernels/rows/bitmap.h"

#include "kernels/device/device.h"
#include "kernels/rows/bit_list.h"

namespace thinwire {
using namespace cuda;
namespace {

THINWIRE_KERNEL void set_kernel(Reads<std::uint32_t> positions, std::size_t count,
                                Writes<unsigned long long> bitmap) {
  for (std::size_t k = thread_of_grid(); k < count; k += threads_of_grid()) {
    const std::uint32_t position = positions[k];
    atomicOr(bitmap + position / 64, 1ull << (position % 64));
  }
}

THINWIRE_KERNEL void count_kernel(Reads<std::uint64_t> bits, std::size_t words,
                                  Writes<std::uint32_t> counts) {
  for (std::size_t w = thread_of_grid(); w < words; w += threads_of_grid()) {
    counts[w] = static_cast<std::uint32_t>(__popcll(bits[w]));
  }
}

THINWIRE_KERNEL void rank_kernel(Reads<std::uint64_t> bits, Reads<std::uint32_t> before,
                                 Reads<std::uint32_t> positions, std::size_t count,
                                 Writes<std::uint32_t> ranks) {
  for (std::size_t k = thread_of_grid(); k < count; k += threads_of_grid()) {
    ranks[k] = rank_at(bits, before, positions[k]);
  }
}

struct WritePosition {
  std::uint32_t* positions;
  __device__ void operator()(std::size_t k, std::size_t position) const {
    positions[k] = static_cast<std::uint32_t>(position);
  }
};

}  // namespace

void clear_bitmap_on_cuda(Executor& executor, Span<std::uint64_t> bitmap) {
  check(cudaMemsetAsync(bitmap.data(), 0, bitmap.size_bytes(), executor_on_device(executor).stream()),
        "a bitmap could not be cleared");
}

void set_bits_on_cuda(Executor& executor, Span<const std::uint32_t> positions, Span<std::uint64_t> bitmap) {
  CudaExecutor& own = executor_on_device(executor);
  Operand p(own, positions);
  Resident b(own, bitmap);
  static_assert(sizeof(unsigned long long) == sizeof(std::uint64_t));
  launch(own.stream(), grid_for(positions.size()), set_kernel, p.data(), positions.size(),
         reinterpret_cast<unsigned long long*>(b.data()));
  finish(own, p, b);
}

std::size_t count_bits_before_on_cuda(Executor& executor, Span<const std::uint64_t> bitmap,
                                      Span<std::uint32_t> before) {
  CudaExecutor& own = executor_on_device(executor);
  Operand b(own, bitmap);
  Resident counts(own, before, false);
  launch(own.stream(), grid_for(bitmap.size()), count_kernel, b.data(), bitmap.size(), counts.data());
  const std::size_t total = sum_counts(own, b.data(), counts.data(), bitmap.size());
  finish(own, b, counts);
  return total;
}

void list_bits_on_cuda(Executor& executor, Span<const std::uint64_t> bitmap, Span<const std::uint32_t> before,
                       Span<std::uint32_t> positions) {
  CudaExecutor& own = executor_on_device(executor);
  Operand b(own, bitmap);
  Operand f(own, before);
  Operand p(own, positions);
  list_marked(own, b.data(), f.data(), bitmap.size(), positions.size(), WritePosition{p.data()});
  finish(own, b, f, p);
}

void find_ranks_on_cuda(Executor& executor, Span<const std::uint64_t> bitmap,
                        Span<const std::uint32_t> before, Span<const std::uint32_t> positions,
                        Span<std::uint32_t> ranks) {
  CudaExecutor& own = executor_on_device(executor);
  Resident b(own, bitmap);
  Resident f(own, before);
  Operand p(own, positions);
  Operand r(own, ranks);
  launch(own.stream(), grid_for(positions.size()), rank_kernel, b.data(), f.data(), p.data(),
         positions.size(), r.data());
  finish(own, b, f, p, r);
}

}  // namespace thinwire
