#include "kernels/codes/level_fit.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <random>
#include <vector>

namespace thinwire::level_fit_test {
namespace {

/// Normal times log-normal, over its largest: most of it far below 1.
std::vector<float> heavy_tailed(std::size_t count) {
  std::mt19937 random(4);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  float largest = 0;
  for (auto& value : values) {
    value = std::fabs(normal(random)) * std::exp(1.5f * normal(random));
    largest = std::max(largest, value);
  }
  for (auto& value : values) value /= largest;
  return values;
}

std::vector<float> uniform(std::size_t count) {
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) {
    values[i] = (static_cast<float>(i) + 0.5f) / static_cast<float>(count);
  }
  return values;
}

std::unique_ptr<MagnitudeHistogram> histogram_of(const std::vector<float>& values) {
  auto histogram = std::make_unique<MagnitudeHistogram>();
  for (const float value : values) histogram->add(value, 1);
  EXPECT_TRUE(histogram->finish());
  return histogram;
}

std::vector<double> equal(std::size_t count) {
  std::vector<double> levels(count);
  for (std::size_t j = 0; j < count; ++j) {
    levels[j] = static_cast<double>(j) / static_cast<double>(count - 1);
  }
  return levels;
}

/// The mean of (c - r) (r - a) over the data themselves.
double variance_of(const std::vector<float>& values, const std::vector<double>& levels) {
  double sum = 0;
  for (const float value : values) {
    const auto r = static_cast<double>(value);
    std::size_t j = 0;
    while (j + 2 < levels.size() && levels[j + 1] <= r) ++j;
    sum += (levels[j + 1] - r) * (r - levels[j]);
  }
  return sum / static_cast<double>(values.size());
}

void expect_ascending(const std::vector<double>& levels) {
  EXPECT_EQ(levels.front(), 0);
  EXPECT_EQ(levels.back(), 1);
  for (std::size_t j = 1; j < levels.size(); ++j) EXPECT_LT(levels[j - 1], levels[j]);
}

TEST(MagnitudeHistogram, HasTheMomentsOfItsData) {
  const auto values = heavy_tailed(50'000);
  const auto histogram = histogram_of(values);
  for (const double x : {1e-6, 1e-4, 0.003, 0.02, 0.1, 0.5, 1.0}) {
    std::array<double, 3> expected{};
    for (const float value : values) {
      const auto r = static_cast<double>(value);
      if (r > x) continue;
      expected[0] += 1;
      expected[1] += r;
      expected[2] += r * r;
    }
    const auto moments = histogram->moments_up_to(x);
    for (std::size_t k = 0; k < 3; ++k) {
      const double mean = expected[k] / static_cast<double>(values.size());
      EXPECT_NEAR(moments[k], mean, 0.03 * mean + 1e-6) << x << " " << k;
    }
  }
  for (const double share : {0.001, 0.1, 0.5, 0.9, 0.999}) {
    EXPECT_NEAR(histogram->share_up_to(histogram->quantile(share)), share, 1e-9);
  }
}

TEST(MagnitudeHistogram, RefusesWhatSaysNothing) {
  EXPECT_FALSE(std::make_unique<MagnitudeHistogram>()->finish());
  for (const double weight :
       {0.0, std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) {
    auto histogram = std::make_unique<MagnitudeHistogram>();
    histogram->add(0.5f, weight);
    EXPECT_FALSE(histogram->finish());
  }
}

TEST(FitLevels, AreEqualForUniformData) {
  const auto histogram = histogram_of(uniform(100'000));
  for (const std::size_t count : {4u, 8u, 16u}) {
    std::vector<double> levels(count);
    fit_levels(*histogram, ZeroLevel::with, levels);
    expect_ascending(levels);
    const auto expected = equal(count);
    for (std::size_t j = 0; j < count; ++j) EXPECT_NEAR(levels[j], expected[j], 0.005) << count;
  }
}

// The fixed point of the paper's update, checked against the sorted data.
TEST(FitLevels, StayWhereTheUpdatePutsThem) {
  auto values = heavy_tailed(200'000);
  const auto histogram = histogram_of(values);
  std::sort(values.begin(), values.end());
  for (const std::size_t count : {4u, 8u}) {
    std::vector<double> levels(count);
    fit_levels(*histogram, ZeroLevel::with, levels);
    expect_ascending(levels);
    for (std::size_t j = 1; j + 1 < count; ++j) {
      const double a = levels[j - 1];
      const double c = levels[j + 1];
      double above = 0;
      double pulled = 0;
      for (const float value : values) {
        const auto r = static_cast<double>(value);
        if (r > a && r <= c) {
          above += 1;
          pulled += (r - a) / (c - a);
        }
      }
      const auto below = static_cast<double>(
          std::upper_bound(values.begin(), values.end(), static_cast<float>(a)) - values.begin());
      const auto rank = static_cast<std::size_t>(below + above - pulled);
      EXPECT_NEAR(levels[j], static_cast<double>(values[std::min(rank, values.size() - 1)]), 0.02 * levels[j])
          << count << " levels, level " << j;
    }
  }
}

TEST(FitLevels, BeatEqualAndExponentialLevelsOnHeavyTails) {
  const auto values = heavy_tailed(100'000);
  const auto histogram = histogram_of(values);
  for (const std::size_t count : {4u, 8u, 16u, 32u, 64u, 128u}) {
    std::vector<double> levels(count), halving(count), multiples(count);
    fit_levels(*histogram, ZeroLevel::with, levels);
    expect_ascending(levels);
    exponential_levels(0.5, ZeroLevel::with, halving);
    fit_multiplier(*histogram, ZeroLevel::with, multiples);
    const double best = variance_of(values, levels);
    EXPECT_LT(best, 0.9 * variance_of(values, equal(count))) << count;
    EXPECT_LT(best, variance_of(values, halving)) << count;
    EXPECT_LT(best, 1.001 * variance_of(values, multiples)) << count;
    // With more levels the few largest values decide, which a bin spreads.
    if (count <= 16) {
      EXPECT_NEAR(expected_variance(*histogram, levels), best, 0.05 * best) << count;
    }
  }
}

TEST(FitLevels, OneInnerLevelIsTheBestOfAll) {
  const auto histogram = histogram_of(heavy_tailed(50'000));
  std::vector<double> levels(3);
  fit_levels(*histogram, ZeroLevel::with, levels);
  const double found = expected_variance(*histogram, levels);
  for (int i = 1; i < 1000; ++i) {
    const std::vector<double> other = {0, 0.001 * i, 1};
    EXPECT_LE(found, expected_variance(*histogram, other) * (1 + 1e-9)) << i;
  }
}

TEST(FitLevels, StayApartWhateverTheData) {
  for (const auto& values :
       std::vector<std::vector<float>>{{0}, {1}, {0.3f}, {0.3f, 1}, {1e-30f}, {0, 0, 0, 1}, {2}}) {
    const auto histogram = histogram_of(values);
    for (const std::size_t count : {3u, 4u, 8u, 128u}) {
      std::vector<double> levels(count);
      fit_levels(*histogram, ZeroLevel::with, levels);
      expect_ascending(levels);
      EXPECT_GE(expected_variance(*histogram, levels), -1e-12);
      const double multiplier = fit_multiplier(*histogram, ZeroLevel::with, levels);
      EXPECT_GE(multiplier, 0.01);
      EXPECT_LE(multiplier, 0.99);
    }
  }
}

TEST(FitMultiplier, HasTheLeastVarianceOfAllMultipliers) {
  for (const auto& values : {heavy_tailed(50'000), uniform(50'000)}) {
    const auto histogram = histogram_of(values);
    for (const std::size_t count : {3u, 4u, 8u, 16u}) {
      std::vector<double> levels(count), other(count);
      const double multiplier = fit_multiplier(*histogram, ZeroLevel::with, levels);
      for (std::size_t j = 1; j < count; ++j) {
        EXPECT_NEAR(levels[j], std::pow(multiplier, static_cast<double>(count - 1 - j)), 1e-12);
      }
      const double found = expected_variance(*histogram, levels);
      for (int i = 10; i <= 990; ++i) {
        exponential_levels(0.001 * i, ZeroLevel::with, other);
        EXPECT_LE(found, expected_variance(*histogram, other) * (1 + 1e-6)) << count << " " << i;
      }
    }
  }
}

// Without a zero, two levels have one that is free, and three have two: nothing on a grid is better.
TEST(FitLevels, WithoutZeroAreTheBestOfAll) {
  for (const auto& values : {heavy_tailed(50'000), uniform(50'000)}) {
    const auto histogram = histogram_of(values);
    std::vector<double> two(2), multiple(2), three(3);
    fit_levels(*histogram, ZeroLevel::without, two);
    fit_multiplier(*histogram, ZeroLevel::without, multiple);
    fit_levels(*histogram, ZeroLevel::without, three);
    EXPECT_NEAR(expected_variance(*histogram, two), expected_variance(*histogram, multiple),
                1e-4 * expected_variance(*histogram, two));
    for (int i = 1; i < 200; ++i) {
      const std::vector<double> one_free = {0.005 * i, 1};
      EXPECT_LE(expected_variance(*histogram, two), expected_variance(*histogram, one_free) * (1 + 1e-9));
      for (int k = i + 1; k < 200; ++k) {
        const std::vector<double> two_free = {0.005 * i, 0.005 * k, 1};
        EXPECT_LE(expected_variance(*histogram, three), expected_variance(*histogram, two_free) * (1 + 1e-6));
      }
    }
  }
}

TEST(FitLevels, WithoutZeroHaveTheVarianceOfBothSigns) {
  const auto values = heavy_tailed(50'000);
  const auto histogram = histogram_of(values);
  const std::vector<double> levels = {0.05, 0.3, 1};
  double sum = 0;
  for (const float value : values) {
    const auto r = static_cast<double>(value);
    sum += r < 0.05 ? 0.05 * 0.05 - r * r : r < 0.3 ? (0.3 - r) * (r - 0.05) : (1 - r) * (r - 0.3);
  }
  const double expected = sum / static_cast<double>(values.size());
  EXPECT_NEAR(expected_variance(*histogram, levels), expected, 0.01 * expected);
}

}  // namespace
}  // namespace thinwire::level_fit_test
