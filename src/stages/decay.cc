// A residual that fades: before each step it is multiplied by a factor. What waits long was computed for
// weights that have moved on meanwhile; a factor below 1 has it count for less with every step that it waits.
//
//   p = gradient + factor * residual --> inner system --> mean, residual
//
// What the factor takes away is dropped for good and on purpose, so the contract's equation reads
//
//   sum over ranks of (gradient_in + factor * residual_in) = W * mean + sum over ranks of residual_out
//
// What waits k steps is delivered with the weight factor^k. Of a constant gradient that a system delivers
// every k steps, (1 - factor^k) / (k (1 - factor)) comes through: 0.63 of it for 0.99 and k = 100. The factor
// of a step without effect (a value that is not finite, an error) does not count.
//
// Bytes per rank: those of the inner system.

#include <stdexcept>

#include "kernels/dense/dense.h"
#include "stages/forwarding.h"
#include "stages/stages.h"

namespace thinwire {
namespace {

class Decay final : public Forwarding {
 public:
  Decay(float factor, std::unique_ptr<Synchronizer> inner) : Forwarding(std::move(inner)), factor_(factor) {}

  void synchronize(BucketId bucket, Span<float> gradient, Span<float> residual, Step& step) override {
    if (residual.empty() || factor_ == 1) return inner().synchronize(bucket, gradient, residual, step);
    // The residual must be as it was where the step does not count, and a product cannot be undone to the
    // bit.
    const auto faded = step.scratch.take<float>(residual.size());
    copy<float>(step.executor, residual, faded);
    scale(step.executor, faded, factor_);
    inner().synchronize(bucket, gradient, faded, step);
    if (step.report.finite) copy<float>(step.executor, faded, residual);
  }

 private:
  float factor_;
};

}  // namespace

SystemInfo decay_info() {
  SystemInfo info;
  info.name = "decay";
  info.summary = "a residual that is multiplied by a factor before each step";
  info.paper = "none";
  info.formula = "that of the system behind it";
  info.stage = true;
  info.forgets = true;
  info.incomparable = [](const Options&) { return "put decay in front"; };
  info.options = {{"factor", "0.99", "what is left of a residual after a step, 0 to 1"}};
  info.make = [](const Options& options, Inner inner) -> std::unique_ptr<Synchronizer> {
    if (!inner.feedback) {
      throw std::invalid_argument(
          "decay in front of a system without a residual has no effect: leave it out, or give that system "
          "feedback=on");
    }
    return std::make_unique<Decay>(static_cast<float>(options.real("factor", 0, 1)),
                                   std::move(inner.synchronizer));
  };
  return info;
}

}  // namespace thinwire
