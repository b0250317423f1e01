#pragma once
// Adding up rows of several ranks: by rank in a bitmap (kernels/rows/bitmap.h), which takes positions in any
// order and needs memory for the union alone; or two sorted lists into one.

#include "thinwire/executor.h"
#include "thinwire/span.h"

namespace thinwire {

/// sums[rank_of(positions[k])] += values[k], row by row in order; positions: [k], set in the bitmap; values:
/// [k * width]; sums: [set bits * width]. `distinct`: no position comes twice, so rows may be added by
/// several threads.
void accumulate_rows(Executor& executor, Span<const std::uint32_t> positions, Span<const float> values,
                     std::size_t width, Span<const std::uint64_t> bitmap, Span<const std::uint32_t> before,
                     bool distinct, Span<float> sums);

/// Merges two lists of rows with ascending, distinct indices into a third of the same kind; a row of both is
/// the sum, first + second. Outputs: room for both lists, overlapping neither. Returns the number of rows.
std::size_t merge_sorted_rows(Executor& executor, Span<const std::uint32_t> first_indices,
                              Span<const float> first_values, Span<const std::uint32_t> second_indices,
                              Span<const float> second_values, std::size_t width, Span<std::uint32_t> indices,
                              Span<float> values);

}  // namespace thinwire
