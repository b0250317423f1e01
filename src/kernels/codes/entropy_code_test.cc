#include "kernels/codes/entropy_code.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <utility>
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

std::uint64_t hash_of(const std::vector<std::byte>& bytes) {
  std::uint64_t hash = 14695981039346656037u;
  for (const std::byte byte : bytes) hash = (hash ^ static_cast<std::uint64_t>(byte)) * 1099511628211u;
  return hash;
}

/// Of no library's distribution, and large enough for escapes.
std::vector<std::int16_t> fixed_levels(std::size_t count) {
  std::vector<std::int16_t> levels(count);
  std::uint32_t state = 1;
  for (std::size_t i = 0; i < count; ++i) {
    state = state * 1664525u + 1013904223u;
    const std::int32_t size = static_cast<std::int32_t>(i / 1000 % 7);  // quiet and busy stretches
    const auto level = static_cast<std::int32_t>(state >> 16 & 0xFFu) * size * size / 600;
    levels[i] = static_cast<std::int16_t>((state >> 28 & 1) != 0 ? level : -level);
    if (state >> 20 == 77) levels[i] = 3000;
  }
  return levels;
}

TEST(EntropyCode, AllProcessorsAndThreadsWriteTheSameBytes) {
  const auto levels = fixed_levels(200'000);
  for_each_target([&](const std::string& target) {
    for (const int threads : {1, 3}) {
      const auto codes = written(levels, threads);
      EXPECT_EQ(hash_of(codes), 12178494233096838107u) << target << ", " << threads << " threads";
      const auto executor = make_cpu_executor(threads);
      std::vector<std::int16_t> back(levels.size());
      read_entropy_coded(*executor, codes, back);
      EXPECT_EQ(back, levels) << target;
    }
  });
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
  for (const auto& [count, mean] :
       {std::pair<std::size_t, double>{3000, 0.3}, {3000, 20.0}, {65'600, 0.02}}) {
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

/// What of a vector with noise the two ranks say, on the CPU by definition.
struct Vector {
  explicit Vector(std::size_t count)
      : gradient(count), residual(count), scales(stepped_blocks(count)), levels(count) {
    std::mt19937 random(5);
    std::normal_distribution<float> normal;
    for (auto& one : gradient) one = normal(random);
    for (auto& one : residual) one = normal(random);
    for (auto& one : scales) one = static_cast<std::uint8_t>(20 + random() % 6);
    for (std::size_t i = 0; i < count; ++i) {
      const float p = gradient[i] + residual[i];
      levels[i] = static_cast<std::int16_t>(
          std::copysign(std::floor(std::fabs(p) * (1 / steps().of(i / kSteppedBlock)) + 0.4f), p));
    }
  }
  BlockSteps steps() const { return {0.5f, scales}; }
  float value(std::size_t i) const { return steps().of(i / kSteppedBlock) * static_cast<float>(levels[i]); }

  std::vector<float> gradient;
  std::vector<float> residual;
  std::vector<std::uint8_t> scales;
  std::vector<std::int16_t> levels;
};

TEST(RoundedLevels, RoundAndComeBackWithTheRest) {
  for (const std::size_t count : {0u, 1u, 130u, 150'001u}) {
    const Vector vector(count);
    for_each_executor([&](Executor& executor, const std::string& name) {
      SCOPED_TRACE(name);
      Placed<float> gradient(executor, vector.gradient);
      Placed<float> residual(executor, vector.residual);
      std::vector<std::int16_t> levels(count);
      round_to_levels(executor, vector.steps(), 0.4f, gradient, residual, levels);
      ASSERT_EQ(levels, vector.levels);
      const std::vector<SteppedLevels> ranks(2, {vector.steps(), levels});
      Placed<float> mean(executor, std::vector<float>(count));
      mean_of_levels(executor, ranks, mean);
      const double squares = apply_levels(executor, ranks[0], ranks[1], gradient, residual.span());
      const auto means = mean.read(), gradients = gradient.read(), residuals = residual.read();
      double expected = 0;
      for (std::size_t i = 0; i < count; ++i) {
        ASSERT_EQ(means[i], vector.value(i)) << i;
        ASSERT_EQ(gradients[i], vector.value(i)) << i;
        ASSERT_EQ(residuals[i], vector.gradient[i] + vector.residual[i] - vector.value(i)) << i;
        expected += static_cast<double>(residuals[i]) * static_cast<double>(residuals[i]);
      }
      EXPECT_NEAR(squares, expected, 1e-5 * expected);
      apply_levels(executor, ranks[0], ranks[1], gradient, {});
      EXPECT_EQ(gradient.read(), gradients);
    });
  }
}

TEST(RoundedLevels, BlocksOfALongVectorKeepTheirSteps) {
  // Sums over so many elements are cut within blocks.
  const std::size_t count = (std::size_t{1} << 24) + 200;
  std::vector<std::uint8_t> scales(stepped_blocks(count));
  for (std::size_t i = 0; i < scales.size(); ++i) scales[i] = static_cast<std::uint8_t>(i % kStepScales);
  const BlockSteps steps{1.0f, scales};
  const std::vector<std::int16_t> levels(count, 1);
  std::vector<float> gradient(count);
  const auto executor = make_cpu_executor(2);
  apply_levels(*executor, {steps, levels}, {steps, levels}, gradient, {});
  for (std::size_t i = 0; i < count; ++i) ASSERT_EQ(gradient[i], steps.of(i / kSteppedBlock)) << i;
}

TEST(RoundedLevels, ScalesAreHalvesOfPowersOfTwo) {
  EXPECT_EQ(kStepFactors[kUnitScale], 1.0f);
  for (std::size_t i = 0; i < kStepScales; ++i) {
    EXPECT_FLOAT_EQ(kStepFactors[i], std::exp2((static_cast<float>(i) - kUnitScale) / 2));
  }
}

}  // namespace
}  // namespace thinwire
