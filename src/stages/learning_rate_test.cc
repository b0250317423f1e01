#include "stages/learning_rate.h"

#include <gtest/gtest.h>

#include <limits>

#include "thinwire/in_process.h"

namespace thinwire::learning_rate_test {
namespace {

/// Delivers the first element of p and keeps the others.
class FirstElement final : public Synchronizer {
 public:
  void synchronize(BucketId, Span<float> gradient, Span<float> residual, Step& step) override {
    step.report.finite = gradient[0] - gradient[0] == 0;
    if (!step.report.finite) return;
    for (std::size_t i = 0; i < gradient.size(); ++i) {
      const float p = gradient[i] + residual[i];
      gradient[i] = i == 0 ? p : 0;
      residual[i] = i == 0 ? 0 : p;
    }
  }
  std::uint64_t payload_bytes(const Workload&) const override { return 7; }
};

TEST(LearningRate, WhatWaitsIsMultipliedByTheRateOfItsOwnStep) {
  run_in_process(1, [&](Communicator& communicator) {
    const auto inside = put_learning_rate_inside(std::make_unique<FirstElement>());
    EXPECT_EQ(inside->payload_bytes({}), 7u);
    const auto executor = make_cpu_executor(1);
    Workspace workspace;
    std::vector<float> residual(2, 0.0f);
    auto step_of = [&](double rate, std::vector<float> gradient) {
      Step step{
          .communicator = communicator, .executor = *executor, .workspace = workspace, .learning_rate = rate};
      inside->synchronize(0, gradient, residual, step);
      EXPECT_EQ(step.report.finite, gradient[0] - gradient[0] == 0);
      return gradient;
    };
    EXPECT_EQ(step_of(0.5, {3, 8}), (std::vector<float>{3, 0}));
    EXPECT_EQ(residual, (std::vector<float>{0, 4}));
    EXPECT_EQ(step_of(0.25, {1, 8}), (std::vector<float>{1, 0}));
    EXPECT_EQ(residual, (std::vector<float>{0, 6}));
    EXPECT_EQ(step_of(1, {1, 1}), (std::vector<float>{1, 0}));
    EXPECT_EQ(residual, (std::vector<float>{0, 7}));
    step_of(0.5, {std::numeric_limits<float>::infinity(), 1});
    EXPECT_EQ(residual, (std::vector<float>{0, 7}));
    EXPECT_EQ(step_of(0, {1, 1}), (std::vector<float>{0, 0}));
    EXPECT_EQ(residual, (std::vector<float>{0, 7}));
    for (const double rate :
         {-1.0, 1e-40, std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) {
      EXPECT_THROW(step_of(rate, {1, 1}), std::invalid_argument);
    }
  });
}

}  // namespace
}  // namespace thinwire::learning_rate_test
