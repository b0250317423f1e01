#pragma once
// Elements to whole numbers of steps and back. Each range of elements has a step of its own.
// p = gradient + residual.

#include "thinwire/executor.h"
#include "thinwire/residual_span.h"
#include "thinwire/span.h"

namespace thinwire {

/// What one rank says of a vector: element i is steps[r] * levels[i], r being the range that i lies in.
struct SteppedLevels {
  Span<const float> steps;          ///< One for each range, finite and not negative; in host memory.
  Span<const std::int16_t> levels;  ///< In host memory.
};

/// levels[i] = p / step, its magnitude rounded down where less than `up` of a step is left and up elsewhere,
/// and cut to 32767; 0 where the step is 0. ends: where each range ends, ascending, the last at n; steps: one
/// for each. All p are finite. residual: [n] or empty.
void round_to_levels(Executor& executor, Span<const std::size_t> ends, Span<const float> steps, float up,
                     Span<const float> gradient, Span<const float> residual, Span<std::int16_t> levels);

/// mean[i] = what the ranks say of element i, added in their order, divided by their number.
void mean_of_levels(Executor& executor, Span<const std::size_t> ends, Span<const SteppedLevels> ranks,
                    Span<float> mean);

/// residual[i] = p - what `own` says, then gradient[i] = what `mean` says. residual may be empty. Returns the
/// new residual's sum of squares.
double apply_levels(Executor& executor, Span<const std::size_t> ends, const SteppedLevels& own,
                    const SteppedLevels& mean, Span<float> gradient, ResidualSpan residual);

}  // namespace thinwire
