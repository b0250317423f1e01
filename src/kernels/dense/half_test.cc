#include "kernels/dense/half.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "kernels/test_executors.h"
#include "kernels/test_vectors.h"

namespace thinwire::half_test {
namespace {

/// The value of a 16-bit float, from the format's definition.
double value_of(HalfFormat format, std::uint16_t half) {
  const int mantissa_bits = format == HalfFormat::fp16 ? 10 : 7;
  const int bias = format == HalfFormat::fp16 ? 15 : 127;
  const int exponent_mask = format == HalfFormat::fp16 ? 31 : 255;
  const double sign = (half & 0x8000) != 0 ? -1 : 1;
  const int exponent = (half >> mantissa_bits) & exponent_mask;
  const double fraction = std::ldexp(half & ((1 << mantissa_bits) - 1), -mantissa_bits);
  if (exponent == exponent_mask)
    return fraction != 0 ? std::nan("") : sign * std::numeric_limits<double>::infinity();
  if (exponent == 0) return sign * std::ldexp(fraction, 1 - bias);
  return sign * std::ldexp(1 + fraction, exponent - bias);
}

class HalfKernels : public testing::TestWithParam<HalfFormat> {};

TEST_P(HalfKernels, DecodeIsExactForEveryPattern) {
  std::vector<std::uint16_t> halves(65'536);
  for (std::size_t i = 0; i < halves.size(); ++i) halves[i] = static_cast<std::uint16_t>(i);
  for_each_executor([&](Executor& executor, const std::string& target) {
    Placed placed(executor, std::vector<float>(halves.size()));
    decode_half(executor, GetParam(), halves, placed);
    const auto values = placed.read();
    for (std::size_t i = 0; i < halves.size(); ++i) {
      const double expected = value_of(GetParam(), halves[i]);
      if (std::isnan(expected)) {
        ASSERT_TRUE(std::isnan(values[i])) << target << " " << i;
      } else {
        ASSERT_EQ(static_cast<double>(values[i]), expected) << target << " " << i;
        ASSERT_EQ(std::signbit(values[i]), (halves[i] & 0x8000) != 0) << target << " " << i;
      }
    }
  });
}

/// Between every pair of neighbours: just below, at and just above the midpoint, which goes to the even one.
TEST_P(HalfKernels, EncodeRoundsToNearestEven) {
  const std::uint16_t infinity = GetParam() == HalfFormat::fp16 ? 0x7C00 : 0x7F80;
  std::vector<float> inputs;
  std::vector<std::uint16_t> expected;
  for (std::uint16_t half = 0; half + 1 < infinity; ++half) {
    const double low = value_of(GetParam(), half);
    const double high = value_of(GetParam(), static_cast<std::uint16_t>(half + 1));
    const auto middle = static_cast<float>((low + high) / 2);
    const auto even = static_cast<std::uint16_t>(half % 2 == 0 ? half : half + 1);
    inputs.insert(inputs.end(), {static_cast<float>(low), std::nextafter(middle, 0.0f), middle,
                                 std::nextafter(middle, std::numeric_limits<float>::infinity())});
    expected.insert(expected.end(), {half, half, even, static_cast<std::uint16_t>(half + 1)});
  }
  for_each_executor([&](Executor& executor, const std::string& target) {
    std::vector<std::uint16_t> halves(inputs.size());
    EXPECT_TRUE(encode_half(executor, GetParam(), Placed(executor, inputs), {}, halves));
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      // Where float32 itself is as coarse as the 16-bit format (bf16's smallest values) midpoints cannot be
      // told apart.
      if (i % 4 != 0 && inputs[i] == inputs[i / 4 * 4]) continue;
      ASSERT_EQ(halves[i], expected[i]) << target << " " << inputs[i];
    }
    std::vector<float> negative(inputs);
    for (auto& value : negative) value = -value;
    std::vector<std::uint16_t> mirrored(inputs.size());
    encode_half(executor, GetParam(), Placed(executor, negative), {}, mirrored);
    for (std::size_t i = 0; i < inputs.size(); ++i) ASSERT_EQ(mirrored[i], halves[i] | 0x8000) << target;
  });
}

TEST_P(HalfKernels, OverflowInfinityAndNanAreReported) {
  const float infinity = std::numeric_limits<float>::infinity();
  const float too_large = GetParam() == HalfFormat::fp16 ? 65'520.0f : std::numeric_limits<float>::max();
  for_each_executor([&](Executor& executor, const std::string& target) {
    for (const float bad :
         {too_large, -too_large, infinity, -infinity, std::numeric_limits<float>::quiet_NaN()}) {
      for (const std::size_t at : {0u, 18u, 36u, 299u}) {
        std::vector<float> values(300, 1.0f);
        values[at] = bad;
        std::vector<std::uint16_t> halves(values.size());
        EXPECT_FALSE(encode_half(executor, GetParam(), Placed(executor, values), {}, halves))
            << target << " " << bad;
        EXPECT_EQ(std::isnan(value_of(GetParam(), halves[at])), std::isnan(bad)) << target;
      }
    }
    if (GetParam() == HalfFormat::fp16) {
      const std::vector<float> just_below = {65'519.0f};
      std::vector<std::uint16_t> largest(1);
      EXPECT_TRUE(encode_half(executor, GetParam(), Placed(executor, just_below), {}, largest)) << target;
      EXPECT_EQ(largest[0], 0x7BFF) << target;
    }
  });
}

TEST_P(HalfKernels, ApplyKeepsWhatRoundingLost) {
  for_each_executor([&](Executor& executor, const std::string& target) {
    for (const std::size_t count : kTestSizes) {
      const auto old_gradient = test_values(count, 1);
      const auto old_residual = test_values(count, 2);
      const auto means = test_values(count, 3);
      Placed placed_gradient(executor, old_gradient);
      Placed placed_residual(executor, old_residual);
      Placed without(executor, old_gradient);
      std::vector<std::uint16_t> carried(count), mean(count);
      encode_half(executor, GetParam(), placed_gradient, placed_residual, carried);
      encode_half(executor, GetParam(), Placed(executor, means), {}, mean);
      const double squares = apply_half(executor, GetParam(), mean, placed_gradient, placed_residual);
      double expected = 0;
      apply_half(executor, GetParam(), mean, without, {});
      const auto gradient = placed_gradient.read();
      const auto residual = placed_residual.read();
      EXPECT_EQ(without.read(), gradient) << target;
      for (std::size_t i = 0; i < count; ++i) {
        const auto value = static_cast<float>(value_of(GetParam(), carried[i]));
        ASSERT_EQ(gradient[i], static_cast<float>(value_of(GetParam(), mean[i]))) << target;
        ASSERT_EQ(residual[i], old_gradient[i] + old_residual[i] - value) << target;
        expected += static_cast<double>(residual[i]) * static_cast<double>(residual[i]);
      }
      EXPECT_NEAR(squares, expected, 1e-5 * expected) << target;
    }
  });
}

/// 16-bit floats that no 32-bit word holds two of.
TEST_P(HalfKernels, AddressesMayBeOdd) {
  constexpr std::size_t kCount = 1000;
  for_each_executor([&](Executor& executor, const std::string& target) {
    const auto values = test_values(kCount, 1);
    std::vector<std::uint16_t> even(kCount), odd(kCount + 1);
    const auto shifted = Span<std::uint16_t>(odd).subspan(1, kCount);
    Placed gradient(executor, values);
    Placed halves(executor, odd);
    encode_half(executor, GetParam(), gradient, {}, even);
    encode_half(executor, GetParam(), gradient, {}, halves.span().subspan(1, kCount));
    copy<std::uint16_t>(executor, halves.span().subspan(1, kCount), shifted);
    EXPECT_TRUE(std::equal(even.begin(), even.end(), shifted.begin())) << target;
    Placed from_even(executor, values);
    Placed from_odd(executor, values);
    decode_half(executor, GetParam(), even, from_even);
    decode_half(executor, GetParam(), halves.span().subspan(1, kCount), from_odd);
    EXPECT_EQ(from_even.read(), from_odd.read()) << target;
    apply_half(executor, GetParam(), halves.span().subspan(1, kCount), gradient, {});
    EXPECT_EQ(gradient.read(), from_even.read()) << target;
  });
}

TEST_P(HalfKernels, MeanAddsInOrderAndRoundsOnce) {
  for (const std::size_t count : kTestSizes) {
    for (const std::size_t ranks : {1, 2, 3, 5}) {
      if (count > 100'000 && ranks != 3) continue;
      const auto own = make_cpu_executor(1);
      std::vector<std::vector<std::uint16_t>> halves(ranks, std::vector<std::uint16_t>(count));
      std::vector<Span<const std::uint16_t>> parts;
      for (std::size_t rank = 0; rank < ranks; ++rank) {
        const auto values = test_values(count, static_cast<std::uint32_t>(rank));
        encode_half(*own, GetParam(), values, {}, halves[rank]);
        parts.emplace_back(halves[rank]);
      }
      std::vector<float> expected(count, 0.0f), scaled(count);
      for (std::size_t i = 0; i < count; ++i) {
        for (const auto& part : parts) expected[i] += static_cast<float>(value_of(GetParam(), part[i]));
        scaled[i] = expected[i] * (1.0f / static_cast<float>(ranks));
      }
      std::vector<std::uint16_t> rounded(count);
      encode_half(*own, GetParam(), scaled, {}, rounded);
      for_each_executor([&](Executor& executor, const std::string& target) {
        Placed sums(executor, std::vector<float>(count, -1.0f));
        Placed mean(executor, std::vector<std::uint16_t>(count));
        Placed alone(executor, std::vector<std::uint16_t>(count));
        EXPECT_TRUE(mean_of_halves(executor, GetParam(), parts, sums, mean)) << target;
        EXPECT_TRUE(mean_of_halves(executor, GetParam(), parts, {}, alone)) << target;
        ASSERT_EQ(sums.read(), expected) << target;
        ASSERT_EQ(mean.read(), rounded) << target;
        ASSERT_EQ(alone.read(), rounded) << target;
        if (count == 0) return;
        const std::uint16_t last = halves[ranks - 1][count - 1];
        halves[ranks - 1][count - 1] = GetParam() == HalfFormat::fp16 ? 0x7C00 : 0x7F80;  // infinity
        EXPECT_FALSE(mean_of_halves(executor, GetParam(), parts, {}, alone)) << target;
        halves[ranks - 1][count - 1] = last;
      });
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, HalfKernels, testing::Values(HalfFormat::fp16, HalfFormat::bf16));

}  // namespace
}  // namespace thinwire::half_test
