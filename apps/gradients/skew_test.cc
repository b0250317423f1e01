#include "apps/gradients/skew.h"

#include <gtest/gtest.h>

#include <cmath>
#include <stdexcept>
#include <string>

namespace thinwire::apps {
namespace {

/// The formula of skew.h term by term, for a given c.
double definition(const Skew& skew, double ranks) {
  double sum = 0;
  for (std::uint64_t number = 1; number <= skew.rows(); ++number) {
    const double q =
        -std::expm1(-std::exp(skew.log_time()) * std::pow(static_cast<double>(number), -skew.zipf()));
    sum += 1 - std::pow(1 - q, ranks);
  }
  return sum;
}

TEST(Skew, ExpectsTheChosenRowsPerRankAndGammaTimesAsManyInTheUnion) {
  for (const double zipf : {0.0, 0.5, 1.0, 1.7, 4.0}) {
    const Skew skew(200'000, 3000, 32, zipf);
    EXPECT_NEAR(definition(skew, 1), 3000, 1) << zipf;
    EXPECT_NEAR(definition(skew, 32) / 3000, skew.gamma(), 1e-3 * skew.gamma()) << zipf;
  }
}

TEST(Skew, EvenRowsHaveAClosedForm) {
  const Skew skew(1000, 50, 10, 0);
  EXPECT_NEAR(skew.gamma(), (1 - std::pow(0.95, 10)) / 0.05, 1e-9);
  EXPECT_DOUBLE_EQ(Skew(1000, 1000, 10, 1).gamma(), 1);
}

TEST(Skew, FitsAnyGammaBetweenOneAndThatOfEvenRows) {
  for (const int world : {2, 16, 128}) {
    const double largest = Skew(100'000, 2000, world, 0).gamma();
    for (const double share : {0.0, 0.1, 0.5, 0.9, 1.0}) {
      const double gamma = 1 + share * (largest - 1);
      EXPECT_NEAR(Skew::fitted_to_gamma(100'000, 2000, world, gamma).gamma(), gamma, 0.015 * gamma)
          << world << " ranks";
    }
    // More skew, less densification.
    EXPECT_GT(Skew::fitted_to_gamma(100'000, 2000, world, 1.2).zipf(),
              Skew::fitted_to_gamma(100'000, 2000, world, 1.4).zipf());
  }
  EXPECT_NEAR(Skew::fitted_to_gamma(100'000, 2000, 1, 1).gamma(), 1, 1e-6);
}

TEST(Skew, SaysWhichGammaCanBeReached) {
  const auto complaint = [](double gamma) -> std::string {
    try {
      Skew::fitted_to_gamma(1000, 100, 4, gamma);
    } catch (const std::invalid_argument& error) {
      return error.what();
    }
    return "";
  };
  // (1 - 0.9^4) / 0.1
  EXPECT_NE(complaint(3.5).find("from 1 to 3.439"), std::string::npos) << complaint(3.5);
  EXPECT_NE(complaint(0.9), "");
  EXPECT_NE(complaint(std::nan("")), "");
  EXPECT_EQ(complaint(3.4390), "");
  EXPECT_THROW(Skew(10, 0, 1, 0), std::invalid_argument);
  EXPECT_THROW(Skew(10, 11, 1, 0), std::invalid_argument);
  EXPECT_THROW(Skew(10, 1, 1, -1), std::invalid_argument);
  EXPECT_THROW(Skew(10, 1, 1, std::nan("")), std::invalid_argument);
}

}  // namespace
}  // namespace thinwire::apps
