#pragma once
// One bit per element: packing signs, merging two packed vectors, and turning bits back into a step. The
// passes over float memory that Marsit and the sign baselines make; everything else they do touches bits
// only.
//
// Bits lie in 64-bit words, element i in bit i % 64 of word i / 64; bits past the last element are zero. Word
// spans may be read, not written, up to their next multiple of 64 bytes (Workspace pads them).

#include "thinwire/executor.h"
#include "thinwire/residual_span.h"
#include "thinwire/span.h"

namespace thinwire {

constexpr std::size_t sign_words(std::size_t elements) {
  return (elements + 63) / 64;
}

/// bits[i] = (gradient[i] + residual[i] >= 0); -0 counts as non-negative, NaN does not. residual: [n] or
/// empty. bits: sign_words(n) words. Returns whether every sum is finite. Reads 4 or 8 bytes per element.
bool pack_signs(Executor& executor, Span<const float> gradient, Span<const float> residual,
                Span<std::uint64_t> bits);

/// own[k] = take_own[k] ? own[k] : received[k], bitwise: one application of Marsit's operator, the random
/// choice being made already (paper: Marsit section 4.1.1, equation 2). All of the same size.
void merge_signs(Executor& executor, Span<std::uint64_t> own, Span<const std::uint64_t> received,
                 Span<const std::uint64_t> take_own);

/// mean[i] = bits[i] ? scale : -scale; residual[i] = gradient[i] + residual[i] - mean[i]; gradient[i] =
/// mean[i]. One pass; residual may be empty. Returns the sum of squares of the new residual (0 when empty).
double apply_signs(Executor& executor, Span<const std::uint64_t> bits, float scale, Span<float> gradient,
                   ResidualSpan residual);

/// sums[i] += bits[i] ? scale : -scale.
void accumulate_signs(Executor& executor, Span<const std::uint64_t> bits, float scale, Span<float> sums);

/// What one rank sent: +-scale for every element.
struct ScaledSigns {
  Span<const std::uint64_t> bits{};
  float scale = 0;
};

/// residual[i] = gradient[i] + residual[i] - v, v being what vectors[self] says of element i; then
/// gradient[i] = the sum of what all say of it, from 0 in their order, times 1 / vectors.size(). residual may
/// be empty. Returns the new residual's sum of squares.
double average_signs(Executor& executor, Span<const ScaledSigns> vectors, std::size_t self,
                     Span<float> gradient, ResidualSpan residual);

}  // namespace thinwire
