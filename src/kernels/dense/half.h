#pragma once
// float32 to and from 16-bit floats, rounding to nearest even, the same on every target: IEEE binary16
// (overflow to infinity, subnormals kept) and bfloat16.

#include "thinwire/executor.h"
#include "thinwire/residual_span.h"
#include "thinwire/span.h"

namespace thinwire {

enum class HalfFormat : std::uint8_t { fp16, bf16 };

/// out[i] = Q(gradient[i] + residual[i]); residual: [n] or empty. Returns whether every out[i] is finite.
bool encode_half(Executor& executor, HalfFormat format, Span<const float> gradient,
                 Span<const float> residual, Span<std::uint16_t> out);

/// out[i] = in[i] as float32.
void decode_half(Executor& executor, HalfFormat format, Span<const std::uint16_t> in, Span<float> out);

/// mean[i] = Q(sum / parts.size()), sum being that of parts[0][i], parts[1][i], ... in this order, in
/// float32. sums: [n], out: the sums; or empty. Returns whether every mean[i] is finite.
bool mean_of_halves(Executor& executor, HalfFormat format, Span<const Span<const std::uint16_t>> parts,
                    Span<float> sums, Span<std::uint16_t> mean);

/// residual[i] = p - Q(p) with p = gradient[i] + residual[i], then gradient[i] = mean[i]. residual may be
/// empty. Returns the new residual's sum of squares, 0 where it is empty.
double apply_half(Executor& executor, HalfFormat format, Span<const std::uint16_t> mean, Span<float> gradient,
                  ResidualSpan residual);

}  // namespace thinwire
