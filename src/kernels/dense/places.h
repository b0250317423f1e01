#pragma once
// Single elements of a dense vector: what a system does where it has chosen some. And momentum, which forgets
// what was delivered there.

#include <cstdint>

#include "thinwire/executor.h"
#include "thinwire/span.h"

namespace thinwire {

/// out[i] = gradient[places[i]] + residual[places[i]]; residual: [n] or empty. places below n.
void gather_places(Executor& executor, Span<const float> gradient, Span<const float> residual,
                   Span<const std::uint32_t> places, Span<float> out);

/// vector[places[i]] = values[i], or 0 where values is empty. Distinct places.
void scatter_places(Executor& executor, Span<const std::uint32_t> places, Span<const float> values,
                    Span<float> vector);

/// vector[places[i]] = 0.
void clear_places(Executor& executor, Span<const std::uint32_t> places, Span<float> vector);

/// residual[i] = gradient[i] + residual[i], unless it is empty; then gradient[i] = 0: what a step keeps of
/// elements that nobody chose.
void hold_back(Executor& executor, Span<float> gradient, Span<float> residual);

/// sums[i] = gradient[i] + residual[i]; residual: [n] or empty.
void add_residual(Executor& executor, Span<const float> gradient, Span<const float> residual,
                  Span<float> sums);

/// vector[i] = 0 where bit i of word i / 64 is set. bits: bitmap_words(n) words.
void clear_bits(Executor& executor, Span<const std::uint64_t> bits, Span<float> vector);

/// out[i] = vector[first + floor(i * range / out.size())] for i < out.size() <= range: a sample spread evenly
/// over [first, first + range).
void sample_evenly(Executor& executor, Span<const float> vector, std::size_t first, std::size_t range,
                   Span<float> out);

/// corrected[i] = momentum * velocity[i] + gradient[i]; gradient[i] = corrected[i].
void correct_by_momentum(Executor& executor, float momentum, Span<const float> velocity, Span<float> gradient,
                         Span<float> corrected);

}  // namespace thinwire
