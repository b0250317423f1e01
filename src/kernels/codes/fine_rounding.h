#pragma once
// The definition in quantization_levels.h of one element's code, bit for bit, for those that 16 bits of u do
// not decide; and what the kernels that decide the others share.

#include <cstddef>
#include <cstdint>
#include <limits>

#include "core/philox.h"
#include "kernels/codes/quantization_levels.h"

namespace thinwire {

/// Elements that share the words of their random blocks.
inline constexpr std::size_t kPair = 128;
/// Adding it to 0 <= y < 2^23 rounds y to the integer that the low 23 bits then are, plus 1.
inline constexpr float kMagic = 0x1p23f + 1.0f;
inline constexpr std::uint32_t kMagicBits = 0x4B000000;  // of 0x1p23f
/// With u's high bits added, y's low half is at most this (shifted to the top: 16 bits of it) where u's low
/// bits matter: it is 0 or 1.
inline constexpr std::uint32_t kLeastClear = 0x1FFFFu;
/// In place of u's high bits where the nearest level is wanted: with the 1 that kMagic adds, 2^15.
inline constexpr std::uint32_t kToNearest = 0x7FFFu;

/// Infinity where a float cannot hold it.
constexpr float float_of(double value) {
  const bool fits = value <= static_cast<double>(std::numeric_limits<float>::max());
  return fits ? static_cast<float>(value) : std::numeric_limits<float>::infinity();
}

/// 1 / norm, 0 where that is no float.
constexpr float inverse_of(float norm) {
  return norm < std::numeric_limits<float>::min() ? 0.0f : 1.0f / norm;
}

/// i: index within the pair. magnitude: |p| / norm. negative: the sign of p.
constexpr std::uint8_t decide_finely(const QuantizationLevels& levels, const RandomStream& stream,
                                     std::size_t pair, std::size_t i, float magnitude, bool negative) {
  std::uint32_t j = 0;
  float y = 0;
  bool crosses = false;
  if (levels.equal_steps) {
    const float scale = levels.last() * 65536.0f;
    y = magnitude * scale < scale ? magnitude * scale : scale;
  } else {
    const float a = magnitude < 1.0f ? magnitude : 1.0f;
    crosses = a < levels.values[0];
    while (j + 1 < levels.count() && a >= levels.values[j + 1]) ++j;
    const float above = (a - levels.values[j]) * levels.slopes[j];
    y = crosses ? (a + levels.values[0]) * levels.lowest_slope : (above < 65536.0f ? above : 65536.0f);
  }
  const auto block = static_cast<std::uint32_t>(16 * pair + i % 16);
  const std::size_t word = i % 64 / 16;
  const std::uint32_t coarse = (stream.block(block, 0)[word] >> (i < 64 ? 0 : 16)) & 0xFFFF;
  const auto fine =
      static_cast<double>(stream.block(block, 1 + static_cast<std::uint32_t>(i / 64))[word] >> 8);
  const double sum = static_cast<double>(y) + static_cast<double>(coarse) + fine * 0x1p-24;
  const std::uint32_t up = static_cast<std::uint32_t>(sum) >> 16;
  const std::uint32_t sign = negative ? 1 : 0;
  if (crosses) return static_cast<std::uint8_t>(up != 0 ? sign : sign ^ 1);
  return static_cast<std::uint8_t>((j + up) << 1 | sign);
}

}  // namespace thinwire
