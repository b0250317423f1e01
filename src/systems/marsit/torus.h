#pragma once
// The shape in which Marsit's ranks stand: a rectangle of rows and columns, with the ranks that do not fit
// folded into the first ones. A ring is a rectangle of one row.

#include <cstdint>

namespace thinwire {

class Torus {
 public:
  /// rows = 0 takes the most nearly square rectangle that uses all ranks, or all but one when world_size is a
  /// prime above 3 (which has no rectangle but the ring). Throws std::invalid_argument when rows is above
  /// world_size.
  Torus(int world_size, int rows);

  int rows() const { return rows_; }
  int columns() const { return columns_; }
  /// Ranks [0, core) stand in the rectangle, row by row; rank core + i is folded into rank i.
  int core() const { return rows_ * columns_; }
  int folded() const { return world_size_ - core(); }

  /// Workers that a core rank's own bits stand for once folded: 1 or 2.
  std::uint32_t weight(int rank) const { return rank < folded() ? 2 : 1; }
  std::uint32_t row_weight(int row) const;

 private:
  int world_size_;
  int rows_;
  int columns_;
};

}  // namespace thinwire
