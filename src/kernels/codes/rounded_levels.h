#pragma once
// Elements to whole numbers of steps and back. Blocks of 128 elements have steps of their own, powers of the
// root of 2 times the vector's. p = gradient + residual.

#include <array>

#include "thinwire/executor.h"
#include "thinwire/residual_span.h"
#include "thinwire/span.h"

namespace thinwire {

inline constexpr std::size_t kSteppedBlock = 128;
inline constexpr std::uint8_t kStepScales = 32;
/// The scale of a block whose step is the vector's.
inline constexpr std::uint8_t kUnitScale = 24;

constexpr std::size_t stepped_blocks(std::size_t count) {
  return (count + kSteppedBlock - 1) / kSteppedBlock;
}

/// 2^((scale - kUnitScale) / 2), by scale.
inline constexpr std::array<float, kStepScales> kStepFactors = [] {
  std::array<float, kStepScales> factors{};
  factors[0] = 1.0f / (1 << (kUnitScale / 2));
  factors[1] = factors[0] * 1.41421354f;
  for (std::size_t i = 2; i < kStepScales; ++i) factors[i] = 2 * factors[i - 2];
  return factors;
}();

/// The steps of a vector's blocks; in host memory.
struct BlockSteps {
  float step = 0;                     ///< Finite and not negative, and so is each block's.
  Span<const std::uint8_t> scales{};  ///< [stepped_blocks(n)], each below kStepScales.

  float of(std::size_t block) const { return step * kStepFactors[scales[block]]; }
};

/// What one rank says of a vector: element i is its block's step times levels[i].
struct SteppedLevels {
  BlockSteps steps{};
  Span<const std::int16_t> levels{};  ///< In host memory.
};

/// levels[i] = p / step, its magnitude rounded up where at least 1 - `up` of a step is left and down
/// elsewhere, and cut to 32767; 0 where the step is 0. All p are finite. residual: [n] or empty.
void round_to_levels(Executor& executor, const BlockSteps& steps, float up, Span<const float> gradient,
                     Span<const float> residual, Span<std::int16_t> levels);

/// mean[i] = what the ranks say of element i, added in their order, divided by their number.
void mean_of_levels(Executor& executor, Span<const SteppedLevels> ranks, Span<float> mean);

/// residual[i] = p - what `own` says, then gradient[i] = what `mean` says. residual may be empty. Returns the
/// new residual's sum of squares.
double apply_levels(Executor& executor, const SteppedLevels& own, const SteppedLevels& mean,
                    Span<float> gradient, ResidualSpan residual);

}  // namespace thinwire
