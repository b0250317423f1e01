#pragma once
// What stochastic quantizers share: p = gradient + residual becomes a sign and one of a few levels times a
// norm, rounded up or down at random so that the expectation is p. Codes lie as bit planes
// (wire/coded_payload.h): plane 0 holds the signs, set for negative; planes 1.. the level's index, lowest bit
// first.
//
// One element with norm n:
//
//   a = min(|p| * (1 / n), 1), in float
//   j = the last level with values[j] <= a
//   y = 2^16 * (a - values[j]) / (values[j + 1] - values[j]), in float; equal steps: y = 2^16 s a and j = 0
//   index = j + floor((y + u) / 2^16), u uniform on the multiples of 2^-24 in [0, 2^16)
//
// so that E[index] is exact to 2^-24 relative. Of u's 40 bits, 16 are drawn for every element; the others
// only for the one element in 30,000 that they can decide.
//
// u of element e (of 128 k + i, i < 128): the 16 bits are the low (i < 64) or high half of word (i % 64) / 16
// of stream.block(16 k + i % 16, 0), the 24 bits are the high ones of the same word of
// stream.block(16 k + i % 16, 1 + i / 64).

#include <array>
#include <cstddef>
#include <cstdint>

#include "core/philox.h"
#include "thinwire/executor.h"
#include "thinwire/span.h"

namespace thinwire {

/// Magnitudes 0 = values[0] < ... < values[s] = 1 with s = 2^(bits - 1) - 1; halving ones end at 2^-126, the
/// least normal float.
struct QuantizationLevels {
  static constexpr std::size_t kMost = 128;
  static constexpr std::size_t kLeastBits = 2;
  static constexpr std::size_t kMostBits = 8;

  /// values[j] = j / s. Throws std::invalid_argument unless kLeastBits <= bits <= kMostBits.
  static QuantizationLevels uniform(std::size_t bits);
  /// values[j] = 2^(j - s) from j = 1 on. Throws as uniform does.
  static QuantizationLevels halving(std::size_t bits);
  /// values: 2^(bits - 1). Throws std::invalid_argument unless they ascend from 0 to 1.
  static QuantizationLevels given(Span<const float> values);

  std::size_t count() const { return std::size_t{1} << (bits - 1); }
  float last() const { return static_cast<float>(count() - 1); }
  Span<const float> used() const { return Span<const float>(values).first(count()); }

  std::size_t bits = kLeastBits;
  bool equal_steps = true;
  alignas(64) std::array<float, kMost> values{};
  alignas(64) std::array<float, kMost> slopes{};  ///< 2^16 / (values[j + 1] - values[j]), at most 2^126; 0 at
                                                  ///< the last.
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

/// Quantizes chunk by chunk, each while it is in the cache. residual: [n] or empty. norms:
/// [chunk_count(n, chunk)], written; a norm below the least normal float (1.2e-38) becomes 0, and so do the
/// chunk's elements. codes: code_words(n, levels.bits) words, codes behind the last element are 0 with the
/// sign of 0. Returns false if any p or norm is not finite; norms and codes mean nothing then. l2 norms are
/// sums of double and may differ in the last bit between instruction sets, codes of equal norms do not.
bool quantize_chunks(Executor& executor, const RandomStream& stream, const QuantizationLevels& levels,
                     QuantizationNorm norm, std::size_t chunk, Span<const float> gradient,
                     Span<const float> residual, Span<float> norms, Span<std::uint64_t> codes);

/// Quantizes with given finite norms, one per range of `ends` (ascending, the last at n); larger magnitudes
/// are cut to the norm. Norms below the least normal float count as 0. All p are finite.
void quantize_ranges(Executor& executor, const RandomStream& stream, const QuantizationLevels& levels,
                     Span<const std::size_t> ends, Span<const float> norms, Span<const float> gradient,
                     Span<const float> residual, Span<std::uint64_t> codes);

/// The largest |p|; not finite if any p is not.
float largest_magnitude(Executor& executor, Span<const float> gradient, Span<const float> residual);

/// Q(p) of elements [first, first + values.size()): values becomes it, or it is added. first: a multiple of
/// 64. A value is +-values[index] * norm, rounded to float; equal steps: +-min(index * (norm / s), norm).
/// Serial.
void dequantize(const QuantizationLevels& levels, const QuantizationScales& scales, Span<const float> norms,
                Span<const std::uint64_t> codes, std::size_t first, bool add, Span<float> values);

}  // namespace thinwire
