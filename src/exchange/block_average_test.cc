#include "exchange/block_average.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "core/partition.h"
#include "thinwire/in_process.h"

namespace thinwire::block_average_test {
namespace {

std::vector<float> values_of(std::size_t elements, int rank) {
  std::vector<float> values(elements);
  for (std::size_t i = 0; i < elements; ++i) {
    values[i] = std::sin(static_cast<float>(i) + 10 * static_cast<float>(rank)) * 4;
  }
  return values;
}

/// Each value as the nearest of `steps` equal steps to either side of 0 of its block's largest magnitude.
std::vector<float> rounded(const std::vector<float>& values, std::size_t block, int steps) {
  std::vector<float> result(values.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    float norm = 0;
    for (std::size_t j = i / block * block; j < std::min(values.size(), (i / block + 1) * block); ++j) {
      norm = std::max(norm, std::fabs(values[j]));
    }
    const auto s = static_cast<float>(steps);
    result[i] = norm == 0 ? 0 : std::round(values[i] / norm * s) / s * norm;
  }
  return result;
}

/// What owners have before they code it, and what each rank's own codes left out. Parts are coded by
/// themselves.
struct Uplink {
  std::vector<float> average;
  std::vector<std::vector<float>> residuals;
};

Uplink uplink_of(std::size_t elements, int world, std::size_t block, int steps) {
  const auto ranks = static_cast<std::size_t>(world);
  Uplink uplink{std::vector<float>(elements), {}};
  for (int rank = 0; rank < world; ++rank) uplink.residuals.push_back(values_of(elements, rank));
  for (std::size_t owner = 0; owner < ranks; ++owner) {
    const std::size_t begin = part_begin(elements, ranks, owner);
    const std::size_t count = part_size(elements, ranks, owner);
    for (auto& residual : uplink.residuals) {
      const auto first = residual.begin() + static_cast<std::ptrdiff_t>(begin);
      const auto coded = rounded({first, first + static_cast<std::ptrdiff_t>(count)}, block, steps);
      for (std::size_t i = 0; i < count; ++i) {
        uplink.average[begin + i] += coded[i] / static_cast<float>(world);
        residual[begin + i] -= coded[i];
      }
    }
  }
  return uplink;
}

/// Half a step of the block that an element's average is coded in.
float half_step(const std::vector<float>& average, std::size_t i, int world, std::size_t block, int steps) {
  const auto ranks = static_cast<std::size_t>(world);
  std::size_t owner = 0;
  while (i >= part_begin(average.size(), ranks, owner + 1)) ++owner;
  const std::size_t begin = part_begin(average.size(), ranks, owner);
  const std::size_t first = begin + (i - begin) / block * block;
  float norm = 0;
  for (std::size_t j = first; j < std::min(first + block, part_begin(average.size(), ranks, owner + 1));
       ++j) {
    norm = std::max(norm, std::fabs(average[j]));
  }
  return norm / static_cast<float>(2 * steps);
}

TEST(BlockAverage, RoundsToTheNearestStepOnBothWaysAndKeepsTheRest) {
  for (const std::size_t bits : {2u, 4u, 8u}) {
    const BlockCodes codes{QuantizationLevels::uniform(bits), 128};
    const int steps = (1 << (bits - 1)) - 1;
    for (const int world : {1, 2, 3, 5}) {
      // Of 3 elements not every rank owns any.
      for (const std::size_t elements : {3u, 700u, 3001u}) {
        const Uplink expected = uplink_of(elements, world, codes.block, steps);
        run_in_process(world, [&](Communicator& communicator) {
          const auto executor = make_cpu_executor(1);
          Workspace workspace;
          Step step{.communicator = communicator, .executor = *executor, .workspace = workspace};
          const auto rank = static_cast<std::size_t>(communicator.rank());
          auto gradient = values_of(elements, communicator.rank());
          std::vector<float> residual(elements);
          average_blocks(0, gradient, residual, step, codes);
          ASSERT_TRUE(step.report.finite);
          EXPECT_EQ(communicator.traffic().sent_bytes,
                    block_average_bytes(elements, world, communicator.rank(), codes) +
                        step.report.frame_header_bytes);
          const std::size_t begin = part_begin(elements, static_cast<std::size_t>(world), rank);
          const std::size_t end = part_begin(elements, static_cast<std::size_t>(world), rank + 1);
          for (std::size_t i = 0; i < elements; ++i) {
            const float lost = expected.average[i] - gradient[i];
            EXPECT_LE(std::fabs(lost), 1.001f * half_step(expected.average, i, world, codes.block, steps))
                << i;
            const float kept = i >= begin && i < end ? static_cast<float>(world) * lost : 0.0f;
            EXPECT_NEAR(residual[i], expected.residuals[rank][i] + kept, 2e-5f) << i;
          }
        });
      }
    }
  }
}

TEST(BlockAverage, WithoutAResidualNothingIsLostOnAverage) {
  const BlockCodes codes{QuantizationLevels::uniform(2), 128};
  constexpr std::size_t kElements = 256;
  run_in_process(2, [&](Communicator& communicator) {
    const auto executor = make_cpu_executor(1);
    Workspace workspace;
    std::vector<double> sums(kElements);
    constexpr std::uint64_t kSteps = 2000;
    for (std::uint64_t index = 0; index < kSteps; ++index) {
      workspace.reset();
      Step step{.communicator = communicator, .executor = *executor, .workspace = workspace, .index = index};
      auto gradient = values_of(kElements, communicator.rank());
      average_blocks(0, gradient, {}, step, codes);
      for (std::size_t i = 0; i < kElements; ++i) sums[i] += static_cast<double>(gradient[i]);
    }
    const auto first = values_of(kElements, 0);
    const auto second = values_of(kElements, 1);
    for (std::size_t i = 0; i < kElements; ++i) {
      // Levels are up to 4 apart on either way: five standard deviations of the mean of 2,000.
      EXPECT_NEAR(sums[i] / static_cast<double>(kSteps), static_cast<double>(first[i] + second[i]) / 2, 0.35)
          << i;
    }
  });
}

TEST(BlockAverage, AMeanOfWhichWIsNoFloatIsRefusedByAll) {
  const BlockCodes codes{QuantizationLevels::uniform(2), 128};
  run_in_process(4, [&](Communicator& communicator) {
    const auto executor = make_cpu_executor(1);
    Workspace workspace;
    Step step{.communicator = communicator, .executor = *executor, .workspace = workspace};
    std::vector<float> gradient(700, 1.0f);
    gradient[300] = std::numeric_limits<float>::max() / 3;
    std::vector<float> residual(700, 0.25f);
    average_blocks(0, gradient, residual, step, codes);
    EXPECT_FALSE(step.report.finite);
    for (const float value : residual) EXPECT_EQ(value, 0.25f);
  });
}

TEST(BlockAverage, ABadValueAnywhereIsHeardOfEverywhere) {
  const BlockCodes codes{QuantizationLevels::uniform(4), 128};
  constexpr std::size_t kElements = 700;
  for (const std::size_t at : {0u, 300u, 699u}) {
    for (const bool told : {false, true}) {
      run_in_process(3, [&](Communicator& communicator) {
        const auto executor = make_cpu_executor(1);
        Workspace workspace;
        Step step{.communicator = communicator, .executor = *executor, .workspace = workspace};
        auto gradient = values_of(kElements, communicator.rank());
        const bool mine = communicator.rank() == 1;
        if (mine && !told) gradient[at] = std::numeric_limits<float>::infinity();
        std::vector<float> residual(kElements, 0.25f);
        average_blocks(0, gradient, residual, step, codes, 0, !(mine && told));
        EXPECT_FALSE(step.report.finite);
        for (const float value : residual) EXPECT_EQ(value, 0.25f);
      });
    }
  }
}

}  // namespace
}  // namespace thinwire::block_average_test
