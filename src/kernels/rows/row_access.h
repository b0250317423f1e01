#pragma once
// Rows of a table by their indices. A table is [rows * width] elements; of its last row some may be missing,
// as of a bucket that is cut into blocks.

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

}  // namespace thinwire
