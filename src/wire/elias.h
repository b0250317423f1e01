#pragma once
// Sums of signs in Elias's gamma code: the likelier a sum is, the fewer bits it has.
//
// Source: P. Elias, "Universal codeword sets and representations of the integers", IEEE Transactions on
// Information Theory, 1975. The Marsit paper codes its baselines' messages so (section 5).
//
// A counter c of m workers is the sum 2c - m. Signs of gradients mostly cancel, so small sums are the most
// frequent, and are numbered from 1 on: with an even m 0, 2, -2, 4, -4, ..., with an odd one 1, -1, 3, -3,
// ... Number u is floor(log2 u) zero bits and then u itself: its highest bit, and the others from the lowest
// on. Bits fill bytes from the lowest bit up; those behind the last code are 0.

#include <bit>

#include "thinwire/span.h"

namespace thinwire {

/// Counters as bit planes of `words` words each, least significant first; element i in bit i % 64 of word
/// i / 64.
struct SignSums {
  std::uint32_t workers = 1;
  std::size_t count = 0;
  std::size_t words() const { return (count + 63) / 64; }
};

/// Writes the code of planes [vote_planes(workers) * words()] and returns its bytes; 0 where it would take
/// more than codes.size().
std::size_t write_elias(const SignSums& sums, Span<const std::uint64_t> planes, Span<std::byte> codes);

/// The planes of what write_elias wrote. Throws CorruptFrame where a code stands for no sum of so many
/// workers, or where bytes end too soon or are left over.
void read_elias(const SignSums& sums, Span<const std::byte> codes, Span<std::uint64_t> planes);

// What a quantizer's levels would take in codes of their own lengths. Thinwire's have a fixed length.
//
// Source: D. Alistarh et al., "QSGD", NeurIPS 2017, section 3 and appendix A: magnitudes in Elias's recursive
// code (omega), beside a bit for the sign.

/// Bits of Elias's recursive code of a number from 1 on: 1, 3, 3, 6, 6, 6, 6, 7, ...
constexpr int elias_omega_bits(std::uint64_t number) {
  int bits = 1;
  while (number > 1) {
    const auto width = static_cast<int>(std::bit_width(number));
    bits += width;
    number = static_cast<std::uint64_t>(width - 1);
  }
  return bits;
}

struct EliasBits {
  /// Of the non-zeros alone: the distance from the last one, a sign, and the magnitude.
  std::uint64_t gaps = 0;
  /// Of every element: the magnitude + 1, and a sign unless it is 0.
  std::uint64_t each = 0;
};
EliasBits elias_bits(Span<const std::int32_t> levels);

/// The least that any code takes on average which knows how often each symbol comes, counts[symbol], and
/// codes each by itself: their entropy, times how many there are.
double entropy_bits(Span<const std::uint64_t> counts);

}  // namespace thinwire
