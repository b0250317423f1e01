#include "exchange/level_average.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "core/partition.h"
#include "thinwire/in_process.h"

namespace thinwire::level_average_test {
namespace {

constexpr double kStep = 0.5;
const LevelRules kRules{.step = kStep, .local = 0};

/// Normal values; those of the second half a thousandth as large.
std::vector<float> values_of(std::size_t elements, int rank) {
  std::mt19937 random(static_cast<unsigned>(rank) + 1);
  std::normal_distribution<float> normal;
  std::vector<float> values(elements);
  for (std::size_t i = 0; i < elements; ++i) values[i] = normal(random) * (i < elements / 2 ? 1.0f : 1e-3f);
  return values;
}

struct Outcome {
  std::vector<std::vector<float>> means;
  std::vector<std::vector<float>> residuals;
  std::vector<StepReport> reports;
  std::vector<Traffic> traffic;
};

/// One step of `world` ranks.
Outcome run(int world, const std::vector<std::vector<float>>& gradients, const LevelRules& rules) {
  const auto ranks = static_cast<std::size_t>(world);
  Outcome outcome{gradients, std::vector<std::vector<float>>(ranks), std::vector<StepReport>(ranks),
                  std::vector<Traffic>(ranks)};
  run_in_process(world, [&](Communicator& communicator) {
    const auto rank = static_cast<std::size_t>(communicator.rank());
    const auto executor = make_cpu_executor(1);
    Workspace workspace;
    Step step{.communicator = communicator, .executor = *executor, .workspace = workspace};
    outcome.residuals[rank].resize(gradients[rank].size());
    average_levels(0, outcome.means[rank], outcome.residuals[rank], step, rules);
    outcome.reports[rank] = step.report;
    outcome.traffic[rank] = communicator.traffic();
  });
  return outcome;
}

std::vector<std::vector<float>> gradients_of(std::size_t elements, int world) {
  std::vector<std::vector<float>> gradients;
  for (int rank = 0; rank < world; ++rank) gradients.push_back(values_of(elements, rank));
  return gradients;
}

/// Root mean square of [begin, end).
double root_of(const std::vector<float>& values, std::size_t begin, std::size_t end) {
  double sum = 0;
  for (std::size_t i = begin; i < end; ++i)
    sum += static_cast<double>(values[i]) * static_cast<double>(values[i]);
  return std::sqrt(sum / static_cast<double>(std::max<std::size_t>(1, end - begin)));
}

TEST(LevelAverage, RanksHaveOneMeanAndNothingIsLost) {
  for (const int world : {1, 2, 3, 5}) {
    for (const std::size_t elements : {1u, 3u, 700u, 70'001u}) {
      for (const double local : {0.0, 0.5, 1.0}) {
        const auto gradients = gradients_of(elements, world);
        const Outcome outcome = run(world, gradients, {.step = kStep, .local = local});
        for (const auto& mean : outcome.means) ASSERT_EQ(mean, outcome.means[0]);
        for (std::size_t i = 0; i < elements; ++i) {
          double given = 0;
          double kept = 0;
          for (std::size_t rank = 0; rank < gradients.size(); ++rank) {
            given += static_cast<double>(gradients[rank][i]);
            kept += static_cast<double>(outcome.residuals[rank][i]);
          }
          ASSERT_NEAR(given, world * static_cast<double>(outcome.means[0][i]) + kept, 2e-5) << i;
        }
        for (std::size_t rank = 0; rank < gradients.size(); ++rank) {
          EXPECT_TRUE(outcome.reports[rank].finite);
          EXPECT_EQ(outcome.traffic[rank].sent_bytes,
                    outcome.reports[rank].formula_bytes + outcome.reports[rank].frame_header_bytes);
        }
      }
    }
  }
}

/// The largest |residual| of the quiet half of one rank's values, in units of these.
double left_of_quiet(double local) {
  const std::size_t elements = 1 << 15;
  auto gradient = values_of(elements, 0);
  const Outcome outcome = run(1, {gradient}, {.step = kStep, .local = local});
  return root_of(outcome.residuals[0], elements / 2, elements) / root_of(gradient, elements / 2, elements);
}

TEST(LevelAverage, QuietBlocksHaveFinerStepsTheMoreLocalTheseAre) {
  // A thousandth as large as the others: with one step for all they say nothing.
  EXPECT_NEAR(left_of_quiet(0), 1, 1e-6);
  EXPECT_NEAR(left_of_quiet(1), 0.15 * std::sqrt(2.0), 0.08);
  EXPECT_LT(left_of_quiet(0.75), left_of_quiet(0.5) - 0.05);
}

TEST(LevelAverage, AnElementIsOffByLessThanItsBlocksStep) {
  const std::size_t elements = 40'000;
  const auto gradients = gradients_of(elements, 1);
  const Outcome outcome = run(1, gradients, {.step = kStep, .local = 1});
  for (std::size_t begin = 0; begin < elements; begin += 128) {
    const std::size_t end = std::min(elements, begin + 128);
    // Once on the way up and once on the way down; scales are rounded to a quarter of an octave.
    const double most = 2 * 0.61 * 1.2 * kStep * root_of(gradients[0], begin, end);
    for (std::size_t i = begin; i < end; ++i) {
      ASSERT_LE(std::fabs(static_cast<double>(outcome.residuals[0][i])), most) << i;
    }
  }
}

TEST(LevelAverage, NormalValuesTakeTheBitsThatTheFormulaExpects) {
  const std::size_t elements = 1 << 17;
  std::vector<std::vector<float>> gradients;
  for (int rank = 0; rank < 4; ++rank) {
    gradients.push_back(values_of(2 * elements, rank));
    gradients.back().resize(elements);
  }
  const Outcome outcome = run(4, gradients, kRules);
  const double bits = 8.0 * static_cast<double>(outcome.reports[1].formula_bytes) / (1.5 * elements);
  EXPECT_NEAR(bits, 3.05, 0.15);
}

TEST(LevelAverage, ByPlaceTheSameIsSaidInFewerBytes) {
  // Elements at one place of all blocks are alike, a hundred times apart from those at others.
  for (const std::size_t elements : {128u * 128u * 9u, 128u * 300u, 5000u, 100u, 1u}) {
    std::vector<std::vector<float>> gradients = gradients_of(elements, 3);
    for (auto& gradient : gradients) {
      for (std::size_t i = 0; i < elements; ++i) gradient[i] *= i % 128 < 8 ? 1.0f : 0.01f;
    }
    LevelRules rules{.step = 0.1, .local = 1};
    const Outcome plain = run(3, gradients, rules);
    rules.by_place = true;
    const Outcome by_place = run(3, gradients, rules);
    for (const auto& mean : by_place.means) ASSERT_EQ(mean, by_place.means[0]);
    for (std::size_t i = 0; i < elements; ++i) {
      double given = 0;
      double kept = 0;
      for (std::size_t rank = 0; rank < 3; ++rank) {
        given += static_cast<double>(gradients[rank][i]);
        kept += static_cast<double>(by_place.residuals[rank][i]);
      }
      ASSERT_NEAR(given, 3 * static_cast<double>(by_place.means[0][i]) + kept, 2e-5) << i;
    }
    if (elements % (3 * 128 * 128) != 0) continue;
    EXPECT_EQ(by_place.means[0], plain.means[0]);
    EXPECT_LT(3 * by_place.reports[0].formula_bytes, 2 * plain.reports[0].formula_bytes);
  }
}

TEST(LevelAverage, ValuesThatAreNotFiniteStopTheStepOnAllRanks) {
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                          std::numeric_limits<float>::max()}) {
    auto gradients = gradients_of(5000, 3);
    // Finite by itself, the largest float is not in a sum over ranks.
    for (auto& gradient : gradients) gradient[4321] = bad;
    const Outcome outcome = run(3, gradients, kRules);
    for (std::size_t rank = 0; rank < 3; ++rank) {
      EXPECT_FALSE(outcome.reports[rank].finite);
      EXPECT_EQ(std::ranges::count(outcome.residuals[rank], 0.0f), 5000);
    }
  }
}

TEST(LevelAverage, LargeAndSmallFloatsAreBorne) {
  for (const float size : {1e-42f, 1e-38f, 1e-30f, 1e18f, 1e30f}) {
    auto gradients = gradients_of(3000, 2);
    for (auto& gradient : gradients) {
      for (float& one : gradient) one *= size;
      gradient[7] = 1000 * size;
    }
    const Outcome outcome = run(2, gradients, kRules);
    EXPECT_TRUE(outcome.reports[0].finite) << size;
    for (std::size_t i = 0; i < 3000; ++i) {
      ASSERT_TRUE(std::isfinite(outcome.means[0][i]));
      ASSERT_TRUE(std::isfinite(outcome.residuals[0][i]));
    }
    // Smaller ones than 1e-22 wait in the residual.
    EXPECT_NEAR(outcome.means[0][7] / size, size > 1e-22f ? 1000 : 0, 15) << size;
  }
}

}  // namespace
}  // namespace thinwire::level_average_test
