#pragma once
// A seeded bijection of [0, size) that scatters whatever pattern indices have: the hash by which Zen gives
// every index an owner and a place. Because it is a bijection, the places that an owner holds are a range, so
// its bitmap needs no table of the indices behind it.
//
// Rounds of xor, odd multiplication and xorshift on ceil(log2 size) bits; a value outside [0, size) goes
// through them again until it falls inside ("cycle walking"), twice on average at most.

#include <array>
#include <cstddef>
#include <cstdint>

#include "core/philox.h"
#include "thinwire/executor.h"
#include "thinwire/span.h"

namespace thinwire {

struct IndexPermutation {
  static constexpr std::size_t kRounds = 4;

  std::uint32_t size = 0;
  std::uint32_t mask = 0;   ///< 2^bits - 1 >= size - 1
  std::uint32_t shift = 0;  ///< At least half of the bits, so that x ^ (x >> shift) undoes itself.
  std::array<std::uint32_t, kRounds> keys{};
  std::array<std::uint32_t, kRounds> multipliers{};  ///< Odd.
  std::array<std::uint32_t, kRounds> inverses{};     ///< Of the multipliers, modulo 2^32.
  bool identity = false;

  /// Indices are below `size`, at most 2^32 - 1. Every (stream, size) is another permutation.
  static IndexPermutation make(std::size_t size, const RandomStream& stream);
  /// Leaves indices where they are.
  static IndexPermutation none(std::size_t size);

  std::uint32_t place_of(std::uint32_t index) const;
  std::uint32_t index_of(std::uint32_t place) const;
};

/// places[k] = permutation.place_of(indices[k]); may be done in place. Every index is below size.
void permute(Executor& executor, const IndexPermutation& permutation, Span<const std::uint32_t> indices,
             Span<std::uint32_t> places);

/// indices[k] = permutation.index_of(first + places[k]); may be done in place. Every first + places[k] is
/// below size.
void unpermute(Executor& executor, const IndexPermutation& permutation, std::uint32_t first,
               Span<const std::uint32_t> places, Span<std::uint32_t> indices);

}  // namespace thinwire
