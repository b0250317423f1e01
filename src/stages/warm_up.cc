// A milder system for the first steps. At the start gradients turn quickly, and what is held back arrives
// when it no longer fits; later it does. (Y. Lin et al., "Deep Gradient Compression", ICLR 2018, section 3.3,
// ramps a sparsifier for the same reason.)
//
//   p --step < steps--> the system of `with` --> mean
//    \--afterwards-----> inner system ----------> mean
//
// Both are given the same residual, so nothing is lost where they change. The inner system counts its steps
// from the end of the warm-up on: so what it does in its first step, or every so many, it does then. For a
// ramp stages follow each other: "warm_up:steps=50+warm_up:steps=150:with=qsgd/bits=4+casq" has casq from
// step 200 on.
//
// Bytes per rank: those of the system whose step it is.

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "stages/forwarding.h"
#include "stages/stages.h"

namespace thinwire {
namespace {

/// The first system has no state, see Registry::make_other.
class WarmUp final : public Forwarding {
 public:
  WarmUp(std::uint64_t steps, std::string first_name, std::unique_ptr<Synchronizer> first,
         std::unique_ptr<Synchronizer> inner)
      : Forwarding(std::move(inner)),
        steps_(steps),
        first_name_(std::move(first_name)),
        first_(std::move(first)) {}

  void synchronize(BucketId bucket, Span<float> gradient, Span<float> residual, Step& step) override {
    if (step.index < steps_) {
      first_->synchronize(bucket, gradient, residual, step);
      step.report.scheme = first_name_.c_str();
      return;
    }
    const Later later(step, steps_);
    inner().synchronize(bucket, gradient, residual, step);
  }

  void require_world(int world_size) const override {
    first_->require_world(world_size);
    inner().require_world(world_size);
  }

  // The system behind counts from the end of the warm-up on, and whoever reads this does not.
  std::vector<Change> changes() const override { return in_training(inner().changes()); }
  std::vector<Change> explanation() const override { return in_training(inner().explanation()); }

  bool freezes_variance(std::uint64_t step) const override {
    return step >= steps_ && inner().freezes_variance(step - steps_);
  }

  std::uint64_t payload_bytes(const Workload& workload) const override {
    if (workload.step < steps_) return first_->payload_bytes(workload);
    Workload later = workload;
    later.step -= steps_;
    return inner().payload_bytes(later);
  }

 private:
  /// A step with its number counted from the end of the warm-up on.
  class Later {
   public:
    Later(Step& step, std::uint64_t by) : step_(step), by_(by) { step_.index -= by_; }
    ~Later() { step_.index += by_; }
    Later(const Later&) = delete;
    Later& operator=(const Later&) = delete;

   private:
    Step& step_;
    std::uint64_t by_;
  };

  std::vector<Change> in_training(std::vector<Change> all) const {
    for (Change& one : all) one.step += steps_;
    return all;
  }

  std::uint64_t steps_;
  std::string first_name_;
  std::unique_ptr<Synchronizer> first_;
};

}  // namespace

SystemInfo warm_up_info() {
  SystemInfo info;
  info.name = "warm_up";
  info.summary = "another system, dense unless said otherwise, in the first steps";
  info.paper = "Lin et al., Deep Gradient Compression, ICLR 2018, section 3.3";
  info.formula = "those of the system that runs in the step";
  info.stage = true;
  info.goes_around = true;
  info.options = {{"steps", "100", "steps of training before the system behind takes over"},
                  {"with", "dense", "the system of these steps, without state; its options behind '/'"}};
  info.other_option = "with";
  info.first_steps_option = "steps";
  info.first_steps_end = "the system behind it begins";
  info.make = [](const Options& options, Inner inner) -> std::unique_ptr<Synchronizer> {
    std::string first = options.text("with");
    std::ranges::replace(first, '/', ':');  // as a spec has it elsewhere
    return std::make_unique<WarmUp>(static_cast<std::uint64_t>(options.integer("steps", 0, 1'000'000'000)),
                                    std::move(first), std::move(inner.other), std::move(inner.synchronizer));
  };
  return info;
}

}  // namespace thinwire
