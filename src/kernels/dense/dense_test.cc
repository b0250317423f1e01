#include "kernels/dense/dense.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>

#include "core/partition.h"
#include "kernels/rows/bitmap.h"
#include "kernels/test_executors.h"
#include "kernels/test_vectors.h"

namespace thinwire::dense_test {
namespace {

TEST(Dense, PassesAgreeWithTheirDefinitions) {
  for_each_executor([&](Executor& executor, const std::string& name) {
    for (const std::size_t count : kTestSizes) {
      const auto a = test_values(count, 1);
      const auto b = test_values(count, 2);
      Placed placed_sum(executor, a);
      add(executor, placed_sum, b);
      Placed placed_scaled(executor, a);
      EXPECT_TRUE(scale(executor, placed_scaled, 0.25f));
      Placed placed_filled(executor, a);
      EXPECT_TRUE(all_finite(executor, placed_filled));
      fill(executor, placed_filled, 3.0f);
      const auto sum = placed_sum.read();
      const auto scaled = placed_scaled.read();
      const auto filled = placed_filled.read();
      double magnitudes = 0;
      double squares = 0;
      for (std::size_t i = 0; i < count; ++i) {
        ASSERT_EQ(sum[i], a[i] + b[i]) << name;
        ASSERT_EQ(scaled[i], a[i] * 0.25f) << name;
        ASSERT_EQ(filled[i], 3.0f) << name;
        const auto p = static_cast<double>(a[i] + b[i]);
        magnitudes += std::fabs(p);
        squares += p * p;
      }
      Placed gradient(executor, a);
      Placed residual(executor, b);
      EXPECT_NEAR(sum_of_magnitudes(executor, gradient, residual), magnitudes, 1e-5 * magnitudes) << name;
      EXPECT_NEAR(sum_of_squares(executor, gradient, residual), squares, 1e-5 * squares) << name;
      // One operand in host memory.
      EXPECT_NEAR(sum_of_squares(executor, gradient, b), squares, 1e-5 * squares) << name;
    }
  });
}

TEST(Dense, ApplyAverageKeepsWhatTheOwnPartLacks) {
  for (const std::size_t count : kTestSizes) {
    const auto g = test_values(count, 1);
    const auto r = test_values(count, 2);
    const auto own = test_values(count, 3);
    const auto sums = test_values(count, 4);
    std::vector<float> averages(count), left(count);
    double squares = 0;
    for (std::size_t i = 0; i < count; ++i) {
      averages[i] = sums[i] * 0.25f;
      left[i] = g[i] + r[i] - own[i];
      squares += static_cast<double>(left[i]) * static_cast<double>(left[i]);
    }
    for_each_executor([&](Executor& executor, const std::string& name) {
      Placed gradient(executor, g);
      Placed residual(executor, r);
      Placed without(executor, g);
      Placed placed_own(executor, own);
      const double returned = apply_average(executor, placed_own, sums, 0.25f, gradient, residual);
      EXPECT_EQ(apply_average(executor, {}, sums, 0.25f, without, {}), 0) << name;
      EXPECT_EQ(gradient.read(), averages) << name;
      EXPECT_EQ(without.read(), averages) << name;
      EXPECT_EQ(residual.read(), left) << name;
      EXPECT_NEAR(returned, squares, 1e-5 * squares) << name;
    });
    for_each_target([&](const std::string& target) {
      auto gradient = g;
      auto residual = r;
      EXPECT_NEAR(apply_average_serially(own, sums, 0.25f, gradient, residual), squares, 1e-5 * squares)
          << target;
      EXPECT_EQ(gradient, averages) << target;
      EXPECT_EQ(residual, left) << target;
    });
  }
}

TEST(Dense, AddRemainderAgreesWithItsDefinition) {
  for_each_executor([&](Executor& executor, const std::string& name) {
    for (const std::size_t count : kTestSizes) {
      const auto before = test_values(count, 1);
      const auto sums = test_values(count, 2);
      const auto mean = test_values(count, 3);
      Placed residual(executor, before);
      Placed placed_mean(executor, mean);
      const double squares = add_remainder(executor, sums, 3.0f, placed_mean, residual);
      const auto after = residual.read();
      double expected = 0;
      for (std::size_t i = 0; i < count; ++i) {
        const float carried = 3.0f * mean[i];
        ASSERT_EQ(after[i], before[i] + (sums[i] - carried)) << name;
        expected += static_cast<double>(after[i]) * static_cast<double>(after[i]);
      }
      EXPECT_NEAR(squares, expected, 1e-5 * expected) << name;
    }
  });
}

TEST(Dense, SumsDoNotDependOnTheNumberOfThreads) {
  const auto one = make_cpu_executor(1);
  const auto three = make_cpu_executor(3);
  const auto values = test_values(1'000'003, 1);
  EXPECT_EQ(sum_of_squares(*one, values, {}), sum_of_squares(*three, values, {}));
  EXPECT_EQ(sum_of_magnitudes(*one, values, values), sum_of_magnitudes(*three, values, values));
}

TEST(Dense, OneBadValueIsNoticed) {
  for_each_executor([&](Executor& executor, const std::string& name) {
    for (const std::size_t at : {0u, 70'000u, 99'999u}) {
      for (const float bad :
           {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
        auto values = test_values(100'000, 1);
        values[at] = bad;
        Placed placed(executor, values);
        EXPECT_FALSE(std::isfinite(sum_of_squares(executor, placed, {}))) << name;
        EXPECT_FALSE(std::isfinite(sum_of_magnitudes(executor, placed, {}))) << name;
        EXPECT_FALSE(all_finite(executor, placed)) << name;
        EXPECT_FALSE(scale(executor, placed, 0.5f)) << name;
      }
    }
  });
}

TEST(Dense, HoldBackAndAddResidualAgreeWithTheirDefinitions) {
  for_each_executor([](Executor& executor, const std::string& name) {
    for (const std::size_t count : kTestSizes) {
      const auto gradient = test_values(count, 1);
      for (const bool feedback : {false, true}) {
        const auto residual = feedback ? test_values(count, 2) : std::vector<float>();
        auto sums = gradient;
        for (std::size_t i = 0; i < residual.size(); ++i) sums[i] += residual[i];
        Placed g(executor, gradient);
        Placed r(executor, residual);
        Placed out(executor, std::vector<float>(count));
        add_residual(executor, g, r, out);
        ASSERT_EQ(out.read(), sums) << name;
        hold_back(executor, g, r);
        ASSERT_EQ(g.read(), std::vector<float>(count, 0.0f)) << name;
        ASSERT_EQ(r.read(), feedback ? sums : residual) << name;
      }
    }
  });
}

TEST(Dense, ClearBitsClearsWhatIsSet) {
  for_each_executor([](Executor& executor, const std::string& name) {
    for (const std::size_t count : kTestSizes) {
      auto expected = test_values(count, 1);
      Placed vector(executor, expected);
      std::vector<std::uint64_t> bits(bitmap_words(count));
      std::mt19937_64 random(3);
      for (auto& word : bits) word = random();
      for (std::size_t i = 0; i < count; ++i) {
        if (((bits[i / 64] >> (i % 64)) & 1) != 0) expected[i] = 0;
      }
      clear_bits(executor, bits, vector);
      ASSERT_EQ(vector.read(), expected) << name;
    }
  });
}

TEST(Dense, SampleIsSpreadEvenly) {
  for_each_executor([](Executor& executor, const std::string& name) {
    std::vector<float> values(5000);
    std::iota(values.begin(), values.end(), 0.0f);
    Placed vector(executor, values);
    for (const std::size_t count : {0u, 1u, 7u, 1000u, 4000u}) {
      std::vector<float> out(count);
      sample_evenly(executor, vector, 900, 4000, out);
      for (std::size_t i = 0; i < count; ++i) {
        ASSERT_EQ(out[i], static_cast<float>(900 + part_begin(4000, count, i))) << name;
      }
    }
  });
}

TEST(Dense, MomentumIsAddedOnce) {
  for_each_executor([](Executor& executor, const std::string& name) {
    for (const std::size_t count : kTestSizes) {
      const auto velocity = test_values(count, 1);
      const auto before = test_values(count, 2);
      Placed gradient(executor, before);
      Placed corrected(executor, std::vector<float>(count));
      correct_by_momentum(executor, 0.9f, Placed(executor, velocity), gradient, corrected);
      ASSERT_EQ(gradient.read(), corrected.read()) << name;
      const auto got = corrected.read();
      for (std::size_t i = 0; i < count; ++i) {
        ASSERT_EQ(got[i], 0.9f * velocity[i] + before[i]) << name;
      }
    }
  });
}

TEST(Dense, DeliveredMomentumIsAddedAndTakenAgain) {
  for_each_executor([](Executor& executor, const std::string& name) {
    for (const std::size_t count : kTestSizes) {
      const auto delivered = test_values(count, 1);
      const auto before = test_values(count, 2);
      Placed gradient(executor, before);
      Placed velocity(executor, delivered);
      add_momentum(executor, 0.9f, velocity, gradient);
      const auto travels = gradient.read();
      take_momentum(executor, 0.9f, velocity, gradient);
      ASSERT_EQ(velocity.read(), travels) << name;
      const auto left = gradient.read();
      for (std::size_t i = 0; i < count; ++i) {
        ASSERT_EQ(travels[i], before[i] + 0.9f * delivered[i]) << name;
        ASSERT_EQ(left[i], travels[i] - 0.9f * delivered[i]) << name;
      }
    }
  });
}

}  // namespace
}  // namespace thinwire::dense_test
