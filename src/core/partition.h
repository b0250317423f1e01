#pragma once
// How a range of elements is cut into nearly equal parts: part p of n elements begins at floor(n p / parts).

#include <cstddef>
#include <cstdint>

namespace thinwire {

/// n < 2^32 elements and fewer than 2^31 parts, so the product fits.
constexpr std::size_t part_begin(std::size_t elements, std::size_t parts, std::size_t part) {
  return static_cast<std::size_t>(static_cast<std::uint64_t>(elements) * part / parts);
}

constexpr std::size_t part_size(std::size_t elements, std::size_t parts, std::size_t part) {
  return part_begin(elements, parts, part + 1) - part_begin(elements, parts, part);
}

/// Elements that the rank at `position` of a ring of `size` sends in an all-reduce: every part but the next
/// position's in the reduce-scatter, every part but the one after that in the all-gather.
constexpr std::uint64_t ring_sent_elements(std::size_t elements, std::size_t size, std::size_t position) {
  return 2 * static_cast<std::uint64_t>(elements) - part_size(elements, size, (position + 1) % size) -
         part_size(elements, size, (position + 2) % size);
}

}  // namespace thinwire
