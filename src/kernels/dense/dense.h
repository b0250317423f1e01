#pragma once
// Passes over float vectors that need no format: sums, norms, scaling.

#include "thinwire/executor.h"
#include "thinwire/span.h"

namespace thinwire {

/// target[i] += values[i].
void add(Executor& executor, Span<float> target, Span<const float> values);

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
                     Span<float> gradient, Span<float> residual);

/// The same on the calling thread, for parts of a vector in host memory.
double apply_average_serially(Span<const float> own, Span<const float> sums, float factor,
                              Span<float> gradient, Span<float> residual);

/// residual[i] += sums[i] - factor * mean[i]: what is lost where the mean of `factor` ranks' sums is rounded.
void add_remainder(Executor& executor, Span<const float> sums, float factor, Span<const float> mean,
                   Span<float> residual);

}  // namespace thinwire
