#include "kernels/block_norms.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/bitmap.h"
#include "kernels/test_targets.h"
#include "kernels/test_vectors.h"

namespace thinwire {
namespace {

/// p of test_values, with blocks of zeros among them.
std::vector<float> blocky_values(std::size_t count, std::size_t block, std::uint32_t seed) {
  auto values = test_values(count, seed);
  for (std::size_t i = 0; i < count; ++i) {
    if ((i / block) % 3 != 0) values[i] = i % 2 == 0 ? 0.0f : -0.0f;
  }
  return values;
}

TEST(BlockNorms, AgreeWithTheirDefinitionOnEveryInstructionSet) {
  for_each_target([&](const std::string& target) {
    for (const std::size_t elements : kTestSizes) {
      for (const std::size_t block : {1u, 7u, 64u, 256u, 1000u}) {
        SCOPED_TRACE(testing::Message() << target << " n " << elements << " block " << block);
        const auto gradient = blocky_values(elements, block, 1);
        for (const auto& residual : {std::vector<float>(), blocky_values(elements, block, 2)}) {
          const std::size_t blocks = block_count(elements, block);
          std::vector<float> first;
          for (const int threads : {1, 3}) {
            const auto executor = make_cpu_executor(threads);
            std::vector<float> norms(blocks);
            block_norms(*executor, gradient, residual, block, norms);
            std::vector<std::uint64_t> bitmap(bitmap_words(blocks), ~std::uint64_t{0});
            ASSERT_TRUE(flag_nonzero_blocks(*executor, gradient, residual, block, bitmap));
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
                ASSERT_NEAR(static_cast<double>(norms[b]), norm, 1e-5 * norm + 1e-37) << b;
              }
            }
            if (threads == 1) first = norms;
            ASSERT_TRUE(blocks == 0 || std::memcmp(first.data(), norms.data(), blocks * sizeof(float)) == 0);
          }
        }
      }
    }
  });
}

TEST(BlockNorms, OnlyBadValuesGiveNanAndOverflowGivesInfinity) {
  for_each_target([&](const std::string& target) {
    const auto executor = make_cpu_executor(1);
    for (const std::size_t place : {0u, 50u, 99u}) {
      for (const float bad : {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
                              std::numeric_limits<float>::quiet_NaN()}) {
        std::vector<float> values(300, 1.0f);
        values[100 + place] = bad;
        values[200 + place] = 3e38f;
        std::vector<float> norms(3);
        block_norms(*executor, values, {}, 100, norms);
        EXPECT_EQ(norms[0], 100.0f) << target;
        EXPECT_TRUE(std::isnan(norms[1])) << target;
        EXPECT_EQ(norms[2], std::numeric_limits<float>::infinity()) << target;
        std::vector<std::uint64_t> bitmap(1);
        EXPECT_FALSE(flag_nonzero_blocks(*executor, values, {}, 100, bitmap)) << target;
        values[100 + place] = 1;
        EXPECT_TRUE(flag_nonzero_blocks(*executor, values, {}, 100, bitmap)) << target;
      }
    }
  });
}

}  // namespace
}  // namespace thinwire
