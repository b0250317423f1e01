#pragma once
// Adding up rows of several ranks: by rank in a bitmap (kernels/rows/bitmap.h), which takes positions in any
// order and needs memory for the union alone; or two sorted lists into one. And rows of a table by their
// indices.

#include <cstddef>
#include <cstdint>

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

// A table is [rows * width] elements; of its last row some may be missing, as of a bucket that is cut into
// blocks.

/// table[indices[k]] = values[k], row by row: [k], [k * width], [table]. Indices are distinct. What the last
/// row lacks is left out.
void scatter_rows(Executor& executor, Span<const std::uint32_t> indices, Span<const float> values,
                  std::size_t width, Span<float> table);

/// values[k] = table[indices[k]], row by row; 0 for what the last row lacks.
void gather_rows(Executor& executor, Span<const float> table, Span<const std::uint32_t> indices,
                 std::size_t width, Span<float> values);

/// The same of gradient + residual; residual: as gradient, or empty.
void gather_rows(Executor& executor, Span<const float> gradient, Span<const float> residual,
                 Span<const std::uint32_t> indices, std::size_t width, Span<float> values);

/// table[indices[k]] = value in every element of the row.
void fill_rows(Executor& executor, Span<const std::uint32_t> indices, std::size_t width, float value,
               Span<float> table);

/// table[indices[k]] -= values[k], row by row. Indices are distinct.
void subtract_rows(Executor& executor, Span<const std::uint32_t> indices, Span<const float> values,
                   std::size_t width, Span<float> table);

/// The same on a CUDA device, see kernels/device/on_device.h.
namespace cuda {
void accumulate_rows(Executor& executor, Span<const std::uint32_t> positions, Span<const float> values,
                     std::size_t width, Span<const std::uint64_t> bitmap, Span<const std::uint32_t> before,
                     bool distinct, Span<float> sums);
std::size_t merge_sorted_rows(Executor& executor, Span<const std::uint32_t> first_indices,
                              Span<const float> first_values, Span<const std::uint32_t> second_indices,
                              Span<const float> second_values, std::size_t width, Span<std::uint32_t> indices,
                              Span<float> values);
void scatter_rows(Executor& executor, Span<const std::uint32_t> indices, Span<const float> values,
                  std::size_t width, Span<float> table);
void gather_rows(Executor& executor, Span<const float> gradient, Span<const float> residual,
                 Span<const std::uint32_t> indices, std::size_t width, Span<float> values);
void fill_rows(Executor& executor, Span<const std::uint32_t> indices, std::size_t width, float value,
               Span<float> table);
void subtract_rows(Executor& executor, Span<const std::uint32_t> indices, Span<const float> values,
                   std::size_t width, Span<float> table);
}  // namespace cuda

}  // namespace thinwire
