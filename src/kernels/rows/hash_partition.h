#pragma once
// Splitting rows among owners: a counting sort, which keeps the order inside each part and loses nothing.

#include "thinwire/executor.h"
#include "thinwire/span.h"

namespace thinwire {

/// owner_of[k] = the part of [0, size), cut into `owners` nearly equal ones (core/partition.h), in which
/// slots[k] lies; counts[p] = how many lie in part p. Slots are below size. owners: 1 to 2^16.
void find_owners(Executor& executor, Span<const std::uint32_t> slots, std::size_t size, std::size_t owners,
                 Span<std::uint16_t> owner_of, Span<std::size_t> counts);

/// Where an owner's rows go: the next ones are written there, and both pointers move on.
struct RowCursor {
  std::uint32_t* index = nullptr;
  float* values = nullptr;
};

/// Writes every row, in order, to its owner's cursor: [k] indices, [k * width] values. Where rows lie on a
/// device, its kernels reach what the cursors point to (memory of the device, or a workspace's), and cursors
/// lie in host memory.
void split_by_owner(Executor& executor, Span<const std::uint16_t> owner_of, Span<const std::uint32_t> indices,
                    Span<const float> values, std::size_t width, Span<RowCursor> cursors);

/// The owner of a slot, from owners and 1 / size: part p begins at floor(size p / owners), so x lies in part
/// floor(((x + 1) owners - 1) / size). The quotient is taken half a unit of the numerator higher, which keeps
/// it at least 1/(2 size) away from every integer: more than the rounding of doubles for size < 2^32 and
/// owners <= 2^16.
constexpr std::uint16_t owner_of_slot(std::uint32_t slot, double owners, double per_size) {
  const double above = (static_cast<double>(slot) + 1) * owners - 0.5;
  return static_cast<std::uint16_t>(static_cast<std::int32_t>(above * per_size));
}

}  // namespace thinwire
