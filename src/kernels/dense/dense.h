#pragma once
// Passes over float vectors that need no format: sums, norms, scaling; and parts of a vector that travel
// without the rest.

#include "thinwire/executor.h"
#include "thinwire/residual_span.h"
#include "thinwire/span.h"

namespace thinwire {

/// target[i] += values[i].
void add(Executor& executor, Span<float> target, Span<const float> values);

/// target[i] += values[i] (empty: nothing is added). Returns whether every |target[i]| <= limit; false for
/// NaN.
bool add_within(Executor& executor, Span<float> target, Span<const float> values, float limit);

/// values[i] *= factor. Returns whether every product is finite.
bool scale(Executor& executor, Span<float> values, float factor);

/// Whether no value is inf or NaN.
bool all_finite(Executor& executor, Span<const float> values);

/// values[i] = value.
void fill(Executor& executor, Span<float> values, float value);

/// Sum of |gradient[i] + residual[i]|; residual: [n] or empty. Not finite if any element is not.
double sum_of_magnitudes(Executor& executor, Span<const float> gradient, Span<const float> residual);

/// Sum of (gradient[i] + residual[i])^2; residual: [n] or empty. Not finite if any element is not.
double sum_of_squares(Executor& executor, Span<const float> gradient, Span<const float> residual);

/// residual[i] = gradient[i] + residual[i] - own[i], what this rank's own part of the sums did not carry;
/// then gradient[i] = sums[i] * factor. residual may be empty, and own with it. Returns the new residual's
/// sum of squares.
double apply_average(Executor& executor, Span<const float> own, Span<const float> sums, float factor,
                     Span<float> gradient, ResidualSpan residual);

/// The same on the calling thread, for parts of a vector in host memory. The caller calls finish_stores()
/// after the last of them.
double apply_average_serially(Span<const float> own, Span<const float> sums, float factor,
                              Span<float> gradient, ResidualSpan residual);

/// From now on other threads see what this one has written to the residual past the caches. It waits for
/// memory, so it is no call for every few elements.
void finish_stores(const ResidualSpan& residual);

/// residual[i] += sums[i] - factor * mean[i]: what is lost where the mean of `factor` ranks' sums is rounded.
/// Returns the new residual's sum of squares.
double add_remainder(Executor& executor, Span<const float> sums, float factor, Span<const float> mean,
                     Span<float> residual);

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

/// gradient[i] += momentum * delivered[i].
void add_momentum(Executor& executor, float momentum, Span<const float> delivered, Span<float> gradient);

/// mean[i] -= momentum * delivered[i], and delivered[i] = mean[i] as it was.
void take_momentum(Executor& executor, float momentum, Span<float> delivered, Span<float> mean);

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
