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

__global__ void __launch_bounds__(kThreads)
    gather_kernel(const VectorChunk* __restrict__ chunks, std::size_t count, std::size_t elements,
                  const float* __restrict__ values, float* __restrict__ target) {
  for_each_of_chunks(chunks, count, elements, [&](std::size_t i, std::size_t at) { target[at] = values[i]; });
}

__global__ void __launch_bounds__(kThreads)
    scatter_kernel(const VectorChunk* __restrict__ chunks, std::size_t count, std::size_t elements,
                   const float* __restrict__ values, float* __restrict__ gradient,
                   float* __restrict__ residual) {
  for_each_of_chunks(chunks, count, elements, [&](std::size_t i, std::size_t at) {
    gradient[i] = values[at];
    if (residual != nullptr) residual[i] = 0;
  });
}

/// The table of chunks, on the device: every element looks it up.
class DeviceChunks {
 public:
  DeviceChunks(CudaExecutor& executor, Span<const VectorChunk> chunks)
      : table_(executor, chunks.size()), count_(chunks.size()) {
    if (chunks.empty()) return;
    check(cudaMemcpyAsync(table_.data(), chunks.data(), chunks.size_bytes(), cudaMemcpyDefault,
                          executor.stream()),
          "a table could not be copied");
    const VectorChunk& last = chunks[chunks.size() - 1];
    elements_ = last.offset + last.count;
  }

  const VectorChunk* data() const { return table_.data(); }
  std::size_t count() const { return count_; }
  std::size_t elements() const { return elements_; }

 private:
  Scratch<VectorChunk> table_;
  std::size_t count_;
  std::size_t elements_ = 0;
};

}  // namespace

void gather_chunks_on_cuda(Executor& executor, Span<const VectorChunk> chunks, Span<const float> values,
                           Span<float> target) {
  CudaExecutor& own = executor_on_device(executor);
  const DeviceChunks table(own, chunks);
  run(own, grid_for(table.elements(), 4), gather_kernel, table.data(), table.count(), table.elements(),
      values, target);
  own.wait();  // for the table
}

void scatter_chunks_on_cuda(Executor& executor, Span<const VectorChunk> chunks, Span<const float> values,
                            Span<float> gradient, Span<float> residual) {
  CudaExecutor& own = executor_on_device(executor);
  const DeviceChunks table(own, chunks);
  run(own, grid_for(table.elements(), 4), scatter_kernel, table.data(), table.count(), table.elements(),
      values, gradient, residual);
  own.wait();  // for the table
}

}  // namespace thinwire
