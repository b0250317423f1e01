#include "baselines/cosine_transform.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>
#include <random>

namespace thinwire::cosine_transform_test {
namespace {

/// The definition, one coefficient at a time, in double.
std::vector<double> coefficients(std::size_t rows, std::size_t columns, const std::vector<float>& block) {
  const auto basis = [](std::size_t k, std::size_t i, std::size_t n) {
    const double scale = std::sqrt((k == 0 ? 1.0 : 2.0) / static_cast<double>(n));
    return scale *
           std::cos(std::numbers::pi * static_cast<double>((2 * i + 1) * k) / static_cast<double>(2 * n));
  };
  std::vector<double> half(rows * columns, 0.0);  // of the rows alone
  std::vector<double> all(rows * columns, 0.0);
  for (std::size_t i = 0; i < rows; ++i) {
    for (std::size_t v = 0; v < columns; ++v) {
      for (std::size_t j = 0; j < columns; ++j) {
        half[i * columns + v] += basis(v, j, columns) * static_cast<double>(block[i * columns + j]);
      }
    }
  }
  for (std::size_t u = 0; u < rows; ++u) {
    for (std::size_t v = 0; v < columns; ++v) {
      for (std::size_t i = 0; i < rows; ++i)
        all[u * columns + v] += basis(u, i, rows) * half[i * columns + v];
    }
  }
  return all;
}

TEST(CosineTransform, IsTheDefinitionAndItsInverseBringsBack) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  CosineTransform transform(64);
  for (const auto& [rows, columns] : {std::pair{1, 1}, {1, 64}, {7, 1}, {5, 12}, {32, 17}, {64, 64}}) {
    const auto m = static_cast<std::size_t>(rows);
    const auto n = static_cast<std::size_t>(columns);
    transform.prepare(m);
    transform.prepare(n);
    std::vector<float> block(m * n);
    for (auto& value : block) value = normal(random);
    const std::vector<float> before = block;
    const std::vector<double> expected = coefficients(m, n, block);
    std::vector<float> scratch(block.size());
    transform.forward(m, n, block, scratch);
    for (std::size_t i = 0; i < block.size(); ++i) {
      EXPECT_NEAR(static_cast<double>(block[i]), expected[i], 2e-5) << m << " x " << n << ", " << i;
    }
    transform.inverse(m, n, block, scratch);
    for (std::size_t i = 0; i < block.size(); ++i) EXPECT_NEAR(block[i], before[i], 2e-5f) << m << " x " << n;
  }
}

}  // namespace
}  // namespace thinwire::cosine_transform_test
