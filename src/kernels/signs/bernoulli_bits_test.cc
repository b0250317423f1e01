#include "kernels/signs/random_signs.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>

#include "kernels/test_executors.h"

namespace thinwire::bernoulli_bits_test {
namespace {

/// The definition, lane by lane: is the uniform number below the probability?
std::uint64_t scalar_word(const RandomStream& stream, std::uint32_t word, std::uint32_t numerator,
                          std::uint32_t denominator) {
  std::uint64_t draws[kBernoulliDraws];
  for (int t = 0; t < kBernoulliDraws; t += 2) {
    const auto block = stream.block(word, static_cast<std::uint32_t>(t / 2));
    draws[t] = block[0] | (std::uint64_t{block[1]} << 32);
    draws[t + 1] = block[2] | (std::uint64_t{block[3]} << 32);
  }
  std::uint64_t result = 0;
  for (int lane = 0; lane < 64; ++lane) {
    std::uint32_t uniform = 0;
    for (const std::uint64_t draw : draws)
      uniform = uniform << 1 | static_cast<std::uint32_t>((draw >> lane) & 1);
    result |= static_cast<std::uint64_t>(uniform < bernoulli_threshold(numerator, denominator)) << lane;
  }
  return result;
}

TEST(BernoulliBits, AgreeWithTheirDefinitionOnEveryExecutor) {
  const RandomStream stream = random_stream(11, 22, 33, RandomPurpose::merge, 44, 55);
  for_each_executor([&](Executor& executor, const std::string& name) {
    for (const auto& [numerator, denominator] :
         {std::pair{1u, 2u}, {1u, 3u}, {1u, 7u}, {3u, 8u}, {2u, 5u}, {5u, 6u}}) {
      for (const std::size_t words : {0u, 1u, 15u, 16u, 17u, 2000u}) {
        Placed placed(executor, std::vector<std::uint64_t>(words));
        bernoulli_bits(executor, stream, 123, numerator, denominator, placed);
        const auto bits = placed.read();
        for (std::size_t i = 0; i < words; ++i) {
          ASSERT_EQ(bits[i], scalar_word(stream, 123 + static_cast<std::uint32_t>(i), numerator, denominator))
              << name << " word " << i << " p = " << numerator << "/" << denominator;
        }
      }
    }
  });
}

// Two-sided z-test at 5 sigma over fixed seeds: a correct kernel fails with probability below 6e-7 per case.
TEST(BernoulliBits, HaveTheRightProbabilityInEveryLane) {
  const auto executor = make_cpu_executor(1);
  constexpr std::size_t kWords = 20'000;
  for (std::uint32_t m = 2; m <= 9; ++m) {
    std::vector<std::uint64_t> bits(kWords);
    bernoulli_bits(*executor, random_stream(1, 2, 3, RandomPurpose::merge, m), 0, 1, m, bits);
    const double p = 1.0 / m;
    double total = 0;
    for (int lane = 0; lane < 64; ++lane) {
      double ones = 0;
      for (const std::uint64_t word : bits) ones += static_cast<double>((word >> lane) & 1);
      EXPECT_LT(std::fabs(ones - kWords * p) / std::sqrt(kWords * p * (1 - p)), 5)
          << "m " << m << " lane " << lane;
      total += ones;
    }
    const double n = 64.0 * kWords;
    EXPECT_LT(std::fabs(total - n * p) / std::sqrt(n * p * (1 - p)), 5) << "m " << m;
  }
}

TEST(BernoulliBits, NeighbouringLanesAndWordsAreIndependent) {
  const auto executor = make_cpu_executor(1);
  constexpr std::size_t kWords = 20'000;
  std::vector<std::uint64_t> bits(kWords);
  bernoulli_bits(*executor, random_stream(1, 2, 3, RandomPurpose::merge), 0, 1, 2, bits);
  double equal_lanes = 0;
  double equal_words = 0;
  for (std::size_t i = 0; i + 1 < kWords; ++i) {
    equal_lanes += std::popcount(~(bits[i] ^ (bits[i] >> 1)) & (~std::uint64_t{0} >> 1));
    equal_words += std::popcount(~(bits[i] ^ bits[i + 1]));
  }
  const double lane_pairs = 63.0 * (kWords - 1);
  const double word_pairs = 64.0 * (kWords - 1);
  EXPECT_LT(std::fabs(equal_lanes - lane_pairs / 2) / std::sqrt(lane_pairs / 4), 5);
  EXPECT_LT(std::fabs(equal_words - word_pairs / 2) / std::sqrt(word_pairs / 4), 5);
}

TEST(BernoulliBits, RefusesImpossibleProbabilities) {
  const auto executor = make_cpu_executor(1);
  std::vector<std::uint64_t> bits(1);
  EXPECT_THROW(bernoulli_bits(*executor, {}, 0, 0, 2, bits), std::invalid_argument);
  EXPECT_THROW(bernoulli_bits(*executor, {}, 0, 2, 2, bits), std::invalid_argument);
}

}  // namespace
}  // namespace thinwire::bernoulli_bits_test
