#pragma once
// Sets of positions as bits: how a union of sparse gradients is formed without sorting, and how it travels.
// Bit i of word i / 64 (least significant first) stands for position i.

#include <bit>

#include "thinwire/executor.h"
#include "thinwire/span.h"

namespace thinwire {

constexpr std::size_t bitmap_words(std::size_t positions) {
  return (positions + 63) / 64;
}

/// No bit is set.
void clear_bitmap(Executor& executor, Span<std::uint64_t> bitmap);

/// Sets the bit of every position; each must be below 64 * bitmap.size(). Repeated positions are allowed.
void set_bits(Executor& executor, Span<const std::uint32_t> positions, Span<std::uint64_t> bitmap);

/// before[w] = number of set bits in words [0, w); before: [bitmap.size()]. Returns the number of all set
/// bits.
std::size_t count_bits_before(Executor& executor, Span<const std::uint64_t> bitmap,
                              Span<std::uint32_t> before);

/// positions[k] = position of the k-th set bit, ascending; positions: as many as there are set bits.
void list_bits(Executor& executor, Span<const std::uint64_t> bitmap, Span<const std::uint32_t> before,
               Span<std::uint32_t> positions);

/// Number of set bits before `position`: the slot of a set position in the list of all.
inline std::uint32_t rank_of(Span<const std::uint64_t> bitmap, Span<const std::uint32_t> before,
                             std::uint32_t position) {
  const std::uint64_t lower = bitmap[position / 64] & ((std::uint64_t{1} << (position % 64)) - 1);
  return before[position / 64] + static_cast<std::uint32_t>(std::popcount(lower));
}

/// ranks[k] = rank_of(positions[k]); positions are set in the bitmap.
void find_ranks(Executor& executor, Span<const std::uint64_t> bitmap, Span<const std::uint32_t> before,
                Span<const std::uint32_t> positions, Span<std::uint32_t> ranks);

}  // namespace thinwire
