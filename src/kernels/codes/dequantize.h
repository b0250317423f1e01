#pragma once
// Codes (kernels/codes/quantization_levels.h) back into values.

#include "kernels/codes/quantization_levels.h"
#include "thinwire/executor.h"
#include "thinwire/residual_span.h"
#include "thinwire/span.h"

namespace thinwire {

/// Q(p) of elements [first, first + values.size()): values becomes it, or it is added. first: a multiple of
/// 64. A value is +-values[index] * norm, rounded to float; equal steps: +-min(index * (norm / s), norm).
void dequantize(Executor& executor, const QuantizationLevels& levels, const QuantizationScales& scales,
                Span<const float> norms, Span<const std::uint64_t> codes, std::size_t first, bool add,
                Span<float> values);

/// What one rank sent.
struct QuantizedVector {
  Span<const float> norms{};
  Span<const std::uint64_t> codes{};
};

/// residual[i] = gradient[i] + residual[i] - Q(p)[i] of vectors[self]; then gradient[i] = the sum of Q(p)[i]
/// over `vectors`, in their order, times 1 / vectors.size(). residual may be empty. Returns the new
/// residual's sum of squares.
double average_dequantized(Executor& executor, const QuantizationLevels& levels,
                           const QuantizationScales& scales, Span<const QuantizedVector> vectors,
                           std::size_t self, Span<float> gradient, ResidualSpan residual);

}  // namespace thinwire
