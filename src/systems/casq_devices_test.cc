// CASQ with gradients in memory of a device arrives at what it does on the CPU.

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "systems/casq.h"
#include "thinwire/cuda.h"
#include "thinwire/in_process.h"

namespace thinwire {
namespace {

constexpr std::size_t kElements = 5003;

struct Outcome {
  std::vector<float> mean;
  std::vector<float> residual;
  double residual_norm = 0;
  bool finite = false;
};

std::vector<float> gradient_of(int rank, int index) {
  std::mt19937 random(static_cast<std::uint32_t>(100 * rank + index));
  std::normal_distribution<float> normal;
  std::vector<float> values(kElements);
  for (auto& value : values) value = 1e-3f * normal(random) * std::exp(1.5f * normal(random));
  return values;
}

/// Of every rank, after `steps` steps. bad: in the last one rank 1 has one inf.
std::vector<Outcome> outcomes_of(const std::string& spec, int ranks, bool device, bool feedback, int steps,
                                 bool bad) {
  const std::vector<std::size_t> ends = {0, 7, 1000, 1003, kElements};
  std::vector<Outcome> outcomes(static_cast<std::size_t>(ranks));
  run_in_process(ranks, [&](Communicator& communicator) {
    Registry registry;
    registry.add(casq_info());
    const auto casq = registry.make(spec).synchronizer;
    const auto executor = device ? make_cuda_executor(0) : make_cpu_executor(1);
    Workspace workspace(executor->shared_allocator());
    auto take = [&](std::size_t count) {
      auto* memory = static_cast<float*>(executor->allocator().allocate(kElements * sizeof(float)));
      return Span<float>(memory, count, executor->memory());
    };
    const Span<float> gradient = take(kElements);
    const Span<float> residual = take(feedback ? kElements : 0);
    const std::vector<float> zeros(residual.size(), 0.0f);
    copy(*executor, Span<const float>(zeros), residual);
    Outcome& outcome = outcomes[static_cast<std::size_t>(communicator.rank())];
    for (int index = 0; index < steps; ++index) {
      auto values = gradient_of(communicator.rank(), index);
      if (bad && index + 1 == steps && communicator.rank() == 1) {
        values[4000] = std::numeric_limits<float>::infinity();
      }
      copy(*executor, Span<const float>(values), gradient);
      workspace.reset();
      Step step{.communicator = communicator,
                .executor = *executor,
                .workspace = workspace,
                .index = static_cast<std::uint64_t>(index),
                .seed = 5,
                .parameter_ends = ends};
      casq->synchronize(0, gradient, residual, step);
      outcome.residual_norm = step.report.residual_norm;
      outcome.finite = step.report.finite;
    }
    outcome.mean.resize(kElements);
    outcome.residual.resize(residual.size());
    copy<float>(*executor, gradient, Span<float>(outcome.mean));
    copy<float>(*executor, residual, Span<float>(outcome.residual));
    for (const auto span : {gradient, residual}) executor->allocator().release(span.data());
  });
  return outcomes;
}

double norm(const std::vector<float>& values) {
  double squares = 0;
  for (const float value : values) squares += static_cast<double>(value) * static_cast<double>(value);
  return std::sqrt(squares);
}

/// The share of elements that differ by more than rounding: where a bucket's mean is rounded otherwise, an
/// element that is coded again may change sides.
double share_apart(const std::vector<float>& a, const std::vector<float>& b) {
  std::size_t apart = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    apart += std::fabs(a[i] - b[i]) > 1e-5f * (std::fabs(a[i]) + 1e-3f) ? 1u : 0u;
  }
  return static_cast<double>(apart) / static_cast<double>(a.size());
}

class CasqDevices : public testing::TestWithParam<const char*> {};

TEST_P(CasqDevices, ComputeWhatTheCpuDoes) {
  if (cuda_devices() == 0) GTEST_SKIP() << "no CUDA device";
  for (const int ranks : {1, 3}) {
    for (const bool feedback : {false, true}) {
      SCOPED_TRACE(testing::Message() << ranks << " ranks, feedback " << feedback);
      const auto expected = outcomes_of(GetParam(), ranks, false, feedback, 2, false);
      const auto actual = outcomes_of(GetParam(), ranks, true, feedback, 2, false);
      for (std::size_t rank = 0; rank < actual.size(); ++rank) {
        EXPECT_TRUE(actual[rank].finite);
        EXPECT_EQ(actual[rank].mean, actual[0].mean);
        EXPECT_LT(share_apart(actual[rank].mean, expected[rank].mean), 1e-2);
        if (!feedback) continue;
        EXPECT_LT(share_apart(actual[rank].residual, expected[rank].residual), 1e-2);
        EXPECT_NEAR(actual[rank].residual_norm, norm(actual[rank].residual),
                    1e-5 * norm(actual[rank].residual));
      }
    }
  }
}

TEST_P(CasqDevices, ReportWhatIsNotFinite) {
  if (cuda_devices() == 0) GTEST_SKIP() << "no CUDA device";
  const auto before = outcomes_of(GetParam(), 2, true, true, 1, false);
  const auto outcomes = outcomes_of(GetParam(), 2, true, true, 2, true);
  for (std::size_t rank = 0; rank < outcomes.size(); ++rank) {
    EXPECT_FALSE(outcomes[rank].finite);
    EXPECT_TRUE(std::isnan(outcomes[rank].mean[0]));
    EXPECT_EQ(outcomes[rank].residual, before[rank].residual);
  }
}

INSTANTIATE_TEST_SUITE_P(Options, CasqDevices,
                         testing::Values("casq", "casq:topology=all_gather:bits=3:scope=bucket",
                                         "casq:topology=server:bits=4:buckets=0.05:interval=1:sample=1",
                                         "casq:topology=server:downlink=float32:bits=1:buckets=0",
                                         "casq:double_momentum=0.5"));

}  // namespace
}  // namespace thinwire
