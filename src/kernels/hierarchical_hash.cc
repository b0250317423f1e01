#include "kernels/hierarchical_hash.h"

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

std::size_t HierarchicalHash::slot_of(std::uint32_t index, int round) const {
  const PhiloxCounter words = stream_.block(index, static_cast<std::uint32_t>(round));
  return static_cast<std::size_t>((std::uint64_t{words[0]} * shape_.slots) >> 32);
}

void HierarchicalHash::insert(std::uint32_t index, std::size_t owner) {
  Owner& target = owners_[owner];
  for (int round = 0; round < shape_.rounds && shape_.slots != 0; ++round) {
    std::uint32_t empty = 0;
    if (target.slots[slot_of(index, round)].compare_exchange_strong(empty, index + 1,
                                                                    std::memory_order_relaxed)) {
      return;
    }
  }
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

}  // namespace thinwire
