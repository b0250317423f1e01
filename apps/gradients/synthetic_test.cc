#include "apps/gradients/synthetic.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <stdexcept>
#include <vector>

namespace thinwire::apps {
namespace {

std::vector<float> gradient_of(const SyntheticGradient& shape, int rank, std::uint64_t step = 0) {
  std::vector<float> gradient(shape.elements);
  SyntheticSource(shape, 4).dense(rank, step, 0, gradient);
  return gradient;
}

TEST(Synthetic, DenseValuesAreStandardNormal) {
  for (const double density : {1.0, 0.5}) {
    const auto values = gradient_of({.elements = 200'000, .density = density}, 0);
    double sum = 0;
    double squares = 0;
    for (const float value : values) {
      ASSERT_TRUE(std::isfinite(value));
      sum += static_cast<double>(value);
      squares += static_cast<double>(value) * static_cast<double>(value);
    }
    const double count = 2e5 * density;
    EXPECT_LT(std::fabs(sum / count), 5 / std::sqrt(count));
    EXPECT_NEAR(squares / count, 1, 0.05);
  }
}

TEST(Synthetic, DensityIsExactInRowsAndRowsAscend) {
  for (const double zipf : {0.0, 1.0, 1.3, 5.0, 100.0}) {
    const SyntheticGradient shape{.elements = 16'000, .density = 0.05, .zipf = zipf, .row_width = 16};
    const SyntheticSource source(shape, 4);
    EXPECT_TRUE(source.buckets()[0].row_sparse);
    RowBuffer buffer;
    const RowSparse rows = source.rows(1, 0, 0, buffer);
    EXPECT_EQ(rows.size(), 50u) << zipf;
    EXPECT_EQ(rows.values.size(), 800u);
    EXPECT_EQ(rows.rows, 1000u);
    for (std::size_t i = 1; i < rows.size(); ++i) EXPECT_LT(rows.row_indices[i - 1], rows.row_indices[i]);
    EXPECT_LT(rows.row_indices[rows.size() - 1], 1000u);
    // The dense form is the same gradient.
    const auto dense = gradient_of(shape, 1);
    EXPECT_EQ(dense.size() - static_cast<std::size_t>(std::count(dense.begin(), dense.end(), 0.0f)), 800u);
    EXPECT_EQ(dense[rows.row_indices[7] * 16 + 3], rows.row(7)[3]);
  }
}

/// Rows in the union of all ranks, divided by those of one.
double measured_gamma(const SyntheticGradient& shape, int world) {
  const SyntheticSource source(shape, world);
  std::set<std::uint32_t> all;
  std::size_t chosen = 0;
  RowBuffer buffer;
  for (int rank = 0; rank < world; ++rank) {
    const RowSparse rows = source.rows(rank, 0, 0, buffer);
    chosen = rows.size();
    all.insert(rows.row_indices.begin(), rows.row_indices.end());
  }
  return static_cast<double>(all.size()) / static_cast<double>(chosen);
}

/// The union has standard deviation below sqrt(union): 1.4 % of the smallest here.
TEST(Synthetic, GammaComesOut) {
  for (const int world : {2, 32}) {
    for (const double density : {0.005, 0.05}) {
      const double largest = (1 - std::pow(1 - density, world)) / density;
      for (const double gamma : {1.0, 1.2, 1.5, 4.0, 0.98 * largest}) {
        if (gamma > largest) continue;
        const SyntheticGradient shape{.elements = 1'000'000, .density = density, .gamma = gamma};
        EXPECT_NEAR(measured_gamma(shape, world), gamma, 0.03 * gamma) << world << " ranks, " << density;
      }
    }
  }
}

TEST(Synthetic, SkewMakesWorkersShareRows) {
  const auto gamma = [](double zipf) {
    return measured_gamma({.elements = 100'000, .density = 0.01, .zipf = zipf}, 8);
  };
  EXPECT_GT(gamma(0), 7.5);
  EXPECT_LT(gamma(1.2), 6);
  EXPECT_LT(gamma(2), gamma(1.2));
}

TEST(Synthetic, ContiguousRowsLieInTheOrderOfTheirPopularity) {
  SyntheticGradient shape{.elements = 100'000, .density = 0.01, .zipf = 2};
  const auto first_half = [&] {
    RowBuffer buffer;
    const RowSparse rows = SyntheticSource(shape, 4).rows(0, 0, 0, buffer);
    return std::count_if(rows.row_indices.begin(), rows.row_indices.end(),
                         [](std::uint32_t row) { return row < 50'000; });
  };
  EXPECT_NEAR(static_cast<double>(first_half()), 500, 100);
  shape.contiguous = true;
  EXPECT_GT(first_half(), 990);
}

TEST(Synthetic, RepeatsWithTheSeedAndDiffersByRankAndStep) {
  const SyntheticGradient shape{.elements = 1000, .density = 0.5};
  EXPECT_EQ(gradient_of(shape, 0), gradient_of(shape, 0));
  EXPECT_NE(gradient_of(shape, 0), gradient_of(shape, 1));
  EXPECT_NE(gradient_of(shape, 0), gradient_of(shape, 0, 1));
  EXPECT_NE(gradient_of(shape, 0), gradient_of({.elements = 1000, .density = 0.5, .seed = 2}, 0));
}

TEST(Synthetic, TailsLeaveTheMedianAndSpreadTheRest) {
  const auto share_above = [](double tails, float bound) {
    const auto values = gradient_of({.elements = 100'000, .tails = tails}, 0);
    const auto above =
        std::count_if(values.begin(), values.end(), [&](float value) { return std::fabs(value) > bound; });
    return static_cast<double>(above) / 100'000;
  };
  // P(|x| > 5) is 6e-7 of a normal x, and E[P(|x| > 5 exp(-1.5 y))] = 0.1063 over a normal y.
  EXPECT_LT(share_above(0, 5), 1e-4);
  EXPECT_NEAR(share_above(1.5, 5), 0.1063, 0.004);
}

TEST(Synthetic, BadShapesAreRefused) {
  for (const SyntheticGradient& shape :
       {SyntheticGradient{.elements = 10, .density = 0}, SyntheticGradient{.elements = 10, .density = 1.1},
        SyntheticGradient{.elements = 10, .zipf = -1}, SyntheticGradient{.elements = 10, .tails = -1},
        SyntheticGradient{.elements = 10, .tails = std::nan("")},
        SyntheticGradient{.elements = 10, .zipf = std::nan("")},
        SyntheticGradient{.elements = 10, .row_width = 0}, SyntheticGradient{.elements = 10, .row_width = 4},
        SyntheticGradient{.elements = 10, .density = 0.5, .gamma = 3.0}, SyntheticGradient{.elements = 0},
        SyntheticGradient{.elements = 10, .density = 0.5, .row_width = ~std::uint64_t{0}}}) {
    EXPECT_THROW(SyntheticSource(shape, 4), std::invalid_argument);
  }
}

}  // namespace
}  // namespace thinwire::apps
