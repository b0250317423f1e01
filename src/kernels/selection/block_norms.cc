#include "kernels/selection/block_norms.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "kernels/blocks.h"
#include "kernels/device/on_device.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/selection/block_norms.cc"
#include <hwy/foreach_target.h>  // must come before highway.h

#include "kernels/bits-inl.h"

HWY_BEFORE_NAMESPACE();
namespace thinwire::HWY_NAMESPACE {

using IntTag = hn::RebindToSigned<FloatTag>;

struct BlockInput {
  Reads<float> gradient;
  Reads<float> residual;  // or null

  HWY_INLINE hn::Vec<FloatTag> vector(std::size_t i) const {
    return load_sum(FloatTag(), gradient, residual, i);
  }
  HWY_INLINE float scalar(std::size_t i) const { return sum_at(gradient, residual, i); }
};

float SumOfSquares(const BlockInput& input, std::size_t begin, std::size_t end) {
  const FloatTag d;
  const std::size_t lanes = hn::Lanes(d);
  // Four sums: a chain of dependent additions would take four times as long as the loads.
  auto sum0 = hn::Zero(d);
  auto sum1 = sum0;
  auto sum2 = sum0;
  auto sum3 = sum0;
  std::size_t i = begin;
  for (; i + 4 * lanes <= end; i += 4 * lanes) {
    const auto p0 = input.vector(i);
    const auto p1 = input.vector(i + lanes);
    const auto p2 = input.vector(i + 2 * lanes);
    const auto p3 = input.vector(i + 3 * lanes);
    sum0 = hn::MulAdd(p0, p0, sum0);
    sum1 = hn::MulAdd(p1, p1, sum1);
    sum2 = hn::MulAdd(p2, p2, sum2);
    sum3 = hn::MulAdd(p3, p3, sum3);
  }
  for (; i + lanes <= end; i += lanes) {
    const auto p = input.vector(i);
    sum0 = hn::MulAdd(p, p, sum0);
  }
  float sum = hn::GetLane(hn::SumOfLanes(d, hn::Add(hn::Add(sum0, sum1), hn::Add(sum2, sum3))));
  for (; i < end; ++i) {
    const float p = input.scalar(i);
    sum += p * p;
  }
  return sum;
}

void Norms(const float* gradient, const float* residual, std::size_t count, std::size_t block, float* norms,
           std::size_t first, std::size_t last) {
  const BlockInput input{gradient, residual};
  for (std::size_t b = first; b < last; ++b) {
    const std::size_t begin = b * block;
    const std::size_t end = std::min(count, begin + block);
    float norm = SumOfSquares(input, begin, end);
    if (!std::isfinite(norm)) {
      // Squares overflow before values do: only a value that is not finite itself makes the norm NaN.
      bool finite = true;
      for (std::size_t i = begin; i < end; ++i) finite = finite && std::isfinite(input.scalar(i));
      norm = finite ? std::numeric_limits<float>::infinity() : std::numeric_limits<float>::quiet_NaN();
    }
    norms[b] = norm;
  }
}

/// Largest magnitude of elements [begin, end) as an integer: 0 for zeros alone, at least that of infinity
/// when one is not finite.
std::int32_t LargestBits(const BlockInput& input, std::size_t begin, std::size_t end) {
  const FloatTag d;
  const IntTag di;
  const std::size_t lanes = hn::Lanes(d);
  const auto magnitude = hn::Set(di, 0x7fffffff);
  auto largest0 = hn::Zero(di);
  auto largest1 = largest0;
  auto bits = [&](std::size_t i) HWY_ATTR { return hn::And(hn::BitCast(di, input.vector(i)), magnitude); };
  std::size_t i = begin;
  for (; i + 2 * lanes <= end; i += 2 * lanes) {
    largest0 = hn::Max(largest0, bits(i));
    largest1 = hn::Max(largest1, bits(i + lanes));
  }
  for (; i + lanes <= end; i += lanes) largest0 = hn::Max(largest0, bits(i));
  std::int32_t largest = hn::GetLane(hn::MaxOfLanes(di, hn::Max(largest0, largest1)));
  for (; i < end; ++i) {
    largest = std::max(largest, std::bit_cast<std::int32_t>(input.scalar(i)) & 0x7fffffff);
  }
  return largest;
}

/// Words [first, last) of the bitmap.
bool FlagNonzero(const float* gradient, const float* residual, std::size_t count, std::size_t block,
                 std::uint64_t* bitmap, std::size_t first, std::size_t last) {
  constexpr std::int32_t kInfinity = 0x7f800000;
  const BlockInput input{gradient, residual};
  std::int32_t largest = 0;
  for (std::size_t word = first; word < last; ++word) {
    std::uint64_t bits = 0;
    for (std::size_t bit = 0; bit < 64; ++bit) {
      const std::size_t begin = (word * 64 + bit) * block;
      if (begin >= count) break;
      const std::int32_t of_block = LargestBits(input, begin, std::min(count, begin + block));
      largest = std::max(largest, of_block);
      bits |= static_cast<std::uint64_t>(of_block != 0) << bit;
    }
    bitmap[word] = bits;
  }
  return largest < kInfinity;
}

}  // namespace thinwire::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace thinwire {

HWY_EXPORT(Norms);
HWY_EXPORT(FlagNonzero);

void block_norms(Executor& executor, Span<const float> gradient, Span<const float> residual,
                 std::size_t block, Span<float> norms) {
  THINWIRE_ON_DEVICE(block_norms, executor, gradient, residual, block, norms);
  const std::size_t grain = std::max<std::size_t>(1, kBlockElements / block);
  executor.parallel_for(norms.size(), grain, [&](std::size_t begin, std::size_t end) {
    HWY_DYNAMIC_DISPATCH(Norms)
    (gradient.data(), data_at(residual), gradient.size(), block, norms.data(), begin, end);
  });
}

bool flag_nonzero_blocks(Executor& executor, Span<const float> gradient, Span<const float> residual,
                         std::size_t block, Span<std::uint64_t> bitmap) {
  THINWIRE_ON_DEVICE(flag_nonzero_blocks, executor, gradient, residual, block, bitmap);
  const std::size_t grain = std::max<std::size_t>(1, kBlockElements / 64 / block);
  return all_of_ranges(executor, bitmap.size(), grain, [&](std::size_t begin, std::size_t end) {
    return HWY_DYNAMIC_DISPATCH(FlagNonzero)(gradient.data(), data_at(residual), gradient.size(), block,
                                             bitmap.data(), begin, end);
  });
}

}  // namespace thinwire
#endif
