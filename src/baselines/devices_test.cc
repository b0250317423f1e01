// Systems whose gradients lie in memory of a device arrive at what they do on the CPU.

#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "baselines/baselines.h"
#include "thinwire/cuda.h"
#include "thinwire/in_process.h"

namespace thinwire {
namespace {

constexpr int kRanks = 3;
constexpr int kSteps = 3;
constexpr std::size_t kElements = 5003;

struct Outcome {
  std::vector<float> gradient;
  std::vector<float> residual;
  double residual_norm = 0;
  bool finite = false;
};

/// Rank 0's, after some steps of a system on kRanks ranks. bad: of the last step, rank 1 has one inf.
Outcome outcome_of(const std::string& spec, bool device, bool with_residual, bool bad) {
  const std::vector<std::size_t> ends = {0, 7, 1000, 1003, kElements};
  Outcome outcome;
  run_in_process(kRanks, [&](Communicator& communicator) {
    Registry registry;
    for (const auto& info :
         {dense_info(), half_info(), qsgd_info(), nuqsgd_info(), alq_info(), amq_info(), terngrad_info(),
          signsgd_info(), ef_signsgd_info(), ssdm_info(), cascading_sign_info()}) {
      registry.add(info);
    }
    const auto system = registry.make(spec).synchronizer;
    const auto executor = device ? make_cuda_executor(0) : make_cpu_executor(1);
    {
      Workspace workspace(executor->shared_allocator());
      auto take = [&] { return static_cast<float*>(executor->allocator().allocate(kElements * 4)); };
      const Span<float> gradient(take(), kElements, executor->memory());
      const Span<float> residual(take(), with_residual ? kElements : 0, executor->memory());
      std::vector<float> values(kElements, 0.0f);
      copy(*executor, Span<const float>(values).first(residual.size()), residual);
      for (int index = 0; index < kSteps; ++index) {
        std::mt19937 random(static_cast<std::uint32_t>(100 * communicator.rank() + index));
        std::normal_distribution<float> normal;
        for (auto& value : values) value = normal(random);
        if (bad && index + 1 == kSteps && communicator.rank() == 1) {
          values[4000] = std::numeric_limits<float>::infinity();
        }
        copy(*executor, Span<const float>(values), gradient);
        workspace.reset();
        Step step{.communicator = communicator,
                  .executor = *executor,
                  .workspace = workspace,
                  .index = static_cast<std::uint64_t>(index),
                  .seed = 5};
        step.parameter_ends = ends;
        system->synchronize(0, gradient, residual, step);
        if (communicator.rank() == 0) {
          outcome.residual_norm = step.report.residual_norm;
          outcome.finite = step.report.finite;
        }
      }
      if (communicator.rank() == 0) {
        outcome.gradient.resize(kElements);
        outcome.residual.resize(residual.size());
        copy<float>(*executor, gradient, Span<float>(outcome.gradient));
        copy<float>(*executor, residual, Span<float>(outcome.residual));
      }
      executor->allocator().release(gradient.data());
      executor->allocator().release(residual.data());
    }
  });
  return outcome;
}

class Devices : public testing::TestWithParam<std::string> {};

TEST_P(Devices, ComputeWhatTheCpuDoes) {
  if (cuda_devices() == 0) GTEST_SKIP() << "no CUDA device";
  for (const bool with_residual : {false, true}) {
    const Outcome expected = outcome_of(GetParam(), false, with_residual, false);
    const Outcome actual = outcome_of(GetParam(), true, with_residual, false);
    EXPECT_TRUE(expected.finite);
    EXPECT_TRUE(actual.finite);
    EXPECT_NEAR(actual.residual_norm, expected.residual_norm, 1e-5 * std::fabs(expected.residual_norm));
    ASSERT_EQ(actual.residual.size(), expected.residual.size());
    // Scales that are sums may differ in their last bit; what is left of a gradient is a difference.
    for (std::size_t i = 0; i < kElements; ++i) {
      ASSERT_NEAR(actual.gradient[i], expected.gradient[i],
                  1e-6f * std::max(std::fabs(expected.gradient[i]), 1.0f))
          << i;
    }
    for (std::size_t i = 0; i < expected.residual.size(); ++i) {
      ASSERT_NEAR(actual.residual[i], expected.residual[i],
                  1e-5f * std::max(std::fabs(expected.residual[i]), 1.0f))
          << i;
    }
  }
}

TEST_P(Devices, ReportWhatIsNotFinite) {
  if (cuda_devices() == 0) GTEST_SKIP() << "no CUDA device";
  const Outcome outcome = outcome_of(GetParam(), true, true, true);
  EXPECT_FALSE(outcome.finite);
}

std::string name_of(const testing::TestParamInfo<std::string>& info) {
  std::string name = info.param;
  std::replace_if(
      name.begin(), name.end(), [](char c) { return std::isalnum(static_cast<unsigned char>(c)) == 0; }, '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(Systems, Devices,
                         testing::Values("dense", "half", "half:format=bf16", "qsgd", "qsgd:bits=2:chunk=128",
                                         "qsgd:bits=8:norm=l2:chunk=16384", "nuqsgd:bits=5", "alq",
                                         "amq:zero=off", "terngrad", "terngrad:clip=2.5",
                                         "terngrad:scale=bucket", "signsgd", "ef_signsgd", "ssdm",
                                         "cascading_sign"),
                         name_of);

}  // namespace
}  // namespace thinwire
