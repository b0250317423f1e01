// Chunks of a vector on a CUDA device.

#include "kernels/dense/vector_chunks.h"
#include "kernels/device/device.h"

namespace thinwire {
using namespace cuda;
namespace {

/// use(where an element lies in the vector, where it lies among the chunks).
template <class Use>
__device__ void for_each_of_chunks(const VectorChunk* chunks, std::size_t count, std::size_t elements,
                                   Use use) {
  for (std::size_t at = thread_of_grid(); at < elements; at += threads_of_grid()) {
    std::size_t low = 0;
    std::size_t high = count;
    while (high - low > 1) {
      const std::size_t middle = low + (high - low) / 2;
      (chunks[middle].offset <= at ? low : high) = middle;
    }
    use(chunks[low].begin + (at - chunks[low].offset), at);
  }
}

THINWIRE_KERNEL void gather_kernel(Reads<VectorChunk> chunks, std::size_t count, std::size_t elements,
                                   Reads<float> values, Writes<float> target) {
  for_each_of_chunks(chunks, count, elements, [&](std::size_t i, std::size_t at) { target[at] = values[i]; });
}

THINWIRE_KERNEL void scatter_kernel(Reads<VectorChunk> chunks, std::size_t count, std::size_t elements,
                                    Reads<float> values, Writes<float> gradient, Writes<float> residual) {
  for_each_of_chunks(chunks, count, elements, [&](std::size_t i, std::size_t at) {
    gradient[i] = values[at];
    if (residual != nullptr) residual[i] = 0;
  });
}

std::size_t elements_of(Span<const VectorChunk> chunks) {
  if (chunks.empty()) return 0;
  const VectorChunk& last = chunks[chunks.size() - 1];
  return last.offset + last.count;
}

}  // namespace

void gather_chunks_on_cuda(Executor& executor, Span<const VectorChunk> chunks, Span<const float> values,
                           Span<float> target) {
  CudaExecutor& own = executor_on_device(executor);
  const TableOnDevice<VectorChunk> table(own, chunks);
  const std::size_t elements = elements_of(chunks);
  run(own, grid_for(elements, 4), gather_kernel, table.data(), chunks.size(), elements, values, target);
  own.wait();  // for the table
}

void scatter_chunks_on_cuda(Executor& executor, Span<const VectorChunk> chunks, Span<const float> values,
                            Span<float> gradient, Span<float> residual) {
  CudaExecutor& own = executor_on_device(executor);
  const TableOnDevice<VectorChunk> table(own, chunks);
  const std::size_t elements = elements_of(chunks);
  run(own, grid_for(elements, 4), scatter_kernel, table.data(), chunks.size(), elements, values, gradient,
      residual);
  own.wait();  // for the table
}

}  // namespace thinwire
