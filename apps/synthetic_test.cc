#include "apps/synthetic.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <vector>

namespace thinwire::apps {
namespace {

std::vector<float> gradient_of(const SyntheticGradient& shape, int rank, std::size_t elements) {
  std::vector<float> gradient(elements);
  fill_synthetic(shape, rank, gradient);
  return gradient;
}

TEST(Synthetic, DenseValuesAreStandardNormal) {
  const auto values = gradient_of({}, 0, 100'000);
  double sum = 0;
  double squares = 0;
  for (const float value : values) {
    ASSERT_TRUE(std::isfinite(value));
    sum += static_cast<double>(value);
    squares += static_cast<double>(value) * static_cast<double>(value);
  }
  EXPECT_LT(std::fabs(sum / 1e5), 5 / std::sqrt(1e5));
  EXPECT_NEAR(squares / 1e5, 1, 0.05);
}

TEST(Synthetic, DensityIsExactInRows) {
  for (const double zipf : {0.0, 1.0, 1.3}) {
    const auto values = gradient_of({.density = 0.05, .zipf = zipf, .row_width = 16}, 1, 16'000);
    std::size_t rows = 0;
    for (std::size_t row = 0; row < 1000; ++row) {
      const auto begin = values.begin() + static_cast<std::ptrdiff_t>(row * 16);
      const auto zeros = std::count(begin, begin + 16, 0.0f);
      EXPECT_TRUE(zeros == 0 || zeros == 16);
      rows += zeros == 0 ? 1 : 0;
    }
    EXPECT_EQ(rows, 50u) << zipf;
  }
}

TEST(Synthetic, SkewMakesWorkersShareRows) {
  auto shared = [](double zipf) {
    const SyntheticGradient shape{.density = 0.01, .zipf = zipf};
    const auto a = gradient_of(shape, 0, 100'000);
    const auto b = gradient_of(shape, 1, 100'000);
    int both = 0;
    for (std::size_t i = 0; i < a.size(); ++i) both += a[i] != 0 && b[i] != 0 ? 1 : 0;
    return both;
  };
  EXPECT_GT(shared(1.2), 4 * shared(0) + 10);
}

TEST(Synthetic, RepeatsWithTheSeedAndDiffersByRank) {
  const SyntheticGradient shape{.density = 0.5};
  EXPECT_EQ(gradient_of(shape, 0, 1000), gradient_of(shape, 0, 1000));
  EXPECT_NE(gradient_of(shape, 0, 1000), gradient_of(shape, 1, 1000));
  EXPECT_NE(gradient_of(shape, 0, 1000), gradient_of({.density = 0.5, .seed = 2}, 0, 1000));
}

TEST(Synthetic, BadShapesAreRefused) {
  for (const SyntheticGradient& shape :
       {SyntheticGradient{.density = 0}, SyntheticGradient{.density = 1.1}, SyntheticGradient{.zipf = -1},
        SyntheticGradient{.zipf = std::nan("")}, SyntheticGradient{.row_width = 0},
        SyntheticGradient{.row_width = 11},
        SyntheticGradient{.density = 0.5, .row_width = ~std::uint64_t{0}}}) {
    EXPECT_THROW(gradient_of(shape, 0, 10), std::invalid_argument);
  }
}

}  // namespace
}  // namespace thinwire::apps
