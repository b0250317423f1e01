#pragma once
// Matrices as products of two thin ones, M ~ left right^T: the passes of PowerSGD. With few columns the
// products read the matrix once and are bound by memory, where a BLAS for CPUs, which packs its operands for
// arithmetic, is slower (docs/kernels.md). On CUDA devices they are cuBLAS's, which does not. Products read a
// factor more than once: where it lies in pinned memory they are slow.
//
// A matrix lies row after row. A factor of rank r lies column after column: left [r * rows], right [r *
// columns].

#include <cstddef>

#include "kernels/device/on_device.h"
#include "thinwire/executor.h"
#include "thinwire/residual_span.h"
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

/// Replaces the columns of left [rank * rows] by orthonormal ones that span the same space: Gram-Schmidt with
/// sums in double, every column twice. A column that depends on those before it, to within float
/// rounding, becomes 0. The values must be finite. The same bits on every machine. Serial, in host memory,
/// where an all-reduce leaves its sums: it is one long chain of short sums, and no work for a device.
void orthonormalise(std::size_t rows, std::size_t rank, Span<float> left);

/// Two thin factors of the same matrix.
struct Factors {
  Span<const float> left;
  Span<const float> right;
};

inline bool on_device(const Factors& factors) {
  return on_device(factors.left) || on_device(factors.right);
}

/// residual = gradient - own.left own.right^T where there is one (empty: none, and `own` is not read),
/// gradient = mean.left mean.right^T. `own` may be `mean`. gradient [rows * columns]. gradient has the same
/// bits on every machine; so has residual where `own` is `mean`, and otherwise its rounding depends on the
/// machine. Of residual only `after` is used.
void apply_products(Executor& executor, MatrixShape shape, std::size_t rank, Factors mean, Factors own,
                    Span<float> gradient, const ResidualSpan& residual);

/// target[i] += values[i] (empty: nothing is added). Returns whether every |target[i]| <= limit; false for
/// NaN.
bool add_within(Executor& executor, Span<float> target, Span<const float> values, float limit);

/// Elements [begin, begin + count) of a vector, which lie from `offset` on where chunks lie one behind the
/// other.
struct VectorChunk {
  std::size_t begin = 0;
  std::size_t count = 0;
  std::size_t offset = 0;
};

/// chunks: ascending, and in host memory. target: what they have of `values`, one behind the other.
void gather_chunks(Executor& executor, Span<const VectorChunk> chunks, Span<const float> values,
                   Span<float> target);

/// The reverse: gradient has there what `values` holds, residual, unless empty, 0.
void scatter_chunks(Executor& executor, Span<const VectorChunk> chunks, Span<const float> values,
                    Span<float> gradient, Span<float> residual);

}  // namespace thinwire
