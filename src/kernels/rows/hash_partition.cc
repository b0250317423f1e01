#include "kernels/rows/hash_partition.h"

#include <algorithm>
#include <array>
#include <cstring>

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

}  // namespace thinwire
#endif
