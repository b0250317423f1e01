#pragma once
// How rows are shared among threads of the CPU.

#include <algorithm>
#include <cstddef>

namespace thinwire {

/// Rows that are worth a thread of their own.
inline std::size_t rows_per_range(std::size_t width) {
  constexpr std::size_t kElementsPerRange = std::size_t{1} << 14;
  return std::max<std::size_t>(1, kElementsPerRange / width);
}

}  // namespace thinwire
