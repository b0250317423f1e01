#include "stages/momentum.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "thinwire/in_process.h"

namespace thinwire::inner_momentum_test {
namespace {

/// Delivers p rounded to whole numbers; the rest stays in the residual.
class WholeNumbers final : public Synchronizer {
 public:
  void synchronize(BucketId, Span<float> gradient, Span<float> residual, Step& step) override {
    step.report.finite = true;
    for (const float value : gradient) step.report.finite &= std::isfinite(value);
    if (!step.report.finite) return;
    for (std::size_t i = 0; i < gradient.size(); ++i) {
      const float p = gradient[i] + residual[i];
      gradient[i] = std::round(p);
      residual[i] = p - gradient[i];
    }
  }
  std::uint64_t payload_bytes(const Workload&) const override { return 0; }
};

Registry registry() {
  Registry registry;
  registry.add(inner_momentum_info());
  SystemInfo info;
  info.name = "whole_numbers";
  info.feedback_default = true;
  info.make = [](const Options&, Inner) -> std::unique_ptr<Synchronizer> {
    return std::make_unique<WholeNumbers>();
  };
  registry.add(info);
  return registry;
}

TEST(InnerMomentum, AnOptimizerWithTheSameMomentumEndsWithTheOneThatTravelled) {
  run_in_process(1, [&](Communicator& communicator) {
    auto pipeline = registry().make("momentum:momentum=0.5+whole_numbers");
    EXPECT_TRUE(pipeline.conserves);
    const auto executor = make_cpu_executor(1);
    Workspace workspace;
    std::vector<float> residual(3, 0.0f);
    std::vector<float> optimizers(3, 0.0f);
    for (int step = 0; step < 8; ++step) {
      std::vector<float> gradient = {0.75f, 4.25f, -1.0f + 0.5f * static_cast<float>(step)};
      const std::vector<float> sent = gradient;
      const std::vector<float> before = residual;
      const bool bad = step == 4;
      if (bad) gradient[1] = std::numeric_limits<float>::quiet_NaN();
      workspace.reset();
      Step now{.communicator = communicator, .executor = *executor, .workspace = workspace};
      pipeline.synchronizer->synchronize(0, gradient, residual, now);
      EXPECT_EQ(now.report.finite, !bad);
      if (bad) continue;
      for (std::size_t i = 0; i < 3; ++i) {
        // All values are short binary fractions: nothing is rounded.
        EXPECT_EQ(sent[i] + before[i], gradient[i] + residual[i]) << "the contract's equation";
        optimizers[i] = 0.5f * optimizers[i] + gradient[i];
        EXPECT_EQ(optimizers[i], std::round(optimizers[i])) << "what travelled was a whole number";
      }
    }
  });
}

}  // namespace
}  // namespace thinwire::inner_momentum_test
