#pragma once
// Matrices as products of two thin ones, M ~ left right^T: the passes of PowerSGD. With few columns the
// products read the matrix once and are bound by memory, where a BLAS for CPUs, which packs its operands for
// arithmetic, is slower (docs/kernels.md). On CUDA devices they are cuBLAS's, which does not. Products read a
// factor more than once: where it lies in pinned memory they are slow.
//
// A matrix lies row after row. A factor of rank r lies column after column: left [r * rows], right [r *
// columns].

#include "thinwire/executor.h"
#include "thinwire/span.h"

namespace thinwire {

struct MatrixShape {
  std::size_t rows = 0;
  std::size_t columns = 0;

  std::size_t elements() const { return rows * columns; }
};

/// left = matrix right. `rank` columns, at least one; spans as above, none overlaps another. A value of the
/// matrix that is inf or NaN makes its row of left inf or NaN in every column. Rounding depends on the
/// machine, not on the number of threads.
void multiply_right(Executor& executor, MatrixShape shape, std::size_t rank, Span<const float> matrix,
                    Span<const float> right, Span<float> left);

/// right = matrix^T left, otherwise as multiply_right.
void multiply_left(Executor& executor, MatrixShape shape, std::size_t rank, Span<const float> matrix,
                   Span<const float> left, Span<float> right);

}  // namespace thinwire
