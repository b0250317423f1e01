// Thin products on a CUDA device: those that take the whole matrix to a factor are cuBLAS's, those that
// ranks must agree on are rounded one operation after the other.

#include <cmath>

#include "kernels/dense/low_rank.h"
#include "kernels/device/device.h"
#include "kernels/device/device_blas.h"

namespace thinwire {
using namespace cuda;
namespace {

/// Rows that a thread works on, all of one column: a value of `right` serves all of them.
constexpr unsigned kRows = 4;

__global__ void __launch_bounds__(kThreads)
    product_kernel(MatrixShape shape, std::size_t rank, const float* __restrict__ left,
                   const float* __restrict__ right, float* __restrict__ gradient,
                   float* __restrict__ residual) {
  const std::size_t items = (shape.rows + kRows - 1) / kRows * shape.columns;
  for (std::size_t item = thread_of_grid(); item < items; item += threads_of_grid()) {
    const std::size_t i = item / shape.columns * kRows;
    const std::size_t j = item % shape.columns;
    const std::size_t at = i * shape.columns + j;
    // What is behind the last row is worked out from the last one, and not stored.
    std::size_t row[kRows];
    float before[kRows];
    float m[kRows];
#pragma unroll
    for (unsigned r = 0; r < kRows; ++r) {
      row[r] = i + r < shape.rows ? r : shape.rows - 1 - i;
      if (residual != nullptr) before[r] = gradient[at + row[r] * shape.columns];
      m[r] = left[i + row[r]] * right[j];
    }
    for (std::size_t k = 1; k < rank; ++k) {
      const float factor = right[k * shape.columns + j];
#pragma unroll
      for (unsigned r = 0; r < kRows; ++r) m[r] += left[k * shape.rows + i + row[r]] * factor;
    }
#pragma unroll
    for (unsigned r = 0; r < kRows; ++r) {
      if (i + r >= shape.rows) break;
      if (residual != nullptr) residual[at + r * shape.columns] = before[r] - m[r];
      gradient[at + r * shape.columns] = m[r];
    }
  }
}

__global__ void __launch_bounds__(kThreads)
    add_kernel(float* __restrict__ target, const float* __restrict__ values, float limit, std::size_t count,
               std::uint32_t* flag) {
  constexpr unsigned kAhead = 4;
  bool wrong = false;
  const std::size_t step = threads_of_grid();
  for (std::size_t first = thread_of_grid(); first < count; first += kAhead * step) {
    float sums[kAhead];
#pragma unroll
    for (unsigned k = 0; k < kAhead; ++k) {
      const std::size_t i = first + k * step;
      sums[k] = i < count ? sum_at(target, values, i) : 0.0f;
    }
#pragma unroll
    for (unsigned k = 0; k < kAhead; ++k) {
      const std::size_t i = first + k * step;
      if (i < count && values != nullptr) target[i] = sums[k];
      wrong = wrong || !(fabsf(sums[k]) <= limit);
    }
  }
  report_if(wrong, flag);
}

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

// What lies row after row is, column after column, the transposed matrix.

void multiply_right_on_cuda(Executor& executor, MatrixShape shape, std::size_t rank, Span<const float> matrix,
                            Span<const float> right, Span<float> left) {
  CudaExecutor& own = executor_on_device(executor);
  Operand m(own, matrix);
  Operand r(own, right);
  Operand l(own, left);
  multiply(own, true, shape.rows, rank, shape.columns, {m.data(), shape.columns}, {r.data(), shape.columns},
           l.data());
  finish(own, m, r, l);
}

void multiply_left_on_cuda(Executor& executor, MatrixShape shape, std::size_t rank, Span<const float> matrix,
                           Span<const float> left, Span<float> right) {
  CudaExecutor& own = executor_on_device(executor);
  Operand m(own, matrix);
  Operand l(own, left);
  Operand r(own, right);
  multiply(own, false, shape.columns, rank, shape.rows, {m.data(), shape.columns}, {l.data(), shape.rows},
           r.data());
  finish(own, m, l, r);
}

void apply_products_on_cuda(Executor& executor, MatrixShape shape, std::size_t rank, Factors mean,
                            Factors own, Span<float> gradient, const ResidualSpan& turned) {
  const Span<float> residual = turned.after;
  const Grid grid = grid_for((shape.rows + kRows - 1) / kRows * shape.columns);
  const bool differ =
      !residual.empty() && (own.left.data() != mean.left.data() || own.right.data() != mean.right.data());
  if (differ) run(executor, grid, product_kernel, shape, rank, own.left, own.right, gradient, residual);
  run(executor, grid, product_kernel, shape, rank, mean.left, mean.right, gradient,
      differ ? Span<float>() : residual);
}

bool add_within_on_cuda(Executor& executor, Span<float> target, Span<const float> values, float limit) {
  CudaExecutor& own = executor_on_device(executor);
  const Findings findings(own);
  run(own, grid_for(target.size(), 4), add_kernel, target, values, limit, target.size(), findings.flag());
  return !findings.flagged();
}

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
