#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>
#include <sstream>

#include "baselines/low_rank_runner.h"
#include "thinwire/cuda.h"
#include "thinwire/state.h"

namespace thinwire::power_sgd_test {
namespace {

using low_rank_test::distance;
using low_rank_test::matrix_of;
using low_rank_test::norm;
using low_rank_test::Runner;
using low_rank_test::same_bits;

TEST(PowerSgd, AMatrixOfLowRankArrivesExactlyInTheFirstStep) {
  for (const int world : {1, 2, 3, 4, 5, 6, 7, 8}) {
    std::vector<std::vector<float>> means(static_cast<std::size_t>(world));
    // Ranks hold multiples of one matrix of rank 3; their mean has rank 3.
    const auto matrix = matrix_of(40, 90, {1, 0.1, 0.01});
    run_in_process(world, [&](Communicator& communicator) {
      Runner runner("power_sgd:rank=4", communicator);
      runner.rows = {40};
      for (int step = 0; step < 3; ++step) {
        auto gradient = matrix;
        for (float& value : gradient) value *= static_cast<float>(communicator.rank() + 1);
        auto expected = matrix;
        for (float& value : expected) value *= static_cast<float>(world + 1) / 2;
        std::vector<float> none;
        const StepReport report = runner.step(gradient, none);
        EXPECT_TRUE(report.finite);
        EXPECT_LT(distance(gradient, expected), 2e-6 * norm(expected)) << world << " ranks, step " << step;
        means[static_cast<std::size_t>(communicator.rank())] = gradient;
      }
    });
    for (const auto& mean : means) EXPECT_TRUE(same_bits(mean, means[0])) << world;
  }
}

TEST(PowerSgd, TheErrorFallsToThatOfTheBestApproximation) {
  // Orthogonal rows: singular values are known, and so is what the best matrix of rank 2 leaves.
  constexpr std::size_t kRows = 16;
  constexpr std::size_t kColumns = 64;
  std::vector<float> matrix(kRows * kColumns);
  double beyond = 0;
  for (std::size_t i = 0; i < kRows; ++i) {
    const double singular = std::pow(0.7, static_cast<double>(i));
    matrix[i * kColumns + 3 * i] = static_cast<float>(singular);
    if (i >= 2) beyond += singular * singular;
  }
  const double best = std::sqrt(beyond);
  run_in_process(1, [&](Communicator& communicator) {
    Runner runner("power_sgd:rank=2", communicator);
    runner.rows = {kRows};
    double before = std::numeric_limits<double>::infinity();
    double error = 0;
    for (int step = 0; step < 30; ++step) {
      auto gradient = matrix;
      std::vector<float> none;
      runner.step(gradient, none);
      error = distance(gradient, matrix);
      EXPECT_LE(error, before * (1 + 1e-6)) << "step " << step;
      EXPECT_GE(error, best * (1 - 1e-6));
      before = error;
    }
    EXPECT_NEAR(error, best, 1e-4 * best);
  });
}

TEST(PowerSgd, WithFeedbackEverythingArrivesInTheEnd) {
  run_in_process(1, [&](Communicator& communicator) {
    Runner runner("power_sgd:rank=1", communicator);
    runner.rows = {20};
    const auto constant = normal_values(20 * 30, 9);
    std::vector<float> residual(constant.size());
    std::vector<float> sum(constant.size());
    constexpr int kSteps = 400;
    for (int step = 0; step < kSteps; ++step) {
      auto gradient = constant;
      runner.step(gradient, residual);
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += gradient[i] / kSteps;
    }
    EXPECT_LT(distance(sum, constant), 0.1 * norm(constant));
  });
}

TEST(PowerSgd, ZeroGradientsDoNoLastingHarm) {
  run_in_process(2, [&](Communicator& communicator) {
    Runner runner("power_sgd:rank=2", communicator);
    runner.rows = {30};
    const auto matrix = matrix_of(30, 40, {1, 0.5});
    for (int step = 0; step < 4; ++step) {
      auto gradient = step < 2 ? std::vector<float>(matrix.size()) : matrix;
      const auto expected = gradient;
      std::vector<float> none;
      EXPECT_TRUE(runner.step(gradient, none).finite);
      EXPECT_LE(distance(gradient, expected), 2e-6 * norm(expected)) << "step " << step;
    }
  });
}

TEST(PowerSgd, SmallParametersTravelAsTheyAreAndTheFormulaCountsThem) {
  run_in_process(4, [&](Communicator& communicator) {
    Runner runner("power_sgd:rank=2", communicator);
    // [20 x 30], a vector of unknown shape, a matrix of fewer rows than the rank, one of unknown shape (900 =
    // 30 x 30, 29 more elements), one element, nothing.
    runner.ends = {600, 664, 764, 1693, 1694, 1694};
    runner.rows = {20, 0, 1, 0, 1, 0};
    auto gradient = normal_values(1694, 3);
    const auto original = gradient;
    std::vector<float> residual(gradient.size());
    const StepReport report = runner.step(gradient, residual);
    // The vector is cut as [8 x 8]: 2 (8 + 8) floats instead of 64.
    const auto exact = [&](std::size_t begin, std::size_t end) {
      for (std::size_t i = begin; i < end; ++i) {
        EXPECT_EQ(gradient[i], original[i]) << i;
        EXPECT_EQ(residual[i], 0.0f) << i;
      }
    };
    exact(664, 764);
    exact(764 + 900, 1694);
    // 130 + 2 (20 + 8 + 30) in the first all-reduce, 2 (30 + 8 + 30) in the second.
    const auto ring = [&](std::uint64_t elements) {
      std::uint64_t sent = 2 * elements;
      for (const int ahead : {1, 2}) {
        const auto part = static_cast<std::uint64_t>((communicator.rank() + ahead) % 4);
        sent -= elements * (part + 1) / 4 - elements * part / 4;
      }
      return 4 * sent;
    };
    EXPECT_EQ(report.formula_bytes, ring(130 + 116) + ring(136));
    EXPECT_EQ(report.wire.sent_bytes, report.formula_bytes);
  });
}

TEST(PowerSgd, ARankAboveTheMatrixSendsItAsItIs) {
  run_in_process(2, [&](Communicator& communicator) {
    Runner runner("power_sgd:rank=50", communicator);
    runner.rows = {10};
    const auto original = normal_values(400, 3);
    auto gradient = original;
    std::vector<float> residual(gradient.size());
    runner.step(gradient, residual);
    EXPECT_EQ(gradient, original);
  });
}

TEST(PowerSgd, OverflowIsToldToEveryRankAndChangesNothing) {
  const float huge = 3e38f;
  // p itself, the sum over ranks, the products, and p - mean overflow.
  for (const auto& [gradient_value, residual_value] :
       std::vector<std::pair<float, float>>{{huge, huge}, {huge, 0.0f}, {1e38f, 0.9e38f}}) {
    std::vector<std::vector<float>> means(3);
    run_in_process(3, [&](Communicator& communicator) {
      Runner runner("power_sgd:rank=2", communicator);
      runner.rows = {20};
      const auto usual = normal_values(600, 4);
      std::vector<float> residual(600, 0.5f);
      auto gradient = usual;
      runner.step(gradient, residual);
      const auto kept = residual;
      gradient = std::vector<float>(600, gradient_value);
      auto spoilt = communicator.rank() == 1 ? std::vector<float>(600, residual_value) : kept;
      const auto before = spoilt;
      EXPECT_FALSE(runner.step(gradient, spoilt).finite);
      EXPECT_TRUE(same_bits(spoilt, before));
      gradient = usual;
      EXPECT_TRUE(runner.step(gradient, residual).finite);
      means[static_cast<std::size_t>(communicator.rank())] = gradient;
    });
    EXPECT_TRUE(same_bits(means[0], means[1]));
    EXPECT_TRUE(same_bits(means[0], means[2]));
  }
}

TEST(PowerSgd, FactorsFollowTheirParametersIntoOtherBuckets) {
  run_in_process(1, [&](Communicator& communicator) {
    Runner before("power_sgd:rank=2", communicator);
    before.ends = {600, 1200};
    before.rows = {20, 30};
    auto gradient = normal_values(1200, 3);
    std::vector<float> none;
    before.step(gradient, none);
    const std::vector<BucketLayout> layout = {{{"a", 600, 20}, {"b", 600, 30}}};
    StateWriter state;
    BucketWriter writer(state, layout);
    before.pipeline.synchronizer->save(writer);
    std::stringstream stream;
    state.write(stream);
    const StateReader stored(stream);

    const std::vector<BucketLayout> swapped = {{{"b", 600, 30}, {"a", 600, 20}}};
    Runner after("power_sgd:rank=2", communicator);
    after.index = before.index;
    after.ends = {600, 1200};
    after.rows = {30, 20};
    after.pipeline.synchronizer->load(BucketReader(stored, swapped));
    const auto a = normal_values(600, 7);
    const auto b = normal_values(600, 8);
    auto straight = a;
    straight.insert(straight.end(), b.begin(), b.end());
    auto crossed = b;
    crossed.insert(crossed.end(), a.begin(), a.end());
    before.step(straight, none);
    after.step(crossed, none);
    std::rotate(crossed.begin(), crossed.begin() + 600, crossed.end());
    EXPECT_TRUE(same_bits(straight, crossed));

    const std::vector<BucketLayout> grown = {{{"a", 600, 20}, {"new", 600, 20}}};
    EXPECT_THROW(after.pipeline.synchronizer->load(BucketReader(stored, grown)), std::runtime_error);
    const std::vector<BucketLayout> reshaped = {{{"a", 600, 30}, {"b", 600, 30}}};
    EXPECT_THROW(after.pipeline.synchronizer->load(BucketReader(stored, reshaped)), std::runtime_error);
  });
}

/// Steps with gradient and residual in the executor's memory: the mean of each step and the last residual.
std::vector<std::vector<float>> steps_on(Executor& executor, Communicator& communicator) {
  constexpr std::size_t kElements = 5010;
  const std::vector<std::size_t> ends = {0, 7, 1000, 1003, kElements};
  const std::vector<std::size_t> rows = {0, 7, 0, 0, 30};
  const auto pipeline = Runner::registry().make("power_sgd:rank=3");
  Workspace workspace(executor.shared_allocator());
  auto take = [&] {
    auto* memory = static_cast<float*>(executor.allocator().allocate(kElements * sizeof(float)));
    return Span<float>(memory, kElements, executor.memory());
  };
  const Span<float> gradient = take();
  const Span<float> residual = take();
  std::vector<float> values(kElements, 0.0f);
  copy(executor, Span<const float>(values), residual);
  std::vector<std::vector<float>> results;
  for (std::uint64_t index = 0; index < 3; ++index) {
    values = normal_values(
        kElements, static_cast<std::uint32_t>(10 * communicator.rank()) + static_cast<std::uint32_t>(index));
    copy(executor, Span<const float>(values), gradient);
    workspace.reset();
    Step step{.communicator = communicator,
              .executor = executor,
              .workspace = workspace,
              .index = index,
              .seed = 5,
              .parameter_ends = ends,
              .parameter_rows = rows};
    pipeline.synchronizer->synchronize(0, gradient, residual, step);
    EXPECT_TRUE(step.report.finite);
    copy<float>(executor, gradient, Span<float>(values));
    results.push_back(values);
  }
  copy<float>(executor, residual, Span<float>(values));
  results.push_back(values);
  // Infinity is told, and does not reach the residual.
  values[4000] = std::numeric_limits<float>::infinity();
  copy(executor, Span<const float>(values), gradient);
  workspace.reset();
  Step step{.communicator = communicator,
            .executor = executor,
            .workspace = workspace,
            .index = 3,
            .seed = 5,
            .parameter_ends = ends,
            .parameter_rows = rows};
  pipeline.synchronizer->synchronize(0, gradient, residual, step);
  EXPECT_FALSE(step.report.finite);
  for (const auto span : {gradient, residual}) executor.allocator().release(span.data());
  return results;
}

TEST(PowerSgd, ADeviceArrivesAtWhatTheCpuDoes) {
  if (cuda_devices() == 0) GTEST_SKIP() << "no CUDA device";
  std::array<std::vector<std::vector<float>>, 2> of_rank;
  run_in_process(2, [&](Communicator& communicator) {
    const auto expected = steps_on(*make_cpu_executor(1), communicator);
    const auto actual = steps_on(*make_cuda_executor(0), communicator);
    for (std::size_t i = 0; i < expected.size(); ++i) {
      EXPECT_LT(distance(actual[i], expected[i]), 1e-4 * norm(expected[i])) << i;
    }
    of_rank[static_cast<std::size_t>(communicator.rank())] = actual;
  });
  for (std::size_t i = 0; i < 3; ++i) EXPECT_TRUE(same_bits(of_rank[0][i], of_rank[1][i])) << i;
}

/// In codes the residual is what this rank has not said. What ranks' gradients differ by in every step must
/// not gather in it where codes have to span it: the columns of what they differ by are those of what they
/// have in common.
TEST(PowerSgd, InCodesADifferenceOfRanksThatStaysDoesNotGather) {
  const auto column = normal_values(64, 1);
  const auto shared = normal_values(96, 2);
  const auto apart = normal_values(96, 3);
  for (const auto& [codes, transposed] : std::vector<std::pair<std::string, bool>>{
           {"bits=4", false}, {"bits=4", true}, {"step=0.3", false}, {"step=0.3", true}}) {
    run_in_process(
        2, [&, transposed = transposed, spec = "power_sgd:rank=4:" + codes](Communicator& communicator) {
          Runner runner(spec, communicator);
          runner.rows = {transposed ? std::size_t{96} : 64};
          const auto matrix = [&](float factor) {
            std::vector<float> values(64 * 96);
            for (std::size_t i = 0; i < 64; ++i) {
              for (std::size_t j = 0; j < 96; ++j) {
                values[transposed ? j * 64 + i : i * 96 + j] = column[i] * (shared[j] + factor * apart[j]);
              }
            }
            return values;
          };
          const auto common = matrix(0);
          std::vector<float> residual(common.size());
          std::vector<float> delivered(common.size());
          for (int step = 0; step < 200; ++step) {
            auto gradient = matrix(communicator.rank() == 0 ? 1.0f : -1.0f);
            EXPECT_TRUE(runner.step(gradient, residual).finite);
            for (std::size_t i = 0; i < gradient.size(); ++i) delivered[i] += gradient[i] / 200;
          }
          EXPECT_LT(norm(residual), norm(common));
          EXPECT_LT(distance(delivered, common), 0.01 * norm(common));
        });
  }
}

TEST(PowerSgd, SendsCodesThatAreAsManyTimesSmaller) {
  run_in_process(4, [&](Communicator& communicator) {
    const auto matrix = matrix_of(512, 512, {1, 0.5});
    std::uint64_t sent[2] = {};
    for (const int bits : {32, 8}) {
      Runner runner("power_sgd:rank=4:bits=" + std::to_string(bits), communicator);
      runner.rows = {512};
      auto gradient = matrix;
      std::vector<float> residual(matrix.size());
      const StepReport report = runner.step(gradient, residual);
      EXPECT_EQ(report.wire.sent_bytes, report.formula_bytes + report.frame_header_bytes);
      EXPECT_LT(distance(gradient, matrix), 0.02 * norm(matrix));
      sent[bits == 8 ? 1 : 0] = report.formula_bytes;
    }
    EXPECT_GT(sent[0], 31 * sent[1] / 8);
    EXPECT_LT(sent[0], 4 * sent[1]);
  });
}

/// A matrix of which few rows are large, as a table of words has it.
std::vector<float> of_few_large_rows(std::size_t rows, std::size_t columns) {
  auto matrix = matrix_of(rows, columns, {1, 0.5});
  for (std::size_t i = 0; i < rows; ++i) {
    for (std::size_t j = 0; j < columns; ++j) matrix[i * columns + j] /= static_cast<float>(1 + i);
  }
  return matrix;
}

TEST(PowerSgd, AnEntropyCodeSaysLittleOfQuietRows) {
  constexpr std::size_t kRows = 4000, kColumns = 64;
  const auto matrix = of_few_large_rows(kRows, kColumns);
  run_in_process(3, [&](Communicator& communicator) {
    std::uint64_t sent[2] = {};
    double off[2] = {};
    for (const bool levels : {false, true}) {
      Runner runner(levels ? "power_sgd:rank=4:step=0.3" : "power_sgd:rank=4:bits=4", communicator);
      runner.rows = {kRows};
      auto gradient = matrix;
      std::vector<float> residual(matrix.size());
      const StepReport report = runner.step(gradient, residual);
      // The formula is of normal values, which say more.
      EXPECT_LE(report.wire.sent_bytes, report.formula_bytes + report.frame_header_bytes);
      sent[levels ? 1 : 0] = report.wire.sent_bytes;
      off[levels ? 1 : 0] = distance(gradient, matrix);
    }
    EXPECT_LT(2 * sent[1], sent[0]);
    EXPECT_LT(off[1], 0.2 * norm(matrix)) << "with codes " << off[0] / norm(matrix);
  });
}

/// mean * W plus all residuals is what came in, the bits of the mean are the same on all ranks, and a value
/// that is not finite is told to all.
TEST(PowerSgd, WithAnEntropyCodeNothingIsLost) {
  for (const int world : {1, 2, 5}) {
    const auto ranks = static_cast<std::size_t>(world);
    std::vector<std::vector<float>> given(ranks), means(ranks), kept(ranks);
    run_in_process(world, [&](Communicator& communicator) {
      const auto rank = static_cast<std::size_t>(communicator.rank());
      Runner runner("power_sgd:rank=2:step=0.5", communicator);
      runner.ends = {600, 640, 2640};
      runner.rows = {20, 40, 50};
      std::vector<float> residual(2640);
      for (std::uint32_t index = 0; index < 3; ++index) {
        auto gradient = normal_values(2640, 10 * index + static_cast<std::uint32_t>(communicator.rank()));
        given[rank] = gradient;
        for (std::size_t i = 0; i < gradient.size(); ++i) given[rank][i] += residual[i];
        EXPECT_TRUE(runner.step(gradient, residual).finite);
        means[rank] = gradient;
      }
      kept[rank] = residual;
      auto spoilt = normal_values(2640, 99);
      if (communicator.rank() == world - 1) spoilt[17] = std::numeric_limits<float>::quiet_NaN();
      EXPECT_FALSE(runner.step(spoilt, residual).finite);
      EXPECT_TRUE(same_bits(residual, kept[rank]));
    });
    for (const auto& mean : means) EXPECT_TRUE(same_bits(mean, means[0]));
    for (std::size_t i = 0; i < given[0].size(); ++i) {
      double in = 0, out = static_cast<double>(world) * static_cast<double>(means[0][i]);
      for (std::size_t rank = 0; rank < ranks; ++rank) {
        in += static_cast<double>(given[rank][i]);
        out += static_cast<double>(kept[rank][i]);
      }
      ASSERT_NEAR(in, out, 1e-4) << world << " ranks, element " << i;
    }
  }
}

TEST(PowerSgd, RefusesTwoCodesAtOnce) {
  const auto complaint = [](const std::string& spec) -> std::string {
    try {
      Runner::registry().make(spec);
    } catch (const std::invalid_argument& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_NE(complaint("power_sgd:bits=8:step=0.3").find("left out where bits is given"), std::string::npos);
  EXPECT_NE(complaint("power_sgd:step=0.01").find("0.05"), std::string::npos);
  EXPECT_EQ(complaint("power_sgd:step=0.3"), "");
}

}  // namespace
}  // namespace thinwire::power_sgd_test
