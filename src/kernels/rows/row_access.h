#pragma once
// Rows of a table by their indices. A table is [rows * width] elements; of its last row some may be missing,
// as of a bucket that is cut into blocks. And adding up rows of several ranks: by rank in a bitmap
// (kernels/rows/bitmap.h), which takes positions in any order and needs memory for the union alone; or two
// sorted lists into one.

#include "thinwire/executor.h"
#include "thinwire/span.h"

namespace thinwire {

/// table[indices[k]] = values[k], row by row: [k], [k * width], [table]. Indices are distinct. What the last
/// row lacks is left out.
void scatter_rows(Executor& executor, Span<const std::uint32_t> indices, Span<const float> values,
                  std::size_t width, Span<float> table);

/// values[k] = row indices[k] of gradient + residual, 0 for what the last row lacks. residual: as gradient,
/// or empty.
void gather_rows(Executor& executor, Span<const float> gradient, Span<const float> residual,
                 Span<const std::uint32_t> indices, std::size_t width, Span<float> values);

/// table[indices[k]] = value in every element of the row.
void fill_rows(Executor& executor, Span<const std::uint32_t> indices, std::size_t width, float value,
               Span<float> table);

/// table[indices[k]] -= values[k], row by row. Indices are distinct.
void subtract_rows(Executor& executor, Span<const std::uint32_t> indices, Span<const float> values,
                   std::size_t width, Span<float> table);

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
