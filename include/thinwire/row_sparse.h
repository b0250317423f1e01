#pragma once
// Gradients of embeddings. A batch touches few of a table's many rows; only
// those travel, each with its index.

#include <cstddef>
#include <cstdint>

#include "thinwire/span.h"

namespace thinwire {

/// A view of `row_indices.size()` rows out of a table of `rows` rows of `width` values; all others are zero.
struct RowSparse {
  Span<const std::uint32_t> row_indices{};  ///< [k], each below rows.
  Span<const float> values{};               ///< [k * width], row after row.
  std::size_t rows = 0;
  std::size_t width = 1;

  std::size_t size() const { return row_indices.size(); }
  std::size_t elements() const { return rows * width; }
  Span<const float> row(std::size_t at) const { return values.subspan(at * width, width); }
};

}  // namespace thinwire
