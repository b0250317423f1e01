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
const LevelRules kRules{.step = kStep};

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

/// One step of `world` ranks. ends: of parameters; empty: one.
Outcome run(int world, const std::vector<std::vector<float>>& gradients, const LevelRules& rules,
            const std::vector<std::size_t>& ends = {}, bool feedback = true) {
  const auto ranks = static_cast<std::size_t>(world);
  Outcome outcome{gradients, std::vector<std::vector<float>>(ranks), std::vector<StepReport>(ranks),
                  std::vector<Traffic>(ranks)};
  run_in_process(world, [&](Communicator& communicator) {
    const auto rank = static_cast<std::size_t>(communicator.rank());
    const auto executor = make_cpu_executor(1);
    Workspace workspace;
    Step step{.communicator = communicator, .executor = *executor, .workspace = workspace};
    step.parameter_ends = ends;
    if (feedback) outcome.residuals[rank].resize(gradients[rank].size());
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
      for (const bool parameters : {true, false}) {
        const auto gradients = gradients_of(elements, world);
        std::vector<std::size_t> ends;
        if (parameters) ends = {elements / 2, elements / 2, elements};
        const Outcome outcome = run(world, gradients, {.step = kStep, .of_parameters = parameters}, ends);
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

TEST(LevelAverage, AnElementIsOffByLessThanAStepOfItsParameter) {
  const std::size_t elements = 40'000;
  const auto gradients = gradients_of(elements, 2);
  const Outcome outcome = run(2, gradients, kRules, {elements / 2, elements});
  for (std::size_t rank = 0; rank < 2; ++rank) {
    for (std::size_t part = 0; part < 2; ++part) {
      // Parts of owners and parameters are the same here.
      const std::size_t begin = part * elements / 2;
      const std::size_t end = begin + elements / 2;
      const double own = kStep * root_of(gradients[rank], begin, end);
      const double mean = kStep * root_of(outcome.means[0], begin, end);
      for (std::size_t i = begin; i < end; ++i) {
        const double left = std::fabs(static_cast<double>(outcome.residuals[rank][i]));
        ASSERT_LE(left, 0.61 * own + (part == rank ? 2 * 0.61 * 1.05 * mean : 0.0)) << i;
      }
    }
  }
}

TEST(LevelAverage, WithOneStepForAllSmallParametersStayBehind) {
  const std::size_t elements = 40'000;
  const auto gradients = gradients_of(elements, 2);
  const std::vector<std::size_t> ends = {elements / 2 - 5000, elements};
  // Owner 0's part is of large elements; in owner 1's all are small, and have a step of their own.
  const Outcome outcome = run(2, gradients, {.step = kStep, .of_parameters = false}, ends);
  EXPECT_GT(root_of(outcome.means[0], elements / 2, elements), 5e-4);
  auto mixed = gradients;
  for (auto& gradient : mixed) {
    for (std::size_t i = 1; i < elements; i += 2) gradient[i] = 1e-3f;
  }
  const Outcome one = run(1, {mixed[0]}, {.step = kStep, .of_parameters = false});
  for (std::size_t i = 1; i < elements / 2; i += 2) ASSERT_EQ(one.means[0][i], 0.0f);
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
  EXPECT_NEAR(bits, 3.0, 0.15);
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
    if (size > 1e-37f) {
      EXPECT_NEAR(outcome.means[0][7] / size, 1000, 15) << size;
    }
  }
}

}  // namespace
}  // namespace thinwire::level_average_test
