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

/// Throws CorruptFrame unless the scale is finite and not negative and the zero bytes are zero.
inline float read_scale(Span<const std::byte> frame) {
  float scale = 0;
  std::uint32_t zero = 0;
  std::memcpy(&scale, frame.data() + FrameHeader::kBytes, sizeof scale);
  std::memcpy(&zero, frame.data() + FrameHeader::kBytes + 4, sizeof zero);
  if (!std::isfinite(scale) || scale < 0) {
    throw CorruptFrame("frame refused: scale is " + std::to_string(scale) +
                       ", expected finite and not negative");
  }
  if (zero != 0) throw CorruptFrame("frame refused: the bytes behind the scale are not zero");
  return scale;
}

inline Span<std::uint64_t> scaled_sign_words(Span<std::byte> frame, std::size_t elements) {
  return {reinterpret_cast<std::uint64_t*>(frame.data() + kScaledSignBitsAt), (elements + 63) / 64};
}

}  // namespace thinwire
