#include "kernels/codes/norms.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>

#include "kernels/blocks.h"
#include "kernels/codes/fine_rounding.h"
#include "kernels/dense/dense.h"
#include "kernels/device/on_device.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/codes/norms.cc"
#include <hwy/foreach_target.h>  // must come before highway.h

#include "kernels/bits-inl.h"

HWY_BEFORE_NAMESPACE();
namespace thinwire::HWY_NAMESPACE {

/// Bits of the largest |p|, which order like the values; inf and NaN are the largest.
std::uint32_t LargestMagnitude(Reads<float> gradient, Reads<float> residual, std::size_t count) {
  const FloatTag d;
  const hn::RebindToUnsigned<FloatTag> du;
  const std::size_t lanes = hn::Lanes(d);
  const auto magnitude = hn::Set(du, 0x7FFFFFFFu);
  auto most0 = hn::Zero(du);
  auto most1 = most0;
  std::size_t i = 0;
  for (; i + 2 * lanes <= count; i += 2 * lanes) {
    most0 = hn::Max(most0, hn::And(hn::BitCast(du, load_sum(d, gradient, residual, i)), magnitude));
    most1 = hn::Max(most1, hn::And(hn::BitCast(du, load_sum(d, gradient, residual, i + lanes)), magnitude));
  }
  std::uint32_t most = hn::GetLane(hn::MaxOfLanes(du, hn::Max(most0, most1)));
  for (; i < count; ++i) {
    const float p = sum_at(gradient, residual, i);
    std::uint32_t bits = 0;
    std::memcpy(&bits, &p, sizeof bits);
    most = std::max(most, bits & 0x7FFFFFFFu);
  }
  return most;
}

double SumOfSquares(Reads<float> gradient, Reads<float> residual, std::size_t count) {
  const HWY_CAPPED(double, 8) d;
  const hn::Rebind<float, decltype(d)> df;
  const std::size_t lanes = hn::Lanes(d);
  auto sum0 = hn::Zero(d);
  auto sum1 = sum0;
  auto sum2 = sum0;
  auto sum3 = sum0;
  auto square = [&](std::size_t i, hn::Vec<decltype(d)>& sum) HWY_ATTR {
    const auto p = hn::PromoteTo(d, load_sum(df, gradient, residual, i));
    sum = hn::MulAdd(p, p, sum);
  };
  std::size_t i = 0;
  for (; i + 4 * lanes <= count; i += 4 * lanes) {
    square(i, sum0);
    square(i + lanes, sum1);
    square(i + 2 * lanes, sum2);
    square(i + 3 * lanes, sum3);
  }
  double total = hn::GetLane(hn::SumOfLanes(d, hn::Add(hn::Add(sum0, sum1), hn::Add(sum2, sum3))));
  for (; i < count; ++i) {
    const float p = sum_at(gradient, residual, i);
    total += static_cast<double>(p) * static_cast<double>(p);
  }
  return total;
}

}  // namespace thinwire::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace thinwire {

HWY_EXPORT(LargestMagnitude);
HWY_EXPORT(SumOfSquares);

namespace {

float float_of_bits(std::uint32_t bits) {
  float value = 0;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

}  // namespace

float norm_serially(QuantizationNorm norm, Span<const float> gradient, Span<const float> residual) {
  const float* g = gradient.data();
  const float* r = data_at(residual, 0);
  return norm == QuantizationNorm::largest
             ? float_of_bits(HWY_DYNAMIC_DISPATCH(LargestMagnitude)(g, r, gradient.size()))
             : float_of(std::sqrt(HWY_DYNAMIC_DISPATCH(SumOfSquares)(g, r, gradient.size())));
}

void measure_ranges(Executor& executor, Span<const std::size_t> ends, Span<const float> gradient,
                    Span<const float> residual, Span<float> largest, Span<double> squares) {
  THINWIRE_ON_DEVICE(measure_ranges, executor, ends, gradient, residual, largest, squares);
  std::size_t begin = 0;
  for (std::size_t range = 0; range < ends.size(); begin = ends[range], ++range) {
    const auto g = gradient.subspan(begin, ends[range] - begin);
    const auto r = residual.subspan(begin, ends[range] - begin);
    largest[range] = largest_magnitude(executor, g, r);
    if (!squares.empty()) squares[range] = sum_of_squares(executor, g, r);
  }
}

float largest_magnitude(Executor& executor, Span<const float> gradient, Span<const float> residual) {
  THINWIRE_ON_DEVICE(largest_magnitude, executor, gradient, residual);
  std::atomic<std::uint32_t> most{0};
  executor.parallel_for(gradient.size(), kBlockElements, [&](std::size_t begin, std::size_t end) {
    const std::uint32_t own = HWY_DYNAMIC_DISPATCH(LargestMagnitude)(gradient.data() + begin,
                                                                     data_at(residual, begin), end - begin);
    std::uint32_t seen = most.load(std::memory_order_relaxed);
    while (seen < own && !most.compare_exchange_weak(seen, own, std::memory_order_relaxed)) {
    }
  });
  return float_of_bits(most.load());
}

}  // namespace thinwire
#endif
