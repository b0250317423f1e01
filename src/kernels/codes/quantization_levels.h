#pragma once
// What stochastic quantizers share: p = gradient + residual becomes a sign and one of a few levels times a
// norm, rounded up or down at random so that the expectation is p. Codes lie as bit planes
// (wire/payloads.h): plane 0 holds the signs, set for negative; planes 1.. the level's index, lowest bit
// first.
//
// One element with norm n:
//
//   a = min(|p| * (1 / n), 1), in float
//   j = the last level with values[j] <= a
//   y = 2^16 * (a - values[j]) / (values[j + 1] - values[j]), in float; equal steps: y = 2^16 s a and j = 0
//   index = j + floor((y + u) / 2^16), u uniform on the multiples of 2^-24 in [0, 2^16)
//
// Levels may leave out 0. Then a < values[0] is rounded between -values[0] and values[0]: y = 2^15 * (a +
// values[0]) / values[0], and floor((y + u) / 2^16) = 0 means index 0 with the other sign.
//
// Where `nearest` is set, y is rounded to an integer and u is 2^15: the result is the nearer level, for those
// who keep what rounding leaves out. Without it E[Q(p)] is exact to 2^-24 relative. Of u's 40 bits, 16 are
// drawn for every element; the others only for the one element in 30,000 that they can decide.
//
// u of element e (of 128 k + i, i < 128): the 16 bits are the low (i < 64) or high half of word (i % 64) / 16
// of stream.block(16 k + i % 16, 0), the 24 bits are the high ones of the same word of
// stream.block(16 k + i % 16, 1 + i / 64).

#include <array>

#include "thinwire/span.h"

namespace thinwire {

/// Magnitudes values[0] < ... < values[s] = 1 with s = 2^(bits - 1) - 1; values[0] is 0 unless they leave it
/// out.
struct QuantizationLevels {
  static constexpr std::size_t kMost = 128;
  static constexpr std::size_t kLeastBits = 2;
  static constexpr std::size_t kMostBits = 8;

  /// values[j] = j / s. Throws std::invalid_argument unless kLeastBits <= bits <= kMostBits.
  static QuantizationLevels uniform(std::size_t bits);
  /// values[j] = 2^(j - s) from j = 1 on. Throws as uniform does.
  static QuantizationLevels halving(std::size_t bits);
  /// values: 2^(bits - 1). Throws std::invalid_argument unless they ascend from 0 or more to 1.
  static QuantizationLevels given(Span<const float> values);

  constexpr bool has_zero() const { return values[0] == 0; }
  constexpr std::size_t count() const { return std::size_t{1} << (bits - 1); }
  constexpr float last() const { return static_cast<float>(count() - 1); }
  Span<const float> used() const { return Span<const float>(values).first(count()); }

  alignas(64) std::array<float, kMost> values{};
  /// 2^16 / (values[j + 1] - values[j]), at most 2^126; 0 at the last.
  alignas(64) std::array<float, kMost> slopes{};
  std::size_t bits = kLeastBits;
  float lowest_slope = 0;  ///< 2^15 / values[0], at most 2^126.
  bool equal_steps = true;
  bool nearest = false;  ///< Rounds to the nearest level and not at random.
};

enum class QuantizationNorm : std::uint8_t { largest, l2 };

/// What an element is scaled by: norms[c] for elements [c * chunk, (c + 1) * chunk), or, where ends is not
/// empty, norms[c] for elements [ends[c - 1], ends[c]).
struct QuantizationScales {
  static constexpr std::size_t kAlignment = 128;  ///< What `chunk` is a multiple of.
  std::size_t chunk = 0;
  Span<const std::size_t> ends{};
};

constexpr std::size_t chunk_count(std::size_t elements, std::size_t chunk) {
  return (elements + chunk - 1) / chunk;
}

}  // namespace thinwire
