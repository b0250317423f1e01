#include "exchange/level_order.h"

#include <algorithm>

namespace thinwire {
namespace {

/// Levels of a column that are moved at a time: a line of the cache.
constexpr std::size_t kRun = 32;

/// from [rows x columns], to [columns x rows].
void transpose(std::size_t rows, std::size_t columns, Span<const std::int16_t> from, Span<std::int16_t> to) {
  for (std::size_t i = 0; i < rows; i += kRun) {
    const std::size_t end = std::min(rows, i + kRun);
    for (std::size_t k = 0; k < columns; ++k) {
      for (std::size_t r = i; r < end; ++r) to[k * rows + r] = from[r * columns + k];
    }
  }
}

/// What is its own inverse: levels of the first places of 128 blocks, of the second ones, and so on. Behind
/// the last 128 blocks they stay as they are.
void transpose_places(Span<const std::int16_t> levels, Span<std::int16_t> placed) {
  constexpr std::size_t kSquare = kSteppedBlock * kSteppedBlock;
  std::size_t begin = 0;
  for (; begin + kSquare <= levels.size(); begin += kSquare) {
    transpose(kSteppedBlock, kSteppedBlock, levels.subspan(begin, kSquare), placed.subspan(begin, kSquare));
  }
  std::copy(levels.begin() + begin, levels.end(), placed.begin() + begin);
}

/// body(blocks, their part of `from`, and of `to`) for the blocks of an owner.
template <class Body>
void for_parts(Span<const LevelSquare> squares, std::size_t first, Span<const std::int16_t> from,
               Span<std::int16_t> to, Body&& body) {
  for_shared(squares, first, first + stepped_blocks(from.size()), [&](const SharedBlocks& blocks) {
    const std::size_t begin = blocks.begin * kSteppedBlock;
    const std::size_t count = std::min(from.size(), blocks.end * kSteppedBlock) - begin;
    body(blocks, from.subspan(begin, count), to.subspan(begin, count));
  });
}

}  // namespace

void order_by_place(Span<const LevelSquare> squares, std::size_t first, Span<const std::int16_t> levels,
                    Span<std::int16_t> placed) {
  for_parts(squares, first, levels, placed,
            [](const SharedBlocks& blocks, Span<const std::int16_t> from, Span<std::int16_t> to) {
              if (blocks.square == nullptr) return transpose_places(from, to);
              const std::size_t columns = blocks.square->columns;
              if (!blocks.has_order()) return transpose(from.size() / columns, columns, from, to);
              for (std::size_t i = 0; i < from.size(); ++i) to[i] = from[blocks.square->order[i]];
            });
}

void order_as_they_were(Span<const LevelSquare> squares, std::size_t first, Span<const std::int16_t> placed,
                        Span<std::int16_t> levels) {
  for_parts(squares, first, placed, levels,
            [](const SharedBlocks& blocks, Span<const std::int16_t> from, Span<std::int16_t> to) {
              if (blocks.square == nullptr) return transpose_places(from, to);
              const std::size_t columns = blocks.square->columns;
              if (!blocks.has_order()) return transpose(columns, from.size() / columns, from, to);
              for (std::size_t i = 0; i < from.size(); ++i) to[blocks.square->order[i]] = from[i];
            });
}

}  // namespace thinwire
