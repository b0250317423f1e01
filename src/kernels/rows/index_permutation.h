#pragma once
// A seeded bijection of [0, size) that scatters whatever pattern indices have: the hash by which Zen gives
// every index an owner and a slot. Because it is a bijection, the slots that an owner holds are a range, so
// its bitmap needs no table of the indices behind it.
//
// Rounds of xor, odd multiplication and xorshift on ceil(log2 size) bits; a value outside [0, size) goes
// through them again until it falls inside ("cycle walking"), twice on average at most.
//
// Blocks of 2^block_bits neighbours can be kept together, which lets the scattered writes of a table share
// cache lines. It costs balance: a block is one ball in the owners' bins, however many non-zeros it has.

#include <array>

#include "core/philox.h"
#include "thinwire/executor.h"
#include "thinwire/span.h"

namespace thinwire {

struct IndexPermutation {
  static constexpr std::size_t kRounds = 4;

  std::uint32_t size = 0;
  std::uint32_t block_bits = 0;
  std::uint32_t blocks = 0;  ///< Whole ones; what is behind them stays where it is.
  std::uint32_t mask = 0;    ///< 2^bits - 1 >= blocks - 1
  std::uint32_t shift = 0;   ///< At least half of the bits, so that x ^ (x >> shift) undoes itself.
  std::array<std::uint32_t, kRounds> keys{};
  std::array<std::uint32_t, kRounds> multipliers{};  ///< Odd.
  std::array<std::uint32_t, kRounds> inverses{};     ///< Of the multipliers, modulo 2^32.
  bool identity = false;

  /// Indices are below `size`, at most 2^32 - 1. Every (stream, size, block_bits) is another permutation.
  static IndexPermutation make(std::size_t size, const RandomStream& stream, std::uint32_t block_bits = 0);
  /// Leaves indices where they are.
  static IndexPermutation none(std::size_t size);

  constexpr std::uint32_t slot_of(std::uint32_t index) const { return walk<true>(index); }
  constexpr std::uint32_t index_of(std::uint32_t slot) const { return walk<false>(slot); }

  /// All rounds, once: a bijection of [0, mask].
  template <bool kForward>
  constexpr std::uint32_t rounds(std::uint32_t x) const {
    for (std::size_t r = 0; r < kRounds; ++r) {
      if (kForward) {
        x = ((x ^ keys[r]) * multipliers[r]) & mask;
        x ^= x >> shift;
      } else {
        const std::size_t round = kRounds - 1 - r;
        x ^= x >> shift;
        x = ((x * inverses[round]) & mask) ^ keys[round];
      }
    }
    return x;
  }

 private:
  template <bool kForward>
  constexpr std::uint32_t walk(std::uint32_t x) const {
    std::uint32_t block = x >> block_bits;
    if (identity || block >= blocks) return x;
    do {
      block = rounds<kForward>(block);
    } while (block >= blocks);
    return (block << block_bits) | (x & ((1u << block_bits) - 1));
  }
};

/// slots[k] = permutation.slot_of(indices[k]); may be done in place. Every index is below size.
void permute(Executor& executor, const IndexPermutation& permutation, Span<const std::uint32_t> indices,
             Span<std::uint32_t> slots);

/// slots[k] = permutation.slot_of(indices[k]) - first. Returns whether all of these are in [0, count);
/// where one is not, its value has no meaning.
bool permute_into(Executor& executor, const IndexPermutation& permutation, std::uint32_t first,
                  std::uint32_t count, Span<const std::uint32_t> indices, Span<std::uint32_t> slots);

/// indices[k] = permutation.index_of(first + slots[k]); may be done in place. Every first + slots[k] is
/// below size.
void unpermute(Executor& executor, const IndexPermutation& permutation, std::uint32_t first,
               Span<const std::uint32_t> slots, Span<std::uint32_t> indices);

}  // namespace thinwire
