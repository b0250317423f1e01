#include "kernels/dense.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "kernels/test_targets.h"
#include "kernels/test_vectors.h"

namespace thinwire {
namespace {

TEST(Dense, PassesAgreeWithTheirDefinitions) {
  for_each_target([&](const std::string& target) {
    for (const std::size_t count : kTestSizes) {
      const auto executor = make_cpu_executor(2);
      const auto a = test_values(count, 1);
      const auto b = test_values(count, 2);
      auto sum = a;
      add(*executor, sum, b);
      auto scaled = a;
      EXPECT_TRUE(scale(*executor, scaled, 0.25f));
      auto filled = a;
      fill(*executor, filled, 3.0f);
      auto gradient = a;
      auto residual = b;
      const auto mean = test_values(count, 3);
      apply_mean(*executor, mean, gradient, residual);
      double magnitudes = 0;
      double squares = 0;
      for (std::size_t i = 0; i < count; ++i) {
        ASSERT_EQ(sum[i], a[i] + b[i]) << target;
        ASSERT_EQ(scaled[i], a[i] * 0.25f) << target;
        ASSERT_EQ(filled[i], 3.0f) << target;
        ASSERT_EQ(gradient[i], mean[i]) << target;
        ASSERT_EQ(residual[i], a[i] + b[i] - mean[i]) << target;
        const auto p = static_cast<double>(a[i] + b[i]);
        magnitudes += std::fabs(p);
        squares += p * p;
      }
      EXPECT_NEAR(sum_of_magnitudes(*executor, a, b), magnitudes, 1e-5 * magnitudes) << target;
      EXPECT_NEAR(sum_of_squares(*executor, a, b), squares, 1e-5 * squares) << target;
    }
  });
}

TEST(Dense, ApplyAverageKeepsWhatTheOwnPartLacks) {
  for (const std::size_t count : kTestSizes) {
    const auto g = test_values(count, 1);
    const auto r = test_values(count, 2);
    const auto own = test_values(count, 3);
    const auto sums = test_values(count, 4);
    for_each_target([&](const std::string& target) {
      auto gradient = g;
      auto residual = r;
      double squares = 0;
      const double returned = apply_average(own, sums, 0.25f, gradient, residual);
      auto without = g;
      EXPECT_EQ(apply_average({}, sums, 0.25f, without, {}), 0) << target;
      for (std::size_t i = 0; i < count; ++i) {
        ASSERT_EQ(gradient[i], sums[i] * 0.25f) << target;
        ASSERT_EQ(without[i], sums[i] * 0.25f) << target;
        ASSERT_EQ(residual[i], g[i] + r[i] - own[i]) << target;
        squares += static_cast<double>(residual[i]) * static_cast<double>(residual[i]);
      }
      EXPECT_NEAR(returned, squares, 1e-5 * squares) << target;
    });
  }
}

TEST(Dense, SumsDoNotDependOnTheNumberOfThreads) {
  const auto one = make_cpu_executor(1);
  const auto three = make_cpu_executor(3);
  const auto values = test_values(1'000'003, 1);
  EXPECT_EQ(sum_of_squares(*one, values, {}), sum_of_squares(*three, values, {}));
  EXPECT_EQ(sum_of_magnitudes(*one, values, values), sum_of_magnitudes(*three, values, values));
}

TEST(Dense, OneBadValueIsNoticed) {
  const auto executor = make_cpu_executor(2);
  for_each_target([&](const std::string& target) {
    for (const std::size_t at : {0u, 70'000u, 99'999u}) {
      auto values = test_values(100'000, 1);
      values[at] = std::numeric_limits<float>::infinity();
      EXPECT_FALSE(std::isfinite(sum_of_squares(*executor, values, {}))) << target;
      EXPECT_FALSE(std::isfinite(sum_of_magnitudes(*executor, values, {}))) << target;
      EXPECT_FALSE(scale(*executor, values, 0.5f)) << target;
    }
  });
}

}  // namespace
}  // namespace thinwire
