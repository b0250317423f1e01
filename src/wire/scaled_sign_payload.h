#pragma once
// The payload of a scaled_sign_bits frame: float32 scale, 4 zero bytes, bits from byte 8 on.

#include <cmath>
#include <cstring>
#include <string>

#include "thinwire/errors.h"
#include "thinwire/span.h"
#include "wire/frame.h"

namespace thinwire {

inline constexpr std::size_t kScaledSignBitsAt = FrameHeader::kBytes + 8;

inline void write_scale(Span<std::byte> frame, float scale) {
  const std::uint32_t zero = 0;
  std::memcpy(frame.data() + FrameHeader::kBytes, &scale, sizeof scale);
  std::memcpy(frame.data() + FrameHeader::kBytes + 4, &zero, sizeof zero);
}

/// table: the payload's first eight bytes. Throws CorruptFrame unless the scale is finite and not negative
/// and the bytes behind it are zero. Returns the scale.
inline float require_scale(Span<const float> table) {
  std::uint32_t zero = 0;
  std::memcpy(&zero, &table[1], sizeof zero);
  if (!std::isfinite(table[0]) || table[0] < 0) {
    throw CorruptFrame("frame refused: scale is " + std::to_string(table[0]) +
                       ", expected finite and not negative");
  }
  if (zero != 0) throw CorruptFrame("frame refused: the bytes behind the scale are not zero");
  return table[0];
}

inline float read_scale(Span<const std::byte> frame) {
  float table[2];
  std::memcpy(table, frame.data() + FrameHeader::kBytes, sizeof table);
  return require_scale(table);
}

inline Span<std::uint64_t> scaled_sign_words(Span<std::byte> frame, std::size_t elements) {
  return {reinterpret_cast<std::uint64_t*>(frame.data() + kScaledSignBitsAt), (elements + 63) / 64};
}

}  // namespace thinwire
