#include "kernels/rows/hierarchical_hash.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <string>

#include "kernels/blocks.h"
#include "kernels/device/on_device.h"

namespace thinwire {

HierarchicalHashShape HierarchicalHashShape::for_nonzeros(std::size_t nonzeros, std::size_t owners) {
  const std::size_t slots = (2 * nonzeros + owners - 1) / owners;
  return {.owners = owners, .slots = slots, .serial_room = slots / 10};
}

HierarchicalHash::HierarchicalHash(const HierarchicalHashShape& shape, const RandomStream& stream)
    : shape_(shape), stream_(stream) {
  for (std::size_t p = 0; p < shape.owners; ++p) {
    owners_.emplace_back(shape.slots);
    owners_.back().serial.reserve(shape.serial_room);
  }
}

void HierarchicalHash::insert(std::uint32_t index, std::size_t owner) {
  Owner& target = owners_[owner];
  const bool placed = probe_slots(stream_, index, shape_.rounds, shape_.slots, [&](std::size_t slot) {
    std::uint32_t empty = 0;
    return target.slots[slot].compare_exchange_strong(empty, index + 1, std::memory_order_relaxed);
  });
  if (placed) return;
  std::lock_guard lock(target.mutex);
  target.serial.push_back(index);
}

std::vector<std::uint32_t> HierarchicalHash::extract(std::size_t owner) const {
  std::vector<std::uint32_t> indices;
  for (const auto& slot : owners_[owner].slots) {
    if (const std::uint32_t stored = slot.load(std::memory_order_relaxed); stored != 0)
      indices.push_back(stored - 1);
  }
  indices.insert(indices.end(), owners_[owner].serial.begin(), owners_[owner].serial.end());
  return indices;
}

void split_by_hash(Executor& executor, const HierarchicalHashShape& shape, const RandomStream& stream,
                   Span<const std::uint32_t> indices, Span<const std::uint16_t> owner_of,
                   Span<std::uint32_t> split, Span<std::size_t> counts, Span<std::size_t> serial_counts) {
  constexpr std::size_t kMost = std::numeric_limits<std::uint32_t>::max();
  if (shape.slots + shape.serial_room > kMost / std::max<std::size_t>(1, shape.owners)) {
    throw std::invalid_argument("hierarchical hashing with " + std::to_string(shape.owners) + " owners of " +
                                std::to_string(shape.slots + shape.serial_room) +
                                " entries: positions are 32 bits");
  }
  THINWIRE_ON_DEVICE(split_by_hash, executor, shape, stream, indices, owner_of, split, counts, serial_counts);
  HierarchicalHash table(shape, stream);
  executor.parallel_for(indices.size(), kBlockElements / 4, [&](std::size_t begin, std::size_t end) {
    for (std::size_t k = begin; k < end; ++k) table.insert(indices[k], owner_of[k]);
  });
  std::uint32_t* next = split.data();
  for (std::size_t owner = 0; owner < shape.owners; ++owner) {
    const auto own = table.extract(owner);
    next = std::copy(own.begin(), own.end(), next);
    counts[owner] = own.size();
    serial_counts[owner] = table.serial_count(owner);
  }
}

std::size_t split_positions_by_hash(Executor& executor, const HierarchicalHashShape& shape,
                                    const RandomStream& stream, Span<const std::uint32_t> indices,
                                    Span<const std::uint16_t> owner_of, Span<const std::size_t> counts,
                                    const HashMemory& memory, Span<std::uint32_t> positions) {
  std::fill(memory.slots.begin(), memory.slots.end(), 0);
  std::atomic<std::size_t> serial{0};
  executor.parallel_for(indices.size(), kBlockElements / 4, [&](std::size_t begin, std::size_t end) {
    for (std::size_t k = begin; k < end; ++k) {
      const Span<std::uint32_t> own = memory.slots.subspan(owner_of[k] * shape.slots, shape.slots);
      const auto stored = static_cast<std::uint32_t>(k + 1);
      const bool placed = probe_slots(stream, indices[k], shape.rounds, shape.slots, [&](std::size_t slot) {
        std::uint32_t empty = 0;
        return std::atomic_ref(own[slot]).compare_exchange_strong(empty, stored, std::memory_order_relaxed);
      });
      if (!placed) memory.serial[serial.fetch_add(1, std::memory_order_relaxed)] = stored;
    }
  });
  std::exclusive_scan(counts.begin(), counts.end(), memory.cursors.begin(), std::size_t{0});
  executor.parallel_for(shape.owners, 1, [&](std::size_t begin, std::size_t end) {
    for (std::size_t owner = begin; owner < end; ++owner) {
      for (const std::uint32_t stored : memory.slots.subspan(owner * shape.slots, shape.slots)) {
        if (stored != 0) positions[memory.cursors[owner]++] = stored - 1;
      }
    }
  });
  for (const std::uint32_t stored : memory.serial.first(serial)) {
    positions[memory.cursors[owner_of[stored - 1]]++] = stored - 1;
  }
  executor.parallel_for(shape.owners, 1, [&](std::size_t begin, std::size_t end) {
    for (std::size_t owner = begin; owner < end; ++owner) {
      const auto last = positions.begin() + static_cast<std::ptrdiff_t>(memory.cursors[owner]);
      std::sort(last - static_cast<std::ptrdiff_t>(counts[owner]), last);
    }
  });
  return serial;
}

}  // namespace thinwire
