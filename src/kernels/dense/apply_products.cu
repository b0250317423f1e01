// Products of thin factors on a CUDA device. Ranks must agree on them, so they are rounded one operation
// after the other.

#include "kernels/dense/apply_products.h"
#include "kernels/device/device.h"

namespace thinwire {
using namespace cuda;
namespace {

/// Rows that a thread works on, all of one column: a value of `right` serves all of them.
constexpr unsigned kRows = 4;

THINWIRE_KERNEL void product_kernel(MatrixShape shape, std::size_t rank, Reads<float> left,
                                    Reads<float> right, Writes<float> gradient, Writes<float> residual,
                                    Writes<double> block_sums) {
  double squares = 0;
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
      if (residual != nullptr) {
        const float rest = before[r] - m[r];
        residual[at + r * shape.columns] = rest;
        squares += static_cast<double>(rest) * static_cast<double>(rest);
      }
      gradient[at + r * shape.columns] = m[r];
    }
  }
  if (residual != nullptr) write_block_sum(squares, block_sums + blockIdx.x);
}

/// One block: squares[0] = the sum of what the blocks before it have written.
THINWIRE_KERNEL void sum_of_sums_kernel(Reads<double> block_sums, std::size_t blocks,
                                        Writes<double> squares) {
  double sum = 0;
  for (std::size_t i = threadIdx.x; i < blocks; i += kThreads) sum += block_sums[i];
  write_block_sum(sum, squares);
}

}  // namespace

void apply_products_on_cuda(Executor& executor, MatrixShape shape, std::size_t rank, Factors mean,
                            Factors own, Span<float> gradient, const ResidualSpan& turned,
                            Span<double> squares) {
  CudaExecutor& on_device = executor_on_device(executor);
  const Span<float> residual = turned.after;
  const Grid grid = grid_for((shape.rows + kRows - 1) / kRows * shape.columns);
  const Scratch<double> block_sums(on_device, residual.empty() ? 0 : grid.blocks);
  const bool differ =
      !residual.empty() && (own.left.data() != mean.left.data() || own.right.data() != mean.right.data());
  if (differ) {
    run(on_device, grid, product_kernel, shape, rank, own.left, own.right, gradient, residual,
        block_sums.data());
  }
  run(on_device, grid, product_kernel, shape, rank, mean.left, mean.right, gradient,
      differ ? Span<float>() : residual, block_sums.data());
  if (residual.empty() || squares.empty()) return;
  run(on_device, Grid{1, kThreads}, sum_of_sums_kernel, block_sums.data(), std::size_t{grid.blocks}, squares);
}

}  // namespace thinwire
