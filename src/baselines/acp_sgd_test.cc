#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <sstream>

#include "baselines/low_rank_runner.h"
#include "thinwire/state.h"

namespace thinwire::acp_sgd_test {
namespace {

using low_rank_test::distance;
using low_rank_test::matrix_of;
using low_rank_test::norm;
using low_rank_test::Runner;
using low_rank_test::same_bits;

constexpr std::size_t kRows = 40;
constexpr std::size_t kColumns = 90;

/// Ranks hold multiples of one matrix; their mean is (world + 1) / 2 times it.
std::vector<float> times(std::vector<float> matrix, float factor) {
  for (float& value : matrix) value *= factor;
  return matrix;
}

TEST(AcpSgd, AMatrixOfLowRankArrivesExactlyOnceItsSpaceIsKnown) {
  for (const int world : {1, 2, 3, 5}) {
    std::vector<std::vector<float>> means(static_cast<std::size_t>(world));
    const auto matrix = matrix_of(kRows, kColumns, {1, 0.1, 0.01});
    run_in_process(world, [&](Communicator& communicator) {
      Runner runner("acp_sgd:rank=4", communicator);
      runner.rows = {kRows};
      const auto expected = times(matrix, static_cast<float>(world + 1) / 2);
      for (int step = 0; step < 4; ++step) {
        auto gradient = times(matrix, static_cast<float>(communicator.rank() + 1));
        std::vector<float> none;
        EXPECT_TRUE(runner.step(gradient, none).finite);
        const double error = distance(gradient, expected);
        if (step == 0) {
          EXPECT_GT(error, 0.1 * norm(expected)) << "a drawn space does not hold it";
        } else {
          EXPECT_LT(error, 2e-6 * norm(expected)) << world << " ranks, step " << step;
        }
        means[static_cast<std::size_t>(communicator.rank())] = gradient;
      }
    });
    for (const auto& mean : means) EXPECT_TRUE(same_bits(mean, means[0])) << world;
  }
}

TEST(AcpSgd, AConstantGradientArrivesInTheMeanOfManySteps) {
  for (const std::string spec : {"acp_sgd:rank=2", "acp_sgd:rank=2:bits=4", "acp_sgd:rank=2:bits=2"}) {
    run_in_process(2, [&](Communicator& communicator) {
      Runner runner(spec, communicator);
      runner.rows = {20};
      const auto constant = normal_values(20 * 30, 9);
      std::vector<float> residual(constant.size());
      std::vector<float> sum(constant.size());
      constexpr int kSteps = 400;
      for (int step = 0; step < kSteps; ++step) {
        auto gradient = times(constant, communicator.rank() == 0 ? 0.5f : 1.5f);
        runner.step(gradient, residual);
        for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += gradient[i] / kSteps;
      }
      EXPECT_LT(distance(sum, constant), 0.1 * norm(constant)) << spec;
    });
  }
}

TEST(AcpSgd, StepsSendOneFactorEachAndTheFormulaCountsThem) {
  run_in_process(4, [&](Communicator& communicator) {
    Runner runner("acp_sgd:rank=2", communicator);
    // Two matrices [20 x 30], and ten elements of a matrix of fewer rows than the rank.
    runner.ends = {600, 610, 1210};
    runner.rows = {20, 1, 20};
    std::vector<float> residual(1210);
    const auto ring = [&](std::uint64_t elements) {
      std::uint64_t sent = 2 * elements;
      for (const int ahead : {1, 2}) {
        const auto part = static_cast<std::uint64_t>((communicator.rank() + ahead) % 4);
        sent -= elements * (part + 1) / 4 - elements * part / 4;
      }
      return 4 * sent;
    };
    for (int step = 0; step < 2; ++step) {
      auto gradient = normal_values(1210, 3);
      const auto original = gradient;
      const StepReport report = runner.step(gradient, residual);
      // Of one matrix the factor of 20 rows, of the other one that of 30, in every step.
      EXPECT_EQ(report.formula_bytes, ring(10 + 2 * 20 + 2 * 30)) << step;
      EXPECT_EQ(report.wire.sent_bytes, report.formula_bytes) << step;
      for (std::size_t i = 600; i < 610; ++i) {
        EXPECT_EQ(gradient[i], original[i]);
        EXPECT_EQ(residual[i], 0.0f);
      }
    }
  });
}

TEST(AcpSgd, ZeroGradientsDoNoLastingHarm) {
  run_in_process(2, [&](Communicator& communicator) {
    Runner runner("acp_sgd:rank=2", communicator);
    runner.rows = {30};
    const auto matrix = matrix_of(30, 40, {1, 0.5});
    for (int step = 0; step < 6; ++step) {
      auto gradient = step < 2 ? std::vector<float>(matrix.size()) : matrix;
      const auto expected = gradient;
      std::vector<float> none;
      EXPECT_TRUE(runner.step(gradient, none).finite);
      // In the third step the space is a drawn one.
      const double limit = step == 2 ? 1.0 : 2e-6;
      EXPECT_LE(distance(gradient, expected), limit * norm(expected)) << "step " << step;
    }
  });
}

TEST(AcpSgd, OverflowIsToldToEveryRankAndChangesNothing) {
  const float huge = 3e38f;
  for (const std::string spec : {"acp_sgd:rank=2", "acp_sgd:rank=2:bits=8"}) {
    for (const auto& [gradient_value, residual_value] :
         std::vector<std::pair<float, float>>{{huge, huge}, {huge, 0.0f}, {1e38f, 0.9e38f}}) {
      std::vector<std::vector<float>> means(3);
      run_in_process(3, [&](Communicator& communicator) {
        Runner runner(spec, communicator);
        runner.rows = {20};
        const auto usual = normal_values(600, 4);
        std::vector<float> residual(600, 0.5f);
        auto gradient = usual;
        runner.step(gradient, residual);
        const auto kept = residual;
        gradient = std::vector<float>(600, gradient_value);
        auto spoilt = communicator.rank() == 1 ? std::vector<float>(600, residual_value) : kept;
        const auto before = spoilt;
        EXPECT_FALSE(runner.step(gradient, spoilt).finite) << spec;
        EXPECT_TRUE(same_bits(spoilt, before)) << spec;
        gradient = usual;
        EXPECT_TRUE(runner.step(gradient, residual).finite) << spec;
        means[static_cast<std::size_t>(communicator.rank())] = gradient;
      });
      EXPECT_TRUE(same_bits(means[0], means[1])) << spec;
      EXPECT_TRUE(same_bits(means[0], means[2])) << spec;
    }
  }
}

/// Of a step with gradients of `value` and -`value` in one element of ranks 0 and 1, so that sums are small.
void expect_verdict(const std::string& spec, float value, bool fits) {
  run_in_process(3, [&](Communicator& communicator) {
    Runner runner(spec, communicator);
    runner.rows = {20};
    std::vector<float> gradient(600);
    if (communicator.rank() < 2) gradient[77] = communicator.rank() == 0 ? value : -value;
    std::vector<float> residual(gradient.size());
    EXPECT_EQ(runner.step(gradient, residual).finite, fits) << spec << ", " << value;
    const bool kept = communicator.rank() < 2 && fits;
    EXPECT_EQ(norm(residual) > 0, kept) << spec << ", " << value;
  });
}

TEST(LowRank, AResidualThatCouldOverflowStopsAStepAlsoWhereGradientsCancel) {
  for (const std::string spec : {"power_sgd:rank=2", "power_sgd:rank=2:bits=8", "acp_sgd:rank=2"}) {
    expect_verdict(spec, 1.6e38f, true);
    expect_verdict(spec, 1.8e38f, false);
  }
  // What a rank's codes say of its own factor times the other factor is subtracted, too.
  expect_verdict("acp_sgd:rank=2:bits=8", 4e37f, true);
  expect_verdict("acp_sgd:rank=2:bits=8", 1.8e38f, false);
}

TEST(AcpSgd, FactorsFollowTheirParametersIntoOtherBuckets) {
  run_in_process(1, [&](Communicator& communicator) {
    // As one bucket of two matrices, and then as two buckets: b's larger factor is the left one at first.
    const std::vector<BucketLayout> together = {{{"a", 600, 20}, {"b", 1200, 30}}};
    const std::vector<BucketLayout> apart = {{{"b", 1200, 30}}};
    Runner before("acp_sgd:rank=2", communicator);
    before.ends = {600, 1800};
    before.rows = {20, 30};
    const auto a = matrix_of(20, 30, {1, 0.5});
    const auto b = matrix_of(30, 40, {1, 0.5});
    std::vector<float> none;
    for (int step = 0; step < 2; ++step) {
      auto gradient = a;
      gradient.insert(gradient.end(), b.begin(), b.end());
      before.step(gradient, none);
    }
    StateWriter state;
    BucketWriter writer(state, together);
    before.pipeline.synchronizer->save(writer);
    std::stringstream stream;
    state.write(stream);
    const StateReader stored(stream);
    Runner after("acp_sgd:rank=2", communicator);
    after.rows = {30};
    after.pipeline.synchronizer->load(BucketReader(stored, apart));
    for (after.index = 2; after.index < 4;) {
      auto gradient = b;
      after.step(gradient, none);
      EXPECT_LT(distance(gradient, b), 2e-6 * norm(b)) << "its space is not known any more";
    }
    const std::vector<BucketLayout> grown = {{{"a", 600, 20}, {"new", 600, 20}}};
    EXPECT_THROW(after.pipeline.synchronizer->load(BucketReader(stored, grown)), std::runtime_error);
    const std::vector<BucketLayout> reshaped = {{{"a", 600, 30}, {"b", 1200, 30}}};
    EXPECT_THROW(after.pipeline.synchronizer->load(BucketReader(stored, reshaped)), std::runtime_error);
  });
}

}  // namespace
}  // namespace thinwire::acp_sgd_test
