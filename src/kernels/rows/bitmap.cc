#include "kernels/rows/bitmap.h"

#include <algorithm>

#include "kernels/blocks.h"
#include "kernels/device/on_device.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/rows/bitmap.cc"
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace thinwire::HWY_NAMESPACE {

// Plain loops: what they gain from a target is its instructions for counting and finding bits.

std::size_t CountBefore(Reads<std::uint64_t> bitmap, Writes<std::uint32_t> before, std::size_t words) {
  std::uint32_t total = 0;
  for (std::size_t w = 0; w < words; ++w) {
    before[w] = total;
    total += static_cast<std::uint32_t>(std::popcount(bitmap[w]));
  }
  return total;
}

void ListBits(Reads<std::uint64_t> bitmap, Writes<std::uint32_t> out, std::size_t begin, std::size_t end) {
  for (std::size_t w = begin; w < end; ++w) {
    const auto base = static_cast<std::uint32_t>(w * 64);
    for (std::uint64_t word = bitmap[w]; word != 0; word &= word - 1) {
      *out++ = base + static_cast<std::uint32_t>(std::countr_zero(word));
    }
  }
}

}  // namespace thinwire::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace thinwire {

HWY_EXPORT(CountBefore);
HWY_EXPORT(ListBits);

void clear_bitmap(Executor& executor, Span<std::uint64_t> bitmap) {
  THINWIRE_ON_DEVICE(clear_bitmap, executor, bitmap);
  std::fill(bitmap.begin(), bitmap.end(), 0);
}

void set_bits(Executor& executor, Span<const std::uint32_t> positions, Span<std::uint64_t> bitmap) {
  THINWIRE_ON_DEVICE(set_bits, executor, positions, bitmap);
  // One thread: two of them may meet in a word.
  for (const std::uint32_t position : positions) bitmap[position / 64] |= std::uint64_t{1} << (position % 64);
}

std::size_t count_bits_before(Executor& executor, Span<const std::uint64_t> bitmap,
                              Span<std::uint32_t> before) {
  THINWIRE_ON_DEVICE(count_bits_before, executor, bitmap, before);
  return HWY_DYNAMIC_DISPATCH(CountBefore)(bitmap.data(), before.data(), bitmap.size());
}

void list_bits(Executor& executor, Span<const std::uint64_t> bitmap, Span<const std::uint32_t> before,
               Span<std::uint32_t> positions) {
  THINWIRE_ON_DEVICE(list_bits, executor, bitmap, before, positions);
  executor.parallel_for(bitmap.size(), kBlockElements / 64, [&](std::size_t begin, std::size_t end) {
    HWY_DYNAMIC_DISPATCH(ListBits)(bitmap.data(), positions.data() + before[begin], begin, end);
  });
}

void find_ranks(Executor& executor, Span<const std::uint64_t> bitmap, Span<const std::uint32_t> before,
                Span<const std::uint32_t> positions, Span<std::uint32_t> ranks) {
  THINWIRE_ON_DEVICE(find_ranks, executor, bitmap, before, positions, ranks);
  executor.parallel_for(positions.size(), kBlockElements / 4, [&](std::size_t begin, std::size_t end) {
    for (std::size_t k = begin; k < end; ++k) ranks[k] = rank_of(bitmap, before, positions[k]);
  });
}

}  // namespace thinwire
#endif
