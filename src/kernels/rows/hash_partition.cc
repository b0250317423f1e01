#include "kernels/rows/hash_partition.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <numeric>
#include <stdexcept>
#include <string>

#include "core/partition.h"
#include "kernels/blocks.h"
#include "kernels/device/on_device.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/rows/hash_partition.cc"
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace thinwire::HWY_NAMESPACE {

/// The compiler vectorises the loop.
void FindOwners(Reads<std::uint32_t> slots, double owners, double per_size, Writes<std::uint16_t> owner_of,
                std::size_t begin, std::size_t end) {
  for (std::size_t k = begin; k < end; ++k) owner_of[k] = owner_of_slot(slots[k], owners, per_size);
}

}  // namespace thinwire::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace thinwire {

HWY_EXPORT(FindOwners);

namespace {

constexpr std::size_t kManyOwners = 1024;

}  // namespace

void find_owners(Executor& executor, Span<const std::uint32_t> slots, std::size_t size, std::size_t owners,
                 Span<std::uint16_t> owner_of, Span<std::size_t> counts) {
  THINWIRE_ON_DEVICE(find_owners, executor, slots, size, owners, owner_of, counts);
  const double per_size = 1.0 / static_cast<double>(size);
  executor.parallel_for(slots.size(), kBlockElements / 4, [&](std::size_t begin, std::size_t end) {
    HWY_DYNAMIC_DISPATCH(FindOwners)
    (slots.data(), static_cast<double>(owners), per_size, owner_of.data(), begin, end);
  });
  std::fill(counts.begin(), counts.end(), 0);
  if (owners > kManyOwners) {
    for (const std::uint16_t owner : owner_of) ++counts[owner];
    return;
  }
  // Four histograms: with few owners the next count would often wait for the last one to reach memory.
  std::array<std::array<std::uint32_t, kManyOwners>, 4> partial{};
  std::size_t k = 0;
  for (; k + 4 <= owner_of.size(); k += 4) {
    for (std::size_t h = 0; h < 4; ++h) ++partial[h][owner_of[k + h]];
  }
  for (; k < owner_of.size(); ++k) ++partial[0][owner_of[k]];
  for (std::size_t owner = 0; owner < owners; ++owner) {
    for (const auto& histogram : partial) counts[owner] += histogram[owner];
  }
}

void find_owners_by_thresholds(Span<const std::uint32_t> slots, Span<const std::uint32_t> thresholds,
                               Span<std::uint16_t> owner_of, Span<std::size_t> counts) {
  std::size_t begin = 0;
  for (std::size_t owner = 0; owner < counts.size(); ++owner) {
    const bool last = owner == thresholds.size();
    const auto end = last ? slots.end()
                          : std::lower_bound(slots.begin() + static_cast<std::ptrdiff_t>(begin), slots.end(),
                                             thresholds[owner]);
    counts[owner] = static_cast<std::size_t>(end - slots.begin()) - begin;
    std::ranges::fill(owner_of.subspan(begin, counts[owner]), static_cast<std::uint16_t>(owner));
    begin += counts[owner];
  }
}

void cut_evenly(Span<const std::uint32_t> slots, Span<std::uint32_t> thresholds) {
  const std::size_t owners = thresholds.size() + 1;
  for (std::size_t p = 1; p < owners; ++p) thresholds[p - 1] = slots[part_begin(slots.size(), owners, p)];
}

void split_by_owner(Executor& executor, Span<const std::uint16_t> owner_of, Span<const std::uint32_t> indices,
                    Span<const float> values, std::size_t width, Span<RowCursor> cursors) {
  THINWIRE_ON_DEVICE(split_by_owner, executor, owner_of, indices, values, width, cursors);
  if (width == 1) {
    for (std::size_t k = 0; k < indices.size(); ++k) {
      RowCursor& cursor = cursors[owner_of[k]];
      *cursor.index++ = indices[k];
      *cursor.values++ = values[k];
    }
    return;
  }
  for (std::size_t k = 0; k < indices.size(); ++k) {
    RowCursor& cursor = cursors[owner_of[k]];
    *cursor.index++ = indices[k];
    std::memcpy(cursor.values, values.data() + k * width, width * sizeof(float));
    cursor.values += width;
  }
}

void deliver_rows(Executor& executor, Span<const std::uint32_t> positions, Span<const std::uint16_t> owner_of,
                  Span<const std::uint32_t> indices, Span<const float> values, std::size_t width,
                  Span<RowCursor> cursors) {
  THINWIRE_ON_DEVICE(deliver_rows, executor, positions, owner_of, indices, values, width, cursors);
  for (const std::uint32_t row : positions) {
    RowCursor& cursor = cursors[owner_of[row]];
    *cursor.index++ = indices[row];
    std::memcpy(cursor.values, values.data() + row * width, width * sizeof(float));
    cursor.values += width;
  }
}

// --- Zen's Algorithm 1

HierarchicalHashShape HierarchicalHashParameters::shape(std::size_t nonzeros, std::size_t owners) const {
  const double of_all = std::ceil(slots * static_cast<double>(nonzeros));
  const auto each = (static_cast<std::size_t>(of_all) + owners - 1) / owners;
  return {.owners = owners,
          .slots = each,
          .serial_room = static_cast<std::size_t>(serial * static_cast<double>(each)),
          .rounds = hashes};
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

std::size_t split_positions_by_hash(Executor& executor, const HierarchicalHashShape& shape,
                                    const RandomStream& stream, Span<const std::uint32_t> indices,
                                    Span<const std::uint16_t> owner_of, Span<const std::size_t> counts,
                                    const HashMemory& memory, Span<std::uint32_t> positions) {
  if (indices.empty()) return 0;
  THINWIRE_ON_DEVICE(split_positions_by_hash, executor, shape, stream, indices, owner_of, counts, memory,
                     positions);
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
      if (placed) continue;
      const std::size_t at = serial.fetch_add(1, std::memory_order_relaxed);
      if (at < memory.serial.size()) memory.serial[at] = stored;
    }
  });
  if (serial > memory.serial.size()) return serial;
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

// --- Algorithm 3

std::size_t split_by_lossy_hash(Executor& executor, const RandomStream& stream,
                                Span<const std::uint32_t> indices, Span<std::uint32_t> memory,
                                Span<std::uint32_t> split, Span<std::size_t> counts) {
  constexpr std::uint64_t kMost = std::uint64_t{1} << 32;
  if (memory.empty() || memory.size() > kMost || memory.size() % counts.size() != 0) {
    throw std::invalid_argument("hashing into " + std::to_string(memory.size()) + " entries of " +
                                std::to_string(counts.size()) +
                                " owners: expected as many for each of them, and 1 to 2^32 in all");
  }
  std::ranges::fill(memory, 0);
  executor.parallel_for(indices.size(), kBlockElements / 4, [&](std::size_t begin, std::size_t end) {
    for (std::size_t k = begin; k < end; ++k) {
      const std::size_t place = lossy_hash_place(stream, indices[k], memory.size());
      std::atomic_ref(memory[place]).store(indices[k] + 1, std::memory_order_relaxed);
    }
  });
  const std::size_t slots = memory.size() / counts.size();
  std::size_t survivors = 0;
  for (std::size_t owner = 0; owner < counts.size(); ++owner) {
    const std::size_t before = survivors;
    for (const std::uint32_t stored : memory.subspan(owner * slots, slots)) {
      if (stored != 0) split[survivors++] = stored - 1;
    }
    counts[owner] = survivors - before;
  }
  return survivors;
}

}  // namespace thinwire
#endif
