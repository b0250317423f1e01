#pragma once
// How selections sample and count, for the CPU and the device alike.

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "core/philox.h"

namespace thinwire {

/// The three digits of a magnitude, most significant first.
struct RadixDigit {
  unsigned shift;
  unsigned bits;
};
inline constexpr std::array<RadixDigit, 3> kRadixDigits = {{{20, 11}, {10, 10}, {0, 10}}};
inline constexpr std::size_t kMostBins = std::size_t{1} << 11;

/// Which of `sample` elements, by magnitude, is the threshold that about k of n pass; 0 when the sample is
/// too small to tell.
inline std::size_t sample_rank(std::size_t n, std::size_t k, std::size_t sample, double safety) {
  if (n == 0 || sample == 0) return 0;
  const double passing = static_cast<double>(k) / static_cast<double>(n) * static_cast<double>(sample);
  const double rank = std::max(1.0, std::round(passing + safety * (std::sqrt(passing) + 1)));
  return rank <= static_cast<double>(sample) ? static_cast<std::size_t>(rank) : 0;
}

/// Where element s of a sample lies; stride: n / sample. Multiples of the golden ratio, modulo 1, spread
/// evenly and have no period that could fall in with that of rows or channels.
constexpr std::size_t sample_position(std::size_t s, std::uint32_t seed, double stride, std::size_t n) {
  const std::uint32_t phase = seed + static_cast<std::uint32_t>(s) * kPhiloxWeyl0;
  const double at = (static_cast<double>(s) + static_cast<double>(phase) * 0x1p-32) * stride;
  const auto i = static_cast<std::size_t>(at);
  return i < n ? i : n - 1;
}

/// Of select_largest: below this several passes cost little.
inline constexpr std::size_t kSelectSmall = std::size_t{1} << 18;
inline constexpr double kSelectSafety = 4;

/// As many elements as select_largest draws, out of n, k of them wanted (k >= 1).
constexpr std::size_t sample_size(std::size_t n, std::size_t k) {
  constexpr std::size_t kPassingSamples = 64;  // their number is known to an eighth
  constexpr std::size_t kFewestSamples = 4096;
  return std::min(n / 16, std::max(kFewestSamples, kPassingSamples * (n / k + 1)));
}

}  // namespace thinwire
