#include "kernels/signs/random_signs.h"

#include <gtest/gtest.h>

#include <cmath>

#include "kernels/signs/sign_bits.h"
#include "kernels/test_executors.h"
#include "kernels/test_vectors.h"

namespace thinwire::stochastic_signs_test {
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
  for (const bool with_residual : {false, true}) {
    for (const std::size_t count : kTestSizes) {
      const auto gradient = test_values(count, 1);
      const auto residual = with_residual ? test_values(count, 2) : std::vector<float>();
      std::vector<std::uint64_t> expected(sign_words(count), 0);
      for (std::size_t i = 0; i < count; ++i) {
        const float p = with_residual ? gradient[i] + residual[i] : gradient[i];
        expected[i / 64] |= static_cast<std::uint64_t>(scalar_sign(stream, i, p, 0.1f)) << (i % 64);
      }
      for_each_executor([&](Executor& executor, const std::string& name) {
        // Words in host memory, as frames are.
        std::vector<std::uint64_t> bits(sign_words(count), ~std::uint64_t{0});
        Placed placed(executor, gradient);
        stochastic_signs(executor, stream, placed, Placed(executor, residual), 0.1f, bits);
        EXPECT_EQ(bits, expected) << name << " " << count;
      });
    }
  }
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
}  // namespace thinwire::stochastic_signs_test
