#pragma once
// Splitting rows among owners: a counting sort, which keeps the order inside each part and loses nothing.

#include <cstddef>
#include <cstdint>

#include "thinwire/executor.h"
#include "thinwire/span.h"

namespace thinwire {

/// Owners are counted in 16 bits.
inline constexpr std::size_t kMostOwners = std::size_t{1} << 16;

/// owner_of[k] = the part of [0, size), cut into `owners` nearly equal ones (core/partition.h), in which
/// places[k] lies; counts[p] = how many lie in part p. Places are below size. owners: 1 to kMostOwners.
void find_owners(Executor& executor, Span<const std::uint32_t> places, std::size_t size, std::size_t owners,
                 Span<std::uint16_t> owner_of, Span<std::size_t> counts);

/// Where an owner's rows go: the next ones are written there, and both pointers move on.
struct RowCursor {
  std::uint32_t* index = nullptr;
  float* values = nullptr;
};

/// Writes every row, in order, to its owner's cursor: [k] indices, [k * width] values.
void split_by_owner(Executor& executor, Span<const std::uint16_t> owner_of, Span<const std::uint32_t> indices,
                    Span<const float> values, std::size_t width, Span<RowCursor> cursors);

}  // namespace thinwire
