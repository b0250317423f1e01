// What only Marsit promises: unbiased bits at every hop, whatever the topology, and the algebra of its
// residual.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <functional>
#include <random>

#include "comm/message_tags.h"
#include "systems/marsit/one_bit_all_reduce.h"
#include "systems/systems.h"
#include "thinwire/in_process.h"

namespace thinwire::marsit_test {
namespace {

TEST(Torus, ShapesUseAllRanksOrAllButOne) {
  auto shape = [](int world, int rows) {
    const Torus torus(world, rows);
    EXPECT_EQ(torus.core() + torus.folded(), world);
    std::uint32_t total = 0;
    for (int row = 0; row < torus.rows(); ++row) total += torus.row_weight(row);
    EXPECT_EQ(total, static_cast<std::uint32_t>(world));
    return std::array{torus.rows(), torus.columns(), torus.folded()};
  };
  EXPECT_EQ(shape(1, 0), (std::array{1, 1, 0}));
  EXPECT_EQ(shape(3, 0), (std::array{1, 3, 0}));
  EXPECT_EQ(shape(4, 0), (std::array{2, 2, 0}));
  EXPECT_EQ(shape(5, 0), (std::array{2, 2, 1}));
  EXPECT_EQ(shape(6, 0), (std::array{2, 3, 0}));
  EXPECT_EQ(shape(7, 0), (std::array{2, 3, 1}));
  EXPECT_EQ(shape(12, 0), (std::array{3, 4, 0}));
  EXPECT_EQ(shape(8, 3), (std::array{3, 2, 2}));
  EXPECT_EQ(shape(8, 8), (std::array{8, 1, 0}));
  EXPECT_EQ(shape(8, 1), (std::array{1, 8, 0}));
  EXPECT_THROW(Torus(4, 5), std::invalid_argument);
}

/// One OneBitAllReduce per rank over gradients made by `gradient`; returns rank 0's bits and checks that all
/// agree.
std::vector<bool> reduce_bits(int world, int rows, std::size_t elements, std::uint64_t step_index,
                              const std::function<float(int rank, std::size_t element)>& gradient) {
  std::vector<std::vector<bool>> bits(static_cast<std::size_t>(world), std::vector<bool>(elements));
  run_in_process(world, [&](Communicator& communicator) {
    const auto executor = make_cpu_executor(1);
    Workspace workspace;
    Step step{.communicator = communicator,
              .executor = *executor,
              .workspace = workspace,
              .index = step_index,
              .seed = 5};
    std::vector<float> values(elements);
    for (std::size_t i = 0; i < elements; ++i) values[i] = gradient(communicator.rank(), i);
    OneBitAllReduce reduce(3, values, {}, step, Torus(world, rows));
    reduce.run();
    EXPECT_FALSE(reduce.non_finite());
    auto& mine = bits[static_cast<std::size_t>(communicator.rank())];
    reduce.for_each_chunk([&](const RingChunk& chunk) {
      const auto words = reduce.words(chunk);
      for (std::size_t i = chunk.begin; i < chunk.end; ++i) {
        const std::size_t k = i - chunk.begin;
        mine[i] = ((words[k / 64] >> (k % 64)) & 1) != 0;
      }
    });
  });
  for (const auto& one : bits) EXPECT_EQ(one, bits[0]);
  return bits[0];
}

struct Shape {
  int world;
  int rows;  // 1: ring, 0: automatic torus
};

class OneBit : public testing::TestWithParam<Shape> {};

// Element i is positive on the first i % (W + 1) ranks of a rotation that i chooses, so every rank takes
// every place. A correct implementation fails one z-test at 5 sigma with probability below 6e-7; W + 1 of
// them per shape, fixed seeds.
TEST_P(OneBit, ExpectationIsTheMeanOfTheWorkersBits) {
  const auto [world, rows] = GetParam();
  const auto groups = static_cast<std::size_t>(world + 1);
  const std::size_t elements = groups * static_cast<std::size_t>(world) * 4000;
  auto positive = [&, world = world](int rank, std::size_t i) {
    const auto rotation = static_cast<int>(i / groups % static_cast<std::size_t>(world));
    return (rank + rotation) % world < static_cast<int>(i % groups);
  };
  const auto bits = reduce_bits(world, rows, elements, 1,
                                [&](int rank, std::size_t i) { return positive(rank, i) ? 1.0f : -1.0f; });
  for (std::size_t group = 0; group < groups; ++group) {
    double ones = 0;
    double count = 0;
    for (std::size_t i = group; i < elements; i += groups) {
      ones += bits[i] ? 1 : 0;
      ++count;
    }
    const double p = static_cast<double>(group) / world;
    if (group == 0 || group == static_cast<std::size_t>(world)) {
      EXPECT_EQ(ones, p * count) << "unanimous bits must survive";
    } else {
      EXPECT_LT(std::fabs(ones - count * p) / std::sqrt(count * p * (1 - p)), 5)
          << "positive on " << group << " ranks";
    }
  }
}

// The same for every single worker: when only worker r is positive, its bit survives with probability 1/W,
// wherever it stands in ring, row, column or outside the rectangle.
TEST_P(OneBit, EveryWorkerSurvivesEquallyOften) {
  const auto [world, rows] = GetParam();
  if (world == 1) return;
  const std::size_t per_worker = 20'000;
  const std::size_t elements = per_worker * static_cast<std::size_t>(world);
  const auto bits = reduce_bits(world, rows, elements, 2, [world = world](int rank, std::size_t i) {
    return static_cast<int>(i % static_cast<std::size_t>(world)) == rank ? 1.0f : -1.0f;
  });
  for (int worker = 0; worker < world; ++worker) {
    double ones = 0;
    for (std::size_t i = static_cast<std::size_t>(worker); i < elements;
         i += static_cast<std::size_t>(world)) {
      ones += bits[i] ? 1 : 0;
    }
    const double p = 1.0 / world;
    EXPECT_LT(std::fabs(ones - per_worker * p) / std::sqrt(per_worker * p * (1 - p)), 5)
        << "worker " << worker;
  }
}

TEST_P(OneBit, PayloadFormulaIsWhatIsSent) {
  const auto [world, rows] = GetParam();
  for (const std::size_t elements : {1u, 3u, 63u, 1000u, 10'007u}) {
    run_in_process(world, [&, rows = rows](Communicator& communicator) {
      const auto executor = make_cpu_executor(1);
      Workspace workspace;
      Step step{
          .communicator = communicator, .executor = *executor, .workspace = workspace, .index = 1, .seed = 5};
      const std::vector<float> values(elements, 1.0f);
      const Torus torus(communicator.size(), rows);
      OneBitAllReduce reduce(0, values, {}, step, torus);
      reduce.run();
      EXPECT_EQ(communicator.traffic().sent_bytes,
                one_bit_payload_bytes(elements, torus, communicator.rank()) + step.report.frame_header_bytes);
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, OneBit,
                         testing::Values(Shape{1, 1}, Shape{2, 1}, Shape{3, 1}, Shape{4, 1}, Shape{5, 1},
                                         Shape{8, 1}, Shape{4, 0}, Shape{5, 0}, Shape{6, 0}, Shape{7, 0},
                                         Shape{8, 0}, Shape{8, 3}, Shape{6, 6}, Shape{11, 0}),
                         [](const auto& parameter) {
                           return "w" + std::to_string(parameter.param.world) + "_rows" +
                                  std::to_string(parameter.param.rows);
                         });

TEST(OneBit, DrawsDifferFromStepToStepAndRepeatWithinOne) {
  auto bits = [](std::uint64_t step) {
    return reduce_bits(2, 1, 1000, step, [](int rank, std::size_t) { return rank == 0 ? 1.0f : -1.0f; });
  };
  EXPECT_EQ(bits(1), bits(1));
  EXPECT_NE(bits(1), bits(2));
}

TEST(OneBit, ABrokenFrameIsRefused) {
  // Rank 1 answers rank 0's ring with bytes that are no frame.
  std::atomic<int> refused{0};
  EXPECT_THROW(run_in_process(2,
                              [&](Communicator& communicator) {
                                if (communicator.rank() == 1) {
                                  std::vector<std::byte> noise(64 + 7, std::byte{0x5a});
                                  std::vector<std::byte> sink(64 + 7);
                                  auto receiving = communicator.receive(0, kOneBitTag, sink);
                                  communicator.send(0, kOneBitTag, noise).wait();
                                  receiving.wait();
                                  return;
                                }
                                const auto executor = make_cpu_executor(1);
                                Workspace workspace;
                                Step step{.communicator = communicator,
                                          .executor = *executor,
                                          .workspace = workspace,
                                          .index = 1};
                                const std::vector<float> values(100, 1.0f);
                                OneBitAllReduce reduce(0, values, {}, step, Torus(2, 1));
                                try {
                                  reduce.run();
                                } catch (const std::exception& error) {
                                  if (std::string(error.what()).find("magic") != std::string::npos) ++refused;
                                  throw;
                                }
                              }),
               std::exception);
  EXPECT_EQ(refused.load(), 1);
}

/// Runs marsit by hand with residuals at hand: mean(c') = mean(c) + mean(g) - mean_out, c = 0 after a full
/// step.
TEST(Marsit, MeanOfTheResidualsFollowsTheSumAndFullStepsClearIt) {
  Registry registry;
  registry.add(marsit_info());
  for (const char* spec :
       {"marsit:full_every=5", "marsit:full_every=0", "marsit:full_every=5:topology=torus"}) {
    for (const int world : {1, 3, 4}) {
      constexpr std::size_t kElements = 500;
      std::vector<std::vector<float>> gradients(static_cast<std::size_t>(world)), residuals(gradients);
      std::vector<float> means;
      std::vector<double> mean_residual(kElements, 0.0);
      for (auto& residual : residuals) residual.assign(kElements, 0.0f);
      std::vector<Pipeline> pipelines;
      for (int rank = 0; rank < world; ++rank) pipelines.push_back(registry.make(spec));
      for (std::uint64_t index = 0; index < 12; ++index) {
        std::vector<double> mean_gradient(kElements, 0.0);
        for (std::size_t rank = 0; rank < gradients.size(); ++rank) {
          std::mt19937 random(static_cast<std::uint32_t>(index * 10 + rank));
          std::normal_distribution<float> normal(0.1f);
          gradients[rank].resize(kElements);
          for (std::size_t i = 0; i < kElements; ++i) {
            gradients[rank][i] = normal(random);
            mean_gradient[i] += static_cast<double>(gradients[rank][i]) / world;
          }
        }
        run_in_process(world, [&](Communicator& communicator) {
          const auto rank = static_cast<std::size_t>(communicator.rank());
          const auto executor = make_cpu_executor(1);
          Workspace workspace;
          Step step{.communicator = communicator,
                    .executor = *executor,
                    .workspace = workspace,
                    .index = index,
                    .seed = 5};
          pipelines[rank].synchronizer->synchronize(0, gradients[rank], residuals[rank], step);
          EXPECT_GT(step.report.scale, 0);
        });
        means = gradients[0];
        for (std::size_t i = 0; i < kElements; ++i) {
          double after = 0;
          for (const auto& residual : residuals) after += static_cast<double>(residual[i]) / world;
          ASSERT_NEAR(after, mean_residual[i] + mean_gradient[i] - static_cast<double>(means[i]), 1e-5)
              << spec;
          mean_residual[i] = after;
        }
        const bool full = std::string(spec).find("full_every=5") != std::string::npos && index % 5 == 0;
        for (const auto& residual : residuals) {
          const bool zero = std::all_of(residual.begin(), residual.end(), [](float c) { return c == 0; });
          ASSERT_EQ(zero, full) << spec << " step " << index;
        }
        if (!full) {
          for (const float m : means) ASSERT_EQ(std::fabs(m), std::fabs(means[0])) << "one step size";
        }
      }
    }
  }
}

TEST(Marsit, AFullStepFollowsOneThatLeavesALongResidual) {
  Registry registry;
  registry.add(marsit_info());
  constexpr std::size_t kElements = 500;
  constexpr int kWorld = 3;
  constexpr double kAbove = 5;
  std::vector<std::vector<float>> residuals(kWorld, std::vector<float>(kElements));
  std::vector<Pipeline> pipelines;
  for (int rank = 0; rank < kWorld; ++rank)
    pipelines.push_back(registry.make("marsit:full_every=0:eta_factor=1:full_above=5"));
  bool due = false;
  int full_steps = 0;
  for (std::uint64_t index = 0; index < 30; ++index) {
    double scale = 0;
    const std::uint64_t expected = pipelines[0].synchronizer->payload_bytes(
        {.elements = kElements, .world_size = kWorld, .step = index});
    run_in_process(kWorld, [&](Communicator& communicator) {
      const auto rank = static_cast<std::size_t>(communicator.rank());
      std::mt19937 random(static_cast<std::uint32_t>(index * 10 + rank));
      std::normal_distribution<float> normal(0.1f);
      std::vector<float> gradient(kElements);
      for (float& one : gradient) one = normal(random);
      const auto executor = make_cpu_executor(1);
      Workspace workspace;
      Step step{.communicator = communicator, .executor = *executor, .workspace = workspace, .index = index};
      pipelines[rank].synchronizer->synchronize(0, gradient, residuals[rank], step);
      if (rank != 0) return;
      scale = step.report.scale;
      EXPECT_EQ(communicator.traffic().sent_bytes, expected + step.report.frame_header_bytes) << index;
    });
    double squares = 0;
    for (const auto& residual : residuals) {
      for (const float one : residual) squares += static_cast<double>(one) * static_cast<double>(one);
    }
    EXPECT_EQ(squares == 0, due) << "step " << index;
    full_steps += squares == 0;
    due = squares / kWorld > kAbove * kAbove * scale * scale * static_cast<double>(kElements);
  }
  EXPECT_GT(full_steps, 2);
  EXPECT_LT(full_steps, 20);
}

/// eta_s=auto is the mean magnitude of the averaged gradient, not of what piled up in the residual.
TEST(Marsit, AutomaticStepSizeLeavesTheResidualOut) {
  Registry registry;
  registry.add(marsit_info());
  run_in_process(4, [&](Communicator& communicator) {
    auto pipeline = registry.make("marsit:full_every=10:eta_factor=1");
    const auto executor = make_cpu_executor(1);
    constexpr std::size_t kElements = 2000;
    std::vector<float> residual(kElements, 0.0f);
    for (std::uint64_t index = 0; index < 31; ++index) {
      std::vector<float> gradient(kElements);
      // Rank r's gradients point its own way: residuals grow, the average stays 0.5.
      for (std::size_t i = 0; i < kElements; ++i) {
        gradient[i] = (i % 2 == 0 ? 0.5f : -0.5f) + static_cast<float>(communicator.rank() * 2 - 3);
      }
      Workspace workspace;
      Step step{.communicator = communicator,
                .executor = *executor,
                .workspace = workspace,
                .index = index,
                .seed = 1};
      pipeline.synchronizer->synchronize(0, gradient, residual, step);
      EXPECT_NEAR(step.report.scale, 0.5, 1e-4) << index;
    }
  });
}

/// Theorem 1: whatever the learning rate, a one-bit step moves every parameter by sqrt(1 / (T D)). The
/// residual is of gradients times their rates.
TEST(Marsit, TheoremsStepSizeMovesParametersByTheSameAtEveryRate) {
  Registry registry;
  registry.add(marsit_info());
  struct Case {
    const char* spec;
    double eta;
  };
  for (const Case& c : {Case{"marsit:full_every=0:eta_s=theorem:horizon=100", 1 / std::sqrt(100 * 16.0)},
                        Case{"marsit:full_every=0:eta_s=theorem:horizon=100:dimension=64", 1 / 80.0},
                        Case{"marsit:full_every=3:eta_s=theorem:horizon=25:topology=torus", 1 / 20.0}}) {
    run_in_process(4, [&](Communicator& communicator) {
      auto pipeline = registry.make(c.spec);
      const auto executor = make_cpu_executor(1);
      constexpr std::size_t kElements = 16;
      std::vector<float> residual(kElements, 0.0f);
      const bool full_steps = std::string(c.spec).find("full_every=3") != std::string::npos;
      for (std::uint64_t index = 0; index < 6; ++index) {
        const double rate = index < 2 ? 0.5 : 0.01;
        const std::vector<float> before = residual;
        std::vector<float> gradient(kElements), own;
        for (std::size_t i = 0; i < kElements; ++i) {
          gradient[i] = (i % 2 == 0 ? 1.0f : -1.0f) * static_cast<float>(1 + communicator.rank());
        }
        own = gradient;
        Workspace workspace;
        Step step{.communicator = communicator,
                  .executor = *executor,
                  .workspace = workspace,
                  .index = index,
                  .seed = 3,
                  .learning_rate = rate};
        pipeline.synchronizer->synchronize(0, gradient, residual, step);
        ASSERT_TRUE(step.report.finite);
        for (std::size_t i = 0; i < kElements; ++i) {
          const double moved = rate * static_cast<double>(gradient[i]);
          if (full_steps && index % 3 == 0) {
            EXPECT_EQ(residual[i], 0) << c.spec;
            // Of 1 to 4 the mean is 2.5, and before step 0 nothing waits.
            if (index == 0) {
              EXPECT_NEAR(moved, (i % 2 == 0 ? 2.5 : -2.5) * rate, 1e-6);
            }
            continue;
          }
          EXPECT_NEAR(std::fabs(moved), c.eta, 1e-6) << c.spec << " step " << index;
          EXPECT_NEAR(static_cast<double>(residual[i]),
                      static_cast<double>(before[i]) + rate * static_cast<double>(own[i]) - moved, 1e-6)
              << c.spec << " step " << index;
        }
      }
    });
  }
}

TEST(Marsit, OptionsThatNeedOthersAreRefusedWithoutThem) {
  Registry registry;
  registry.add(marsit_info());
  EXPECT_THROW(registry.make("marsit:eta_s=theorem"), std::invalid_argument);
  EXPECT_THROW(registry.make("marsit:horizon=10"), std::invalid_argument);
  EXPECT_THROW(registry.make("marsit:full_above=2:feedback=off"), std::invalid_argument);
  EXPECT_THROW(registry.make("marsit:eta_s=0.1:dimension=10"), std::invalid_argument);
}

TEST(Marsit, DeviationIsMeasuredWhenAsked) {
  Registry registry;
  registry.add(marsit_info());
  run_in_process(2, [&](Communicator& communicator) {
    auto pipeline = registry.make("marsit:full_every=0:eta_s=1:drift_every=2");
    const auto executor = make_cpu_executor(1);
    std::vector<float> residual(4, communicator.rank() == 0 ? 1.0f : 3.0f);
    for (std::uint64_t index = 0; index < 2; ++index) {
      std::vector<float> gradient(4, 0.0f);
      Workspace workspace;
      Step step{.communicator = communicator, .executor = *executor, .workspace = workspace, .index = index};
      pipeline.synchronizer->synchronize(0, gradient, residual, step);
      // Residuals 1 and 3 lie 1 from their mean in each of 4 elements.
      EXPECT_EQ(step.report.residual_deviation, index == 0 ? 2.0 : -1.0);
      EXPECT_GE(step.report.residual_norm, 0);
    }
  });
}

}  // namespace
}  // namespace thinwire::marsit_test
