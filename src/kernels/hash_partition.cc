#include "kernels/hash_partition.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "kernels/blocks.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/hash_partition.cc"
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace thinwire::HWY_NAMESPACE {

/// Part p begins at floor(size p / owners), so x lies in part floor(((x + 1) owners - 1) / size). The
/// quotient is taken half a unit of the numerator higher, which keeps it at least 1/(2 size) away from every
/// integer: more than the rounding of doubles for size < 2^32 and owners <= 2^16. The compiler vectorises the
/// loop.
void FindOwners(const std::uint32_t* HWY_RESTRICT places, double owners, double per_size,
                std::uint16_t* HWY_RESTRICT owner_of, std::size_t begin, std::size_t end) {
  for (std::size_t k = begin; k < end; ++k) {
    const double above = (static_cast<double>(places[k]) + 1) * owners - 0.5;
    owner_of[k] = static_cast<std::uint16_t>(static_cast<std::int32_t>(above * per_size));
  }
}

}  // namespace thinwire::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace thinwire {

HWY_EXPORT(FindOwners);

namespace {

constexpr std::size_t kManyOwners = 1024;

}  // namespace

void find_owners(Executor& executor, Span<const std::uint32_t> places, std::size_t size, std::size_t owners,
                 Span<std::uint16_t> owner_of, Span<std::size_t> counts) {
  const double per_size = 1.0 / static_cast<double>(size);
  executor.parallel_for(places.size(), kBlockElements / 4, [&](std::size_t begin, std::size_t end) {
    HWY_DYNAMIC_DISPATCH(FindOwners)
    (places.data(), static_cast<double>(owners), per_size, owner_of.data(), begin, end);
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

void split_by_owner(Executor&, Span<const std::uint16_t> owner_of, Span<const std::uint32_t> indices,
                    Span<const float> values, std::size_t width, Span<RowCursor> cursors) {
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
