#include "kernels/signs/sign_bits.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "kernels/test_executors.h"
#include "kernels/test_vectors.h"

namespace thinwire::sign_bits_test {
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
  for_each_executor([&](Executor& executor, const std::string& name) {
    for (const std::size_t count : kTestSizes) {
      const auto gradient = test_values(count, 1);
      const auto r = residual(count);
      Placed<std::uint64_t> bits(executor, std::vector<std::uint64_t>(sign_words(count), ~std::uint64_t{0}));
      EXPECT_TRUE(pack_signs(executor, Placed(executor, gradient), Placed(executor, r), bits));
      EXPECT_EQ(bits.read(), scalar_pack(gradient, r)) << name << " " << count;
    }
  });
}

TEST_P(SignBits, PackNoticesOneBadValueAnywhere) {
  const float infinity = std::numeric_limits<float>::infinity();
  for_each_executor([&](Executor& executor, const std::string& name) {
    for (const std::size_t count : {1u, 64u, 100u, 70'000u}) {
      for (const std::size_t at : {std::size_t{0}, count / 2, count - 1}) {
        for (const float bad : {infinity, -infinity, std::numeric_limits<float>::quiet_NaN()}) {
          auto gradient = test_values(count, 1);
          gradient[at] = bad;
          // Words in host memory, as frames are.
          std::vector<std::uint64_t> bits(sign_words(count));
          Placed r(executor, residual(count));
          EXPECT_FALSE(pack_signs(executor, Placed(executor, gradient), r, bits))
              << name << " " << count << " " << at;
        }
      }
    }
  });
}

TEST_P(SignBits, ApplyWritesMeanAndResidualInOnePass) {
  const float scale = 0.3f;
  for_each_executor([&](Executor& executor, const std::string& name) {
    for (const std::size_t count : kTestSizes) {
      const auto bits = scalar_pack(test_values(count, 3), {});
      const auto old_gradient = test_values(count, 1);
      const auto old_residual = residual(count);
      Placed placed_gradient(executor, old_gradient);
      Placed placed_residual(executor, old_residual);
      const double squares = apply_signs(executor, bits, scale, placed_gradient, placed_residual);
      const auto gradient = placed_gradient.read();
      const auto r = placed_residual.read();
      double expected_squares = 0;
      for (std::size_t i = 0; i < count; ++i) {
        const float step = scalar_step(bits, i, scale);
        ASSERT_EQ(gradient[i], step) << name;
        if (r.empty()) continue;
        const float left = old_gradient[i] + old_residual[i] - step;
        ASSERT_EQ(r[i], left) << name;
        expected_squares += static_cast<double>(left) * static_cast<double>(left);
      }
      EXPECT_NEAR(squares, expected_squares, 1e-5 * expected_squares);
    }
  });
}

TEST_P(SignBits, AverageAddsVectorsInTheirOrder) {
  constexpr std::size_t kSelf = 1;
  for (const std::size_t count : kTestSizes) {
    const auto g = test_values(count, 1);
    const auto r = residual(count);
    const std::vector<float> scales = {0.3f, 1e-3f, 7.1f};
    std::vector<std::vector<std::uint64_t>> bits;
    std::vector<ScaledSigns> vectors;
    std::vector<float> means(count, 0.0f), left(r.size());
    for (std::uint32_t rank = 0; rank < scales.size(); ++rank) {
      bits.push_back(scalar_pack(test_values(count, 3 + rank), {}));
      for (std::size_t i = 0; i < count; ++i) means[i] += scalar_step(bits[rank], i, scales[rank]);
    }
    for (std::size_t rank = 0; rank < scales.size(); ++rank) vectors.push_back({bits[rank], scales[rank]});
    for (auto& mean : means) mean *= 1.0f / 3.0f;
    double squares = 0;
    for (std::size_t i = 0; i < left.size(); ++i) {
      left[i] = g[i] + r[i] - scalar_step(bits[kSelf], i, scales[kSelf]);
      squares += static_cast<double>(left[i]) * static_cast<double>(left[i]);
    }
    for_each_executor([&](Executor& executor, const std::string& name) {
      Placed placed_gradient(executor, g);
      Placed placed_residual(executor, r);
      const double returned = average_signs(executor, vectors, kSelf, placed_gradient, placed_residual);
      EXPECT_EQ(placed_gradient.read(), means) << name << " " << count;
      EXPECT_EQ(placed_residual.read(), left) << name << " " << count;
      EXPECT_NEAR(returned, squares, 1e-5 * squares) << name;
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Residual, SignBits, testing::Bool());

TEST(SignBits, MergeSelectsBitByBit) {
  for_each_executor([&](Executor& executor, const std::string& name) {
    for (const std::size_t words : {0u, 1u, 7u, 8u, 9u, 5000u}) {
      std::mt19937_64 random(5);
      std::vector<std::uint64_t> before(words), received(words), take(words);
      for (auto* vector : {&before, &received, &take}) {
        for (auto& word : *vector) word = random();
      }
      Placed placed(executor, before);
      merge_signs(executor, placed, received, take);
      const auto own = placed.read();
      for (std::size_t i = 0; i < words; ++i) {
        // The paper's form: (v AND v*) OR ((v XOR v*) AND t'), t' being v* where it is taken and v elsewhere.
        const std::uint64_t t = (take[i] & before[i]) | (~take[i] & received[i]);
        ASSERT_EQ(own[i], (received[i] & before[i]) | ((received[i] ^ before[i]) & t)) << name;
      }
    }
  });
}

TEST(SignBits, AccumulateAddsPlusOrMinusScale) {
  for_each_executor([&](Executor& executor, const std::string& name) {
    for (const std::size_t count : kTestSizes) {
      const auto bits = scalar_pack(test_values(count, 3), {});
      const auto before = test_values(count, 1);
      Placed placed(executor, before);
      accumulate_signs(executor, bits, 0.25f, placed);
      const auto sums = placed.read();
      for (std::size_t i = 0; i < count; ++i)
        ASSERT_EQ(sums[i], before[i] + scalar_step(bits, i, 0.25f)) << name;
    }
  });
}

}  // namespace
}  // namespace thinwire::sign_bits_test
