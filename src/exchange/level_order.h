#pragma once
// The order in which an owner's levels travel: such that those of about one size are neighbours, which takes
// fewer bits in an entropy code (exchange/level_average.h).

#include <cstddef>
#include <cstdint>

#include "kernels/codes/rounded_levels.h"
#include "thinwire/span.h"

namespace thinwire {

/// Blocks side by side that share a step.
struct LevelSquare {
  std::size_t first = 0;   ///< Its first block, of the vector.
  std::size_t blocks = 0;  ///< At most 512, all of them whole.
  /// Of a row of the square. Without `order`, levels of all rows' first columns travel first, then those of
  /// the second ones, and so on. Fewer bits where elements of a column are alike. Divides blocks * 128.
  std::size_t columns = 128;
  /// [blocks * 128]: places in the square, in the order in which its levels travel. Fewer bits where
  /// neighbours in it are alike. Their step then is of all elements' root mean square. Empty: the order is
  /// that of columns, and the step of the mean of the blocks' root mean squares, which a few large ones
  /// change less.
  Span<const std::uint16_t> order{};
};

/// Blocks of an owner's part: of a square, or between squares.
struct SharedBlocks {
  std::size_t begin = 0;
  std::size_t end = 0;
  const LevelSquare* square = nullptr;  ///< Null: of none.

  bool has_order() const { return square != nullptr && !square->order.empty(); }
};

/// body(SharedBlocks) for the blocks [first, last) of the vector, in order. No square has a part of its
/// blocks there.
template <class Body>
void for_shared(Span<const LevelSquare> squares, std::size_t first, std::size_t last, Body&& body) {
  std::size_t at = first;
  for (const LevelSquare& square : squares) {
    if (square.first < first || square.first >= last) continue;
    if (at < square.first) body(SharedBlocks{at - first, square.first - first, nullptr});
    at = square.first + square.blocks;
    body(SharedBlocks{square.first - first, at - first, &square});
  }
  if (at < last) body(SharedBlocks{at - first, last - first, nullptr});
}

/// placed [n]: levels [n] of an owner whose first block in the vector is `first`, in the order in which they
/// travel. They do not overlap.
void order_by_place(Span<const LevelSquare> squares, std::size_t first, Span<const std::int16_t> levels,
                    Span<std::int16_t> placed);
/// And back.
void order_as_they_were(Span<const LevelSquare> squares, std::size_t first, Span<const std::int16_t> placed,
                        Span<std::int16_t> levels);

}  // namespace thinwire
