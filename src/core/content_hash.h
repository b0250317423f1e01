#pragma once
// Whether two ranks hold the same bytes, told by 8 of them. At the speed of memory; not against an attacker.

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "thinwire/span.h"

namespace thinwire {

/// Hash of the bytes in host memory and of `seed`, which may be the hash of what came before. Bytes that
/// differ in one 64-bit word alone never have the same hash.
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

}  // namespace thinwire
