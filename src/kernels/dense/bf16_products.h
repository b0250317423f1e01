#pragma once
// Products of thin factors, as low_rank.h has them, with operands rounded to bfloat16 and sums in float: for
// factors that travel in codes of 8 bits and less, whose own error is larger. A processor with instructions
// for pairs of bfloat16 does twice as many products as of floats in the same time. Others have none of this.

#include "kernels/dense/low_rank.h"
#include "thinwire/executor.h"
#include "thinwire/span.h"

namespace thinwire {

/// Whether kernels of this executor have them: those of a CPU with AVX-512's bfloat16.
bool has_bf16_products(const Executor& executor);

/// gradient += residual (empty: nothing is added); left = gradient right, or right = gradient^T left. Both in
/// one pass over memory. Returns whether every |gradient| <= limit; false for NaN. Infinity is no limit: then
/// nothing is compared. All spans in host memory, otherwise as multiply_right and multiply_left. Products
/// below the smallest normal float are 0. Only where has_bf16_products().
bool add_and_multiply_right(Executor& executor, MatrixShape shape, std::size_t rank, Span<float> gradient,
                            Span<const float> residual, float limit, Span<const float> right,
                            Span<float> left);
bool add_and_multiply_left(Executor& executor, MatrixShape shape, std::size_t rank, Span<float> gradient,
                           Span<const float> residual, float limit, Span<const float> left,
                           Span<float> right);

}  // namespace thinwire
