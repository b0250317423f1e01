#pragma once
// How products of thin factors cut their operands, so that what is used again stays in a core's caches.

#include <algorithm>
#include <cstddef>
#include <vector>

namespace thinwire {

/// Columns of a panel of the right factor: the cache's first level holds one of rank 64.
inline constexpr std::size_t kPanel = 64;
/// Floats of a band's panels: two of them fit the second level.
inline constexpr std::size_t kBandFloats = 1 << 16;

/// Whole panels of a band.
inline std::size_t band_columns(std::size_t rank) {
  return std::max<std::size_t>(1, kBandFloats / (kPanel * rank)) * kPanel;
}

/// Rows and columns that one task works on: 4 KB of a row, so that memory is read in long runs while the
/// factors stay in the first-level cache.
inline constexpr std::size_t kColumnBlock = 1024;
inline constexpr std::size_t kRowBlock = 16;

/// What a thread keeps from call to call, at least `floats`.
inline float* kept_room(std::size_t floats) {
  thread_local std::vector<float> room;
  if (room.size() < floats) room.resize(floats);
  return room.data();
}

}  // namespace thinwire
