#include "stages/momentum.h"

#include <gtest/gtest.h>

#include <limits>
#include <sstream>

#include "thinwire/in_process.h"
#include "thinwire/state.h"

namespace thinwire::momentum_correction_test {
namespace {

/// Delivers the even elements, or those listed; the others stay in the residual.
class EvenElements final : public Synchronizer {
 public:
  explicit EvenElements(Delivered::Kind kind) : kind_(kind) {}
  void synchronize(BucketId, Span<float> gradient, Span<float> residual, Step& step) override {
    const auto indices = step.workspace.take<std::uint32_t>((gradient.size() + 1) / 2);
    const auto bits = step.workspace.take<std::uint64_t>((gradient.size() + 63) / 64);
    std::fill(bits.begin(), bits.end(), 0);
    step.report.finite = true;
    for (std::size_t i = 0; i < gradient.size(); ++i) step.report.finite &= gradient[i] - gradient[i] == 0;
    for (std::size_t i = 0; i < gradient.size(); ++i) {
      const float p = gradient[i] + residual[i];
      const bool deliver = i % 2 == 0;
      gradient[i] = deliver ? p : 0;
      if (!step.report.finite) continue;
      residual[i] = deliver ? 0 : p;
      if (deliver) {
        indices[i / 2] = static_cast<std::uint32_t>(i);
        bits[i / 64] |= std::uint64_t{1} << (i % 64);
      }
    }
    step.delivered.kind = kind_;
    step.delivered.indices = indices;
    step.delivered.bits = bits;
  }
  std::uint64_t payload_bytes(const Workload&) const override { return 0; }

 private:
  Delivered::Kind kind_;
};

Registry registry_with(Delivered::Kind kind) {
  Registry registry;
  registry.add(momentum_correction_info());
  SystemInfo info;
  info.name = "even";
  info.delivers_all = false;
  info.make = [kind](const Options&, Inner) -> std::unique_ptr<Synchronizer> {
    return std::make_unique<EvenElements>(kind);
  };
  registry.add(info);
  return registry;
}

class MomentumCorrectionTest : public testing::TestWithParam<Delivered::Kind> {};

TEST_P(MomentumCorrectionTest, VelocityGathersUntilDelivered) {
  const Registry registry = registry_with(GetParam());
  run_in_process(1, [&](Communicator& communicator) {
    auto pipeline = registry.make("mc:momentum=0.5+even");
    const auto executor = make_cpu_executor(1);
    Workspace workspace;
    std::vector<float> residual(4, 0.0f);
    auto step_of = [&](std::vector<float> gradient) {
      workspace.reset();
      Step step{.communicator = communicator, .executor = *executor, .workspace = workspace};
      pipeline.synchronizer->synchronize(0, gradient, residual, step);
      return gradient;
    };
    EXPECT_EQ(step_of({1, 1, 1, 1}), (std::vector<float>{1, 0, 1, 0}));
    EXPECT_EQ(residual, (std::vector<float>{0, 1, 0, 1}));
    // Delivered velocities were cleared, the others decay and grow: u = 0.5 * 1 + 1, v = 1 + 1.5.
    EXPECT_EQ(step_of({1, 1, 1, 1}), (std::vector<float>{1, 0, 1, 0}));
    EXPECT_EQ(residual, (std::vector<float>{0, 2.5f, 0, 2.5f}));
    // A step that does not count changes nothing.
    step_of({1, std::numeric_limits<float>::quiet_NaN(), 1, 1});
    EXPECT_EQ(residual, (std::vector<float>{0, 2.5f, 0, 2.5f}));
    EXPECT_EQ(step_of({0, 0, 0, 0}), (std::vector<float>{0, 0, 0, 0}));
    EXPECT_EQ(residual, (std::vector<float>{0, 3.25f, 0, 3.25f}));
  });
}

INSTANTIATE_TEST_SUITE_P(Kinds, MomentumCorrectionTest,
                         testing::Values(Delivered::Kind::bitset, Delivered::Kind::indices));

TEST(MomentumCorrection, VelocityIsSavedByParameter) {
  const Registry registry = registry_with(Delivered::Kind::indices);
  run_in_process(1, [&](Communicator& communicator) {
    const auto executor = make_cpu_executor(1);
    const std::vector<BucketLayout> layout = {{{"w", 2}, {"b", 2}}};
    auto run = [&](Synchronizer& synchronizer, std::vector<float> gradient, std::vector<float>& residual) {
      Workspace workspace;
      Step step{.communicator = communicator, .executor = *executor, .workspace = workspace};
      synchronizer.synchronize(0, gradient, residual, step);
      return gradient;
    };
    auto first = registry.make("mc+even");
    std::vector<float> residual(4, 0.0f);
    run(*first.synchronizer, {1, 2, 3, 4}, residual);
    StateWriter state;
    BucketWriter writer(state, layout);
    first.synchronizer->save(writer);
    std::stringstream stream;
    state.write(stream);

    const StateReader stored(stream);
    auto second = registry.make("mc+even");
    second.synchronizer->load(BucketReader(stored, layout));
    auto residual_too = residual;
    EXPECT_EQ(run(*first.synchronizer, {0, 0, 0, 0}, residual),
              run(*second.synchronizer, {0, 0, 0, 0}, residual_too));
    EXPECT_EQ(residual, residual_too);
  });
}

}  // namespace
}  // namespace thinwire::momentum_correction_test
