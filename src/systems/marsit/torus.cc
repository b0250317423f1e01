#include "systems/marsit/torus.h"

#include <algorithm>
#include <stdexcept>

namespace thinwire {
namespace {

/// The largest divisor of n that is at most its square root.
int squarest_rows(int n) {
  int rows = 1;
  for (int r = 2; r * r <= n; ++r) {
    if (n % r == 0) rows = r;
  }
  return rows;
}

}  // namespace

Torus::Torus(int world_size, int rows) : world_size_(world_size), rows_(rows) {
  if (rows == 0) {
    rows_ = squarest_rows(world_size);
    if (rows_ == 1 && world_size > 3) {
      rows_ = squarest_rows(world_size - 1);
      columns_ = (world_size - 1) / rows_;
      return;
    }
  }
  if (rows_ > world_size) {
    throw std::invalid_argument("marsit: rows=" + std::to_string(rows_) + " in a world of " +
                                std::to_string(world_size) + ": there cannot be more rows than workers");
  }
  columns_ = world_size / rows_;
  if (folded() > core()) {
    throw std::invalid_argument("marsit: rows=" + std::to_string(rows_) + " leaves " +
                                std::to_string(folded()) + " of " + std::to_string(world_size) +
                                " workers outside the torus, more than stand in it");
  }
}

std::uint32_t Torus::row_weight(int row) const {
  const int first = row * columns_;
  return static_cast<std::uint32_t>(columns_ + std::clamp(folded() - first, 0, columns_));
}

}  // namespace thinwire
