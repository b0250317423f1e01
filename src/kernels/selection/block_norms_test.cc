#include "kernels/selection/block_norms.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/rows/bitmap.h"
#include "kernels/test_executors.h"
#include "kernels/test_vectors.h"

namespace thinwire::block_norms_test {
namespace {

/// p of test_values, with blocks of zeros among them.
std::vector<float> blocky_values(std::size_t count, std::size_t block, std::uint32_t seed) {
  auto values = test_values(count, seed);
  for (std::size_t i = 0; i < count; ++i) {
    if ((i / block) % 3 != 0) values[i] = i % 2 == 0 ? 0.0f : -0.0f;
  }
  return values;
}

/// Holds both against their definition; norms come back in the memory of kernels or in that of the host.
void expect_definition(Executor& executor, const std::vector<float>& gradient,
                       const std::vector<float>& residual, std::size_t block) {
  const std::size_t elements = gradient.size();
  const std::size_t blocks = block_count(elements, block);
  Placed g(executor, gradient);
  Placed r(executor, residual);
  Placed<float> norms(executor, std::vector<float>(blocks));
  block_norms(executor, g, r, block, norms);
  std::vector<float> of_host(blocks);
  block_norms(executor, g, r, block, of_host);
  const auto read = norms.read();
  ASSERT_TRUE(blocks == 0 || std::memcmp(of_host.data(), read.data(), blocks * sizeof(float)) == 0);
  std::vector<std::uint64_t> bitmap(bitmap_words(blocks), ~std::uint64_t{0});
  ASSERT_TRUE(flag_nonzero_blocks(executor, g, r, block, bitmap));
  for (std::size_t b = 0; b < 64 * bitmap.size(); ++b) {
    double norm = 0;
    bool nonzero = false;
    for (std::size_t i = b * block; i < std::min(elements, (b + 1) * block); ++i) {
      const float p = residual.empty() ? gradient[i] : gradient[i] + residual[i];
      norm += static_cast<double>(p) * static_cast<double>(p);
      nonzero = nonzero || p != 0;
    }
    ASSERT_EQ((bitmap[b / 64] >> (b % 64)) & 1, nonzero ? 1u : 0u) << b;
    if (b < blocks) {
      ASSERT_NEAR(static_cast<double>(read[b]), norm, 1e-5 * norm + 1e-37) << b;
    }
  }
}

TEST(BlockNorms, AgreeWithTheirDefinition) {
  for_each_executor([&](Executor& executor, const std::string& name) {
    for (const std::size_t elements : kTestSizes) {
      for (const std::size_t block : {1u, 7u, 64u, 256u, 1000u, 5000u}) {
        SCOPED_TRACE(testing::Message() << name << " n " << elements << " block " << block);
        const auto gradient = blocky_values(elements, block, 1);
        expect_definition(executor, gradient, {}, block);
        expect_definition(executor, gradient, blocky_values(elements, block, 2), block);
      }
    }
  });
}

TEST(BlockNorms, AreTheSameBitsForAnyNumberOfThreads) {
  const auto gradient = blocky_values(200'003, 256, 1);
  const auto residual = blocky_values(200'003, 256, 2);
  std::vector<float> first(block_count(gradient.size(), 256));
  std::vector<float> second(first.size());
  block_norms(*make_cpu_executor(1), gradient, residual, 256, first);
  block_norms(*make_cpu_executor(3), gradient, residual, 256, second);
  EXPECT_EQ(std::memcmp(first.data(), second.data(), first.size() * sizeof(float)), 0);
}

TEST(BlockNorms, OnlyBadValuesGiveNanAndOverflowGivesInfinity) {
  for_each_executor([&](Executor& executor, const std::string& name) {
    for (const std::size_t place : {0u, 50u, 99u}) {
      for (const float bad : {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
                              std::numeric_limits<float>::quiet_NaN()}) {
        std::vector<float> values(300, 1.0f);
        values[100 + place] = bad;
        values[200 + place] = 3e38f;
        std::vector<float> norms(3);
        block_norms(executor, Placed(executor, values), {}, 100, norms);
        EXPECT_EQ(norms[0], 100.0f) << name;
        EXPECT_TRUE(std::isnan(norms[1])) << name;
        EXPECT_EQ(norms[2], std::numeric_limits<float>::infinity()) << name;
        std::vector<std::uint64_t> bitmap(1);
        EXPECT_FALSE(flag_nonzero_blocks(executor, Placed(executor, values), {}, 100, bitmap)) << name;
        values[100 + place] = 1;
        EXPECT_TRUE(flag_nonzero_blocks(executor, Placed(executor, values), {}, 100, bitmap)) << name;
      }
    }
  });
}

TEST(BlockNorms, LongBlocksAreCutIntoChunks) {
  for_each_executor([&](Executor& executor, const std::string& name) {
    auto values = test_values(150'000, 3);
    std::fill(values.begin() + 65'536, values.begin() + 131'072, 0.0f);
    SCOPED_TRACE(name);
    expect_definition(executor, values, {}, 65'536);
    values[70'000] = std::numeric_limits<float>::infinity();
    std::vector<float> norms(3);
    block_norms(executor, Placed(executor, values), {}, 65'536, norms);
    EXPECT_TRUE(std::isfinite(norms[0]) && std::isnan(norms[1]) && std::isfinite(norms[2]));
  });
}

}  // namespace
}  // namespace thinwire::block_norms_test
