#include "kernels/sign_bits.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "kernels/test_targets.h"
#include "kernels/test_vectors.h"

namespace thinwire {
namespace {

// --- The definitions.

std::vector<std::uint64_t> scalar_pack(const std::vector<float>& gradient,
                                       const std::vector<float>& residual) {
  std::vector<std::uint64_t> bits(sign_words(gradient.size()), 0);
  for (std::size_t i = 0; i < gradient.size(); ++i) {
    const float p = residual.empty() ? gradient[i] : gradient[i] + residual[i];
    if (p >= 0) bits[i / 64] |= std::uint64_t{1} << (i % 64);
  }
  return bits;
}

float scalar_step(const std::vector<std::uint64_t>& bits, std::size_t i, float scale) {
  return ((bits[i / 64] >> (i % 64)) & 1) != 0 ? scale : -scale;
}

class SignBits : public testing::TestWithParam<bool> {
 protected:
  std::vector<float> residual(std::size_t count) const {
    return GetParam() ? test_values(count, 2) : std::vector<float>();
  }
};

TEST_P(SignBits, PackAgreesWithItsDefinition) {
  for_each_target([&](const std::string& target) {
    for (const int threads : {1, 3}) {
      const auto executor = make_cpu_executor(threads);
      for (const std::size_t count : kTestSizes) {
        const auto gradient = test_values(count, 1);
        const auto r = residual(count);
        std::vector<std::uint64_t> bits(sign_words(count), ~std::uint64_t{0});
        EXPECT_TRUE(pack_signs(*executor, gradient, r, bits));
        EXPECT_EQ(bits, scalar_pack(gradient, r)) << target << " " << count;
      }
    }
  });
}

TEST_P(SignBits, PackNoticesOneBadValueAnywhere) {
  const float infinity = std::numeric_limits<float>::infinity();
  const auto executor = make_cpu_executor(2);
  for_each_target([&](const std::string& target) {
    for (const std::size_t count : {1u, 64u, 100u, 70'000u}) {
      for (const std::size_t at : {std::size_t{0}, count / 2, count - 1}) {
        for (const float bad : {infinity, -infinity, std::numeric_limits<float>::quiet_NaN()}) {
          auto gradient = test_values(count, 1);
          gradient[at] = bad;
          std::vector<std::uint64_t> bits(sign_words(count));
          const auto r = residual(count);
          EXPECT_FALSE(pack_signs(*executor, gradient, r, bits)) << target << " " << count << " " << at;
        }
      }
    }
  });
}

TEST_P(SignBits, ApplyWritesMeanAndResidualInOnePass) {
  const float scale = 0.3f;
  for_each_target([&](const std::string& target) {
    for (const std::size_t count : kTestSizes) {
      const auto executor = make_cpu_executor(2);
      const auto bits = scalar_pack(test_values(count, 3), {});
      auto gradient = test_values(count, 1);
      auto r = residual(count);
      const auto old_gradient = gradient;
      const auto old_residual = r;
      const double squares = apply_signs(*executor, bits, scale, gradient, r);
      double expected_squares = 0;
      for (std::size_t i = 0; i < count; ++i) {
        const float step = scalar_step(bits, i, scale);
        ASSERT_EQ(gradient[i], step) << target;
        if (r.empty()) continue;
        const float left = old_gradient[i] + old_residual[i] - step;
        ASSERT_EQ(r[i], left) << target;
        expected_squares += static_cast<double>(left) * static_cast<double>(left);
      }
      EXPECT_NEAR(squares, expected_squares, 1e-5 * expected_squares);
    }
  });
}

TEST_P(SignBits, SubtractKeepsWhatTheOwnFrameDidNotCarry) {
  const float scale = 0.7f;
  for_each_target([&](const std::string& target) {
    for (const std::size_t count : kTestSizes) {
      const auto executor = make_cpu_executor(1);
      const auto bits = scalar_pack(test_values(count, 3), {});
      const auto mean = test_values(count, 4);
      auto gradient = test_values(count, 1);
      auto r = residual(count);
      const auto old_gradient = gradient;
      const auto old_residual = r;
      subtract_signs(*executor, bits, scale, mean, gradient, r);
      for (std::size_t i = 0; i < count; ++i) {
        ASSERT_EQ(gradient[i], mean[i]) << target;
        if (!r.empty()) {
          ASSERT_EQ(r[i], old_gradient[i] + old_residual[i] - scalar_step(bits, i, scale)) << target;
        }
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Residual, SignBits, testing::Bool());

TEST(SignBits, MergeSelectsBitByBit) {
  for_each_target([&](const std::string& target) {
    for (const std::size_t words : {0u, 1u, 7u, 8u, 9u, 5000u}) {
      const auto executor = make_cpu_executor(2);
      std::mt19937_64 random(5);
      std::vector<std::uint64_t> own(words), received(words), take(words);
      for (auto* vector : {&own, &received, &take}) {
        for (auto& word : *vector) word = random();
      }
      const auto before = own;
      merge_signs(*executor, own, received, take);
      for (std::size_t i = 0; i < words; ++i) {
        // The paper's form: (v AND v*) OR ((v XOR v*) AND t'), t' being v* where it is taken and v elsewhere.
        const std::uint64_t t = (take[i] & before[i]) | (~take[i] & received[i]);
        ASSERT_EQ(own[i], (received[i] & before[i]) | ((received[i] ^ before[i]) & t)) << target;
      }
    }
  });
}

TEST(SignBits, AccumulateAddsPlusOrMinusScale) {
  for_each_target([&](const std::string& target) {
    for (const std::size_t count : kTestSizes) {
      const auto executor = make_cpu_executor(1);
      const auto bits = scalar_pack(test_values(count, 3), {});
      auto sums = test_values(count, 1);
      const auto before = sums;
      accumulate_signs(*executor, bits, 0.25f, sums);
      for (std::size_t i = 0; i < count; ++i)
        ASSERT_EQ(sums[i], before[i] + scalar_step(bits, i, 0.25f)) << target;
    }
  });
}

}  // namespace
}  // namespace thinwire
