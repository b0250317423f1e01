#pragma once
// Elements into codes (kernels/codes/quantization_levels.h). p = gradient + residual.

#include "core/philox.h"
#include "kernels/codes/quantization_levels.h"
#include "thinwire/executor.h"
#include "thinwire/span.h"

namespace thinwire {

/// Quantizes chunk by chunk, each while it is in the cache. residual: [n] or empty. norms:
/// [chunk_count(n, chunk)], written; a norm below the least normal float (1.2e-38) becomes 0, and so do the
/// chunk's elements. codes: code_words(n, levels.bits) words; those behind the last element mean nothing.
/// Returns false if any p or norm is not finite; norms and codes mean nothing then. l2 norms are
/// sums of double and may differ in the last bit between instruction sets, codes of equal norms do not.
bool quantize_chunks(Executor& executor, const RandomStream& stream, const QuantizationLevels& levels,
                     QuantizationNorm norm, std::size_t chunk, Span<const float> gradient,
                     Span<const float> residual, Span<float> norms, Span<std::uint64_t> codes);

/// Quantizes with given finite norms, one per range of `ends` (ascending, the last at n, in host memory).
/// Larger magnitudes are cut to the norm. Norms below the least normal float count as 0. All p are finite.
void quantize_ranges(Executor& executor, const RandomStream& stream, const QuantizationLevels& levels,
                     Span<const std::size_t> ends, Span<const float> norms, Span<const float> gradient,
                     Span<const float> residual, Span<std::uint64_t> codes);

}  // namespace thinwire
