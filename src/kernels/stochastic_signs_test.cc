#include "kernels/stochastic_signs.h"

#include <gtest/gtest.h>

#include <cmath>

#include "kernels/sign_bits.h"
#include "kernels/test_targets.h"
#include "kernels/test_vectors.h"

namespace thinwire {
namespace {

bool scalar_sign(const RandomStream& stream, std::size_t element, float p, float half_inverse_norm) {
  const auto word = static_cast<std::uint32_t>(element / 64);
  const auto lane = static_cast<std::uint32_t>(element % 64);
  const std::uint32_t random = stream.block(word * 16 + lane % 16, 0)[lane / 16];
  const float u = static_cast<float>(random >> 8) * 0x1p-24f;
  const float product = p * half_inverse_norm;
  return u < product + 0.5f;
}

TEST(StochasticSigns, AgreeWithTheirDefinition) {
  const RandomStream stream = random_stream(3, 1, 4, RandomPurpose::stochastic_sign, 1);
  for_each_target([&](const std::string& target) {
    for (const std::size_t count : kTestSizes) {
      for (const int threads : {1, 3}) {
        const auto executor = make_cpu_executor(threads);
        const auto gradient = test_values(count, 1);
        const auto residual = test_values(count, 2);
        std::vector<std::uint64_t> bits(sign_words(count));
        stochastic_signs(*executor, stream, gradient, residual, 0.1f, bits);
        for (std::size_t i = 0; i < bits.size() * 64; ++i) {
          const bool expected = i < count && scalar_sign(stream, i, gradient[i] + residual[i], 0.1f);
          ASSERT_EQ((bits[i / 64] >> (i % 64)) & 1, expected ? 1u : 0u) << target << " " << count << " " << i;
        }
      }
    }
  });
}

// z-test at 5 sigma: E[norm * sign] = p for elements from 0 to the whole norm.
TEST(StochasticSigns, AreUnbiased) {
  const auto executor = make_cpu_executor(1);
  const std::vector<float> gradient = {0.0f, 0.1f, -0.1f, 0.5f, -0.7f, 1.0f, -1.0f};
  double norm = 0;
  for (const float g : gradient) norm += static_cast<double>(g) * static_cast<double>(g);
  norm = std::sqrt(norm);
  constexpr int kDraws = 20'000;
  std::vector<int> ones(gradient.size(), 0);
  for (int draw = 0; draw < kDraws; ++draw) {
    std::vector<std::uint64_t> bits(1);
    stochastic_signs(*executor,
                     random_stream(9, static_cast<std::uint64_t>(draw), 0, RandomPurpose::stochastic_sign),
                     gradient, {}, static_cast<float>(0.5 / norm), bits);
    for (std::size_t i = 0; i < gradient.size(); ++i) ones[i] += static_cast<int>((bits[0] >> i) & 1);
  }
  for (std::size_t i = 0; i < gradient.size(); ++i) {
    const double p = 0.5 + 0.5 * static_cast<double>(gradient[i]) / norm;
    EXPECT_LT(std::fabs(ones[i] - kDraws * p) / std::sqrt(kDraws * p * (1 - p) + 1e-9), 5) << i;
  }
}

}  // namespace
}  // namespace thinwire
