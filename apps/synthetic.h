#pragma once
// Synthetic gradients for benchmarks: reproducible from a seed, with a given density and skew.

#include <cstdint>

#include "thinwire/span.h"

namespace thinwire::apps {

struct SyntheticGradient {
  double density = 1;  ///< Share of rows that are not zero, in (0, 1].
  double zipf =
      0;  ///< Skew of the row indices: row ranks are drawn with probability about rank^-zipf; 0: uniform.
  std::uint64_t row_width = 1;  ///< Elements of a row; the last row may be shorter.
  std::uint64_t seed = 1;
};

/// Fills `gradient` for one rank: normally distributed values (mean 0, deviation 1) in the chosen rows, 0
/// elsewhere. Which ranks of the skew are which rows is the same for all workers, so hot rows are hot
/// everywhere. Throws std::invalid_argument for a density outside (0, 1], a negative zipf or a row width of
/// 0.
void fill_synthetic(const SyntheticGradient& shape, int rank, Span<float> gradient);

}  // namespace thinwire::apps
