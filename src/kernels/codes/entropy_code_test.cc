#include "kernels/codes/entropy_code.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <vector>

#include "kernels/codes/entropy_tables.h"
#include "kernels/codes/rounded_levels.h"
#include "kernels/test_executors.h"
#include "thinwire/errors.h"

namespace thinwire {
namespace {

/// Two-sided geometric, with this mean magnitude.
std::vector<std::int16_t> drawn(std::size_t count, double mean, unsigned seed = 1) {
  std::mt19937 random(seed);
  const double ratio = (std::sqrt(1 + mean * mean) - 1) / mean;
  std::bernoulli_distribution zero((1 - ratio) / (1 + ratio));
  std::geometric_distribution<int> more(1 - ratio);
  std::vector<std::int16_t> levels(count);
  for (auto& level : levels) {
    if (zero(random)) continue;
    const int magnitude = std::min(32767, 1 + more(random));
    level = static_cast<std::int16_t>(random() % 2 == 0 ? magnitude : -magnitude);
  }
  return levels;
}

std::vector<std::byte> written(const std::vector<std::int16_t>& levels, int threads = 1) {
  const auto executor = make_cpu_executor(threads);
  std::vector<std::byte> codes(most_entropy_coded_bytes(levels.size()));
  codes.resize(write_entropy_coded(*executor, levels, codes));
  return codes;
}

std::vector<std::int16_t> read(const std::vector<std::byte>& codes, std::size_t count) {
  const auto executor = make_cpu_executor(1);
  std::vector<std::int16_t> levels(count, 99);
  read_entropy_coded(*executor, codes, levels);
  return levels;
}

TEST(EntropyCode, WhatIsWrittenIsRead) {
  for (const std::size_t count : {0u, 1u, 127u, 128u, 129u, 1000u, 65536u, 65537u, 200'000u}) {
    for (const double mean : {0.003, 0.1, 1.0, 7.0, 60.0, 5000.0}) {
      const auto levels = drawn(count, mean);
      const auto codes = written(levels);
      ASSERT_LE(codes.size(), most_entropy_coded_bytes(count));
      ASSERT_EQ(read(codes, count), levels) << count << " levels of " << mean;
    }
  }
}

TEST(EntropyCode, ThreadsWriteTheSameBytes) {
  const auto levels = drawn(300'000, 0.8);
  EXPECT_EQ(written(levels), written(levels, 3));
  const auto executor = make_cpu_executor(3);
  std::vector<std::int16_t> back(levels.size());
  const auto codes = written(levels);
  read_entropy_coded(*executor, codes, back);
  EXPECT_EQ(back, levels);
}

/// Bits that a two-sided geometric distribution tells.
double entropy_of(double mean) {
  const double ratio = (std::sqrt(1 + mean * mean) - 1) / mean;
  return -std::log2((1 - ratio) / (1 + ratio)) - mean * std::log2(ratio);
}

TEST(EntropyCode, TakesHardlyMoreThanTheEntropy) {
  for (const double mean : {0.02, 0.1, 0.3, 1.0, 3.0}) {
    const auto levels = drawn(1 << 18, mean);
    const double bits =
        8.0 * static_cast<double>(written(levels).size()) / static_cast<double>(levels.size());
    EXPECT_LT(bits, 1.01 * entropy_of(mean) + 5.0 / kLevelBlock + 0.02) << "mean magnitude " << mean;
  }
}

TEST(EntropyCode, QuietAndBusyBlocksHaveTheirOwnTables) {
  auto levels = drawn(1 << 17, 0.02);
  const auto busy = drawn(1 << 17, 3.0);
  levels.insert(levels.end(), busy.begin(), busy.end());
  const double bits = 8.0 * static_cast<double>(written(levels).size()) / static_cast<double>(levels.size());
  EXPECT_LT(bits, 0.505 * (entropy_of(0.02) + entropy_of(3.0)) + 0.07);
}

TEST(EntropyCode, TablesCoverAllStates) {
  for (std::size_t number = 1; number < kLevelClasses; ++number) {
    const LevelClass& one = level_classes()[number];
    std::uint32_t sum = 0;
    for (std::uint32_t symbol = 0; symbol < kSymbols; ++symbol) {
      const std::uint32_t frequency = one.codes[symbol] >> 16;
      if (frequency == 0) continue;
      EXPECT_EQ(one.codes[symbol] & 0xFFFFu, sum);
      for (std::uint32_t offset = 0; offset < frequency; ++offset) {
        const std::uint32_t entry = one.entries[sum + offset];
        ASSERT_EQ(entry & 0xFFFFFFu, frequency | offset << 12);
        const std::int32_t level = static_cast<std::int32_t>(entry) >> 24;
        ASSERT_EQ(level, symbol == 2 * one.limit + 1 ? kEscape : level_of(symbol));
      }
      sum += frequency;
    }
    EXPECT_EQ(sum, kProbabilities) << "class " << number;
  }
}

TEST(EntropyCode, TablesAreTheFormats) {
  std::uint64_t hash = 14695981039346656037u;
  for (const LevelClass& one : level_classes()) {
    for (const std::uint32_t entry : one.entries) hash = (hash ^ entry) * 1099511628211u;
  }
  EXPECT_EQ(hash, 9188643063649001027u)
      << "another version of the frames' format is needed where tables change";
}

TEST(EntropyCode, CutOrChangedBytesAreRefusedOrReadAsLevels) {
  const std::size_t count = 3000;
  for (const double mean : {0.3, 20.0}) {
    const auto codes = written(drawn(count, mean));
    for (std::size_t size = 0; size < codes.size(); size += 7) {
      const std::vector<std::byte> cut(codes.begin(), codes.begin() + static_cast<std::ptrdiff_t>(size));
      EXPECT_THROW(read(cut, count), CorruptFrame);
    }
    std::mt19937 random(3);
    std::size_t refused = 0;
    for (int i = 0; i < 300; ++i) {
      auto changed = codes;
      changed[random() % changed.size()] ^= static_cast<std::byte>(1 + random() % 255);
      try {
        const auto levels = read(changed, count);
        EXPECT_EQ(std::ranges::count(levels, -32768), 0);
      } catch (const CorruptFrame&) {
        ++refused;
      }
    }
    EXPECT_GT(refused, 150u);
  }
}

TEST(RoundedLevels, RoundAndComeBackWithTheRest) {
  const auto executor = make_cpu_executor(2);
  const std::size_t count = 150'001;
  const std::vector<std::size_t> ends = {70'003, 70'003, count};
  const std::vector<float> steps = {0.5f, 0.0f, 0.25f};
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  std::vector<float> gradient(count), residual(count), before(count);
  for (auto& one : gradient) one = normal(random);
  for (auto& one : residual) one = normal(random);
  for (std::size_t i = 0; i < count; ++i) before[i] = gradient[i] + residual[i];
  std::vector<std::int16_t> levels(count);
  round_to_levels(*executor, ends, steps, 0.4f, gradient, residual, levels);
  for (std::size_t i = 0; i < count; ++i) {
    const float step = i < ends[0] ? 0.5f : 0.25f;
    const float place = std::fabs(before[i]) * (1 / step) + 0.4f;
    ASSERT_EQ(levels[i], static_cast<std::int16_t>(std::copysign(std::floor(place), before[i]))) << i;
  }
  const std::vector<SteppedLevels> ranks(2, {steps, levels});
  std::vector<float> mean(count);
  mean_of_levels(*executor, ends, ranks, mean);
  const double squares = apply_levels(*executor, ends, ranks[0], ranks[1], gradient, residual);
  double expected = 0;
  for (std::size_t i = 0; i < count; ++i) {
    ASSERT_EQ(gradient[i], mean[i]) << i;
    ASSERT_EQ(residual[i], before[i] - gradient[i]) << i;
    ASSERT_LE(std::fabs(residual[i]), i < ends[0] ? 0.301f : 0.151f);
    expected += static_cast<double>(residual[i]) * static_cast<double>(residual[i]);
  }
  EXPECT_NEAR(squares, expected, 1e-5 * expected);
}

}  // namespace
}  // namespace thinwire
