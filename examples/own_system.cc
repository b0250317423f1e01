// A system of one's own beside the built-in ones: each rank clips its elements to +-limit and keeps what is
// beyond as residual, and the engine adds up the rest.
//
// Needs the installed headers only: find_package(thinwire), then
// target_link_libraries(own_system PRIVATE thinwire::thinwire).
#include <thinwire/in_process.h>
#include <thinwire/session.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <memory>
#include <stdexcept>
#include <vector>

namespace {

using thinwire::Span;

class Clipped final : public thinwire::Synchronizer {
 public:
  explicit Clipped(float limit) : limit_(limit) {}

  void synchronize(thinwire::BucketId, Span<float> gradient, Span<float> residual,
                   thinwire::Step& step) override {
    // The residual may change only when all ranks agree that the step is finite.
    const Span<float> left = step.workspace.take<float>(gradient.size());
    const float share = 1.0f / static_cast<float>(step.communicator.size());
    for (std::size_t i = 0; i < gradient.size(); ++i) {
      const float p = residual.empty() ? gradient[i] : gradient[i] + residual[i];
      const float sent = std::clamp(p, -limit_, limit_);
      left[i] = p - sent;
      // NaN survives the sum: so every rank learns of it.
      gradient[i] = std::isfinite(p) ? sent * share : std::numeric_limits<float>::quiet_NaN();
    }
    step.communicator.all_reduce_sum(gradient);
    step.report.finite =
        std::all_of(gradient.begin(), gradient.end(), [](float mean) { return std::isfinite(mean); });
    if (step.report.finite && !residual.empty()) std::copy(left.begin(), left.end(), residual.begin());
  }

  std::uint64_t payload_bytes(const thinwire::Workload& workload) const override {
    return workload.ring_sent_bytes(workload.elements, sizeof(float));
  }

 private:
  float limit_;
};

thinwire::SystemInfo clipped_info() {
  thinwire::SystemInfo info;
  info.name = "clipped";
  info.summary = "elements clipped to a limit, what is beyond comes later";
  info.paper = "none";
  info.formula = "2(W-1)/W * 4d";
  info.feedback_default = true;
  info.options = {{"limit", "1", "largest magnitude that a rank sends"}};
  info.make = [](const thinwire::Options& options,
                 thinwire::Inner) -> std::unique_ptr<thinwire::Synchronizer> {
    return std::make_unique<Clipped>(static_cast<float>(options.real("limit", 1e-30, 1e30)));
  };
  return info;
}

}  // namespace

int main() {
  thinwire::Registry registry;
  registry.add(clipped_info());
  thinwire::run_in_process(4, [&](thinwire::Communicator& communicator) {
    thinwire::SessionOptions options;
    options.registry = &registry;
    thinwire::Session session("clipped:limit=2", communicator, options);
    const auto bucket = session.add_bucket({{"weights", 1000}});
    // Ranks 0 to 3 have 0 to 3 once, and rank 3's third comes a step later.
    auto own = static_cast<float>(communicator.rank());
    for (const float expected : {(0 + 1 + 2 + 2) / 4.0f, 1 / 4.0f, 0.0f}) {
      std::vector<float> gradient(1000, own);
      own = 0;
      const thinwire::StepReport report = session.synchronize(bucket, gradient);
      session.next_step();
      if (gradient[0] != expected || gradient[999] != expected) throw std::runtime_error("not the mean");
      if (communicator.rank() == 0) {
        std::printf("mean %g, %llu bytes sent\n", static_cast<double>(gradient[0]),
                    static_cast<unsigned long long>(report.wire.sent_bytes));
      }
    }
  });
}
