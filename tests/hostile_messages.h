#pragma once
// How a message can go wrong on its way, or be made wrong by a rank that lies: for tests and fuzzers of whole
// exchanges.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "thinwire/span.h"
#include "wire/crc32c.h"
#include "wire/frame.h"

namespace thinwire {

enum class Damage : std::uint8_t {
  bit,          ///< One bit flipped.
  zeros,        ///< Zeros from some byte on: cut short.
  random,       ///< Random bytes from some byte on.
  word,         ///< Four bytes overwritten.
  long_word,    ///< Eight bytes overwritten, as wide as the fields of a header are.
  float_value,  ///< A float that is not finite, or as large as can be.
  field,        ///< A field of the header: a bit of it flipped, one more, one less, or a limit of its type.
  other,        ///< Another message of the same size instead.
  step_before,  ///< The message of the step before instead.
};
inline constexpr std::size_t kDamages = 9;

struct DamageAt {
  Damage kind = Damage::bit;
  std::uint32_t at = 0;     ///< Which byte, modulo the message's size.
  std::uint64_t value = 0;  ///< What is written, or a seed.
};

/// Whether the message begins as frames do.
inline bool is_frame(Span<const std::byte> message) {
  std::uint32_t magic = 0;
  if (message.size() < FrameHeader::kBytes) return false;
  std::memcpy(&magic, message.data(), sizeof magic);
  return magic == FrameHeader::kMagic;
}

/// Changes the field of a header that `at` names. Fields: type, flags, bucket, sender, step, first, count,
/// payload length, workers, width.
inline void damage_field(Span<std::byte> header, std::size_t at, std::uint64_t value) {
  struct Field {
    std::size_t at;
    std::size_t bytes;
  };
  constexpr std::array<Field, 10> kFields = {
      {{5, 1}, {6, 2}, {8, 4}, {12, 4}, {16, 8}, {24, 8}, {32, 8}, {40, 8}, {48, 4}, {52, 4}}};
  const Field field = kFields[at % kFields.size()];
  std::uint64_t now = 0;
  std::memcpy(&now, header.data() + field.at, field.bytes);
  const std::uint64_t argument = value / 8;
  const std::array<std::uint64_t, 8> choices = {now ^ std::uint64_t{1} << argument % (8 * field.bytes),
                                                now + 1,
                                                now - 1,
                                                argument % 16,
                                                ~std::uint64_t{0},
                                                std::uint64_t{1} << 32,
                                                now + 4 * (std::uint64_t{1} << argument % 60),
                                                now * 2};
  std::memcpy(header.data() + field.at, &choices[value % choices.size()], field.bytes);
}

/// Overwrites the message, which is not empty. other, before: what takes its place for these two kinds; where
/// they have another size nothing happens.
inline void damage(Span<std::byte> message, const DamageAt& how, Span<const std::byte> other,
                   Span<const std::byte> before) {
  const std::size_t at = how.at % message.size();
  const auto write = [&](const void* value, std::size_t bytes) {
    const std::size_t from = std::min(at / bytes * bytes, message.size() - std::min(bytes, message.size()));
    std::memcpy(message.data() + from, value, std::min(bytes, message.size()));
  };
  const auto replace = [&](Span<const std::byte> by) {
    if (by.size() == message.size()) std::copy(by.begin(), by.end(), message.begin());
  };
  constexpr std::array<float, 6> kFloats = {
      std::numeric_limits<float>::quiet_NaN(),   std::numeric_limits<float>::infinity(),
      -std::numeric_limits<float>::infinity(),   std::numeric_limits<float>::max(),
      -std::numeric_limits<float>::denorm_min(), -0.0f};
  switch (how.kind) {
    case Damage::bit:
      message[at] ^= std::byte{1} << (how.value % 8);
      return;
    case Damage::zeros:
      std::fill(message.begin() + static_cast<std::ptrdiff_t>(at), message.end(), std::byte{0});
      return;
    case Damage::random:
      for (std::size_t i = at; i < message.size(); ++i) {
        message[i] = static_cast<std::byte>((how.value + i) * 0x9E3779B97F4A7C15u >> 56);
      }
      return;
    case Damage::word:
      return write(&how.value, 4);
    case Damage::long_word:
      return write(&how.value, 8);
    case Damage::float_value:
      return write(&kFloats[how.value % kFloats.size()], 4);
    case Damage::field:
      if (is_frame(message)) damage_field(message.first(FrameHeader::kBytes), how.at, how.value);
      return;
    case Damage::other:
      return replace(other);
    case Damage::step_before:
      return replace(before);
  }
}

/// Makes the checksum right that a stamp carries; see comm/exchange_call.cc.
inline void seal_stamp(Span<std::byte> stamp) {
  constexpr std::size_t kChecked = 16;
  if (stamp.size() != kChecked + sizeof(std::uint32_t)) return;
  const std::uint32_t checksum = crc32c(stamp.first(kChecked));
  std::memcpy(stamp.data() + kChecked, &checksum, sizeof checksum);
}

/// The rows behind a header travel in a message of their own.
inline bool payload_follows(Span<const std::byte> message) {
  const auto type = static_cast<FrameType>(message[5]);
  return message.size() == FrameHeader::kBytes &&
         (type == FrameType::row_list || type == FrameType::row_bitmap);
}

}  // namespace thinwire
