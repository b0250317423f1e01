#pragma once
// Hashes that every build agrees on. Messages have another checksum (wire/crc32c.h).

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "thinwire/span.h"

namespace thinwire {

/// Hash of the bytes in host memory and of `seed`, which may be the hash of what came before. It tells
/// whether two ranks hold the same bytes: those that differ in one 64-bit word alone never have the same
/// hash. At the speed of memory; not against an attacker.
inline std::uint64_t content_hash(Span<const std::byte> bytes, std::uint64_t seed) {
  // Every operation on a lane is one to one, in the word as in the lane.
  constexpr std::uint64_t kWord = 0x9E3779B97F4A7C15u;
  constexpr std::uint64_t kLane = 0xD6E8FEB86659FD93u;
  const auto mix = [](std::uint64_t lane, std::uint64_t word) {
    return std::rotl(lane + word * kWord, 29) * kLane;
  };
  const auto word_at = [&bytes](std::size_t at, std::size_t size) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes.data() + at, size);
    return word;
  };
  std::array<std::uint64_t, 4> lanes = {seed, seed + 1, seed + 2, seed + 3};
  std::size_t at = 0;
  for (; at + 32 <= bytes.size(); at += 32) {
    for (std::size_t lane = 0; lane < 4; ++lane) lanes[lane] = mix(lanes[lane], word_at(at + 8 * lane, 8));
  }
  std::uint64_t hash = mix(seed, bytes.size());
  for (const std::uint64_t lane : lanes) hash = mix(hash, lane);
  for (; at < bytes.size(); at += 8)
    hash = mix(hash, word_at(at, std::min<std::size_t>(8, bytes.size() - at)));
  return hash ^ (hash >> 32);
}

/// FNV-1a of 64 bits, byte by byte: the checksum of files, and a hash of texts. Slow on large data.
class Fnv1a {
 public:
  void add(const void* data, std::size_t size) {
    const auto* bytes = static_cast<const unsigned char*>(data);
    for (std::size_t i = 0; i < size; ++i) value_ = (value_ ^ bytes[i]) * 0x100000001b3u;
  }
  std::uint64_t value() const { return value_; }

 private:
  std::uint64_t value_ = 0xcbf29ce484222325u;
};

}  // namespace thinwire
