#pragma once
// Elements into codes (kernels/codes/quantization_levels.h), and the norms that codes are scaled by.
// p = gradient + residual.

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

/// The largest |p|; not finite if any p is not.
float largest_magnitude(Executor& executor, Span<const float> gradient, Span<const float> residual);

/// largest_magnitude and the sum of p^2 of every range of `ends` (ascending, the last at n). largest: one per
/// range; squares: as many, or empty. All three lists lie in host memory.
void measure_ranges(Executor& executor, Span<const std::size_t> ends, Span<const float> gradient,
                    Span<const float> residual, Span<float> largest, Span<double> squares);

/// The norm, as a float may hold it, of elements in host memory; on the calling thread. l2: their squares are
/// summed in double.
float norm_serially(QuantizationNorm norm, Span<const float> gradient, Span<const float> residual);

}  // namespace thinwire
