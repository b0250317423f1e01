#include "stages/learning_rate.h"

#include <algorithm>
#include <sstream>
#include <stdexcept>

#include "kernels/dense/dense.h"
#include "stages/forwarding.h"

namespace thinwire {
namespace {

class LearningRateInside final : public Forwarding {
 public:
  using Forwarding::Forwarding;

  void synchronize(BucketId bucket, Span<float> gradient, Span<float> residual, Step& step) override {
    const double rate = step.learning_rate;
    if (rate == 0) {
      // As in the first step of a rise from 0. The gradient times 0 adds nothing, and whatever was delivered
      // the optimizer would multiply by 0: so it is lost if it leaves the residual.
      step.report.formula_bytes = 0;
      std::fill(gradient.begin(), gradient.end(), 0.0f);
      return;
    }
    if (!(rate >= 1e-30 && rate <= 1e30)) {
      std::ostringstream text;
      text << "a learning rate of " << rate << " in step " << step.index
           << " cannot be applied before compression: what is delivered is divided by it; give 0 or more, or "
              "leave it outside (lr_after=on; of marsit, another eta_s than theorem)";
      throw std::invalid_argument(text.str());
    }
    if (rate == 1) {
      inner().synchronize(bucket, gradient, residual, step);
      return;
    }
    scale(step.executor, gradient, static_cast<float>(rate));
    inner().synchronize(bucket, gradient, residual, step);
    if (!step.report.finite) return;
    step.clock.enter(Phase::decompress);
    step.report.finite = scale(step.executor, gradient, static_cast<float>(1 / rate));
  }
};

}  // namespace

std::unique_ptr<Synchronizer> put_learning_rate_inside(std::unique_ptr<Synchronizer> inner) {
  return std::make_unique<LearningRateInside>(std::move(inner));
}

}  // namespace thinwire
