#include "stages/momentum_correction.h"

#include "kernels/dense/dense.h"
#include "kernels/rows/row_access.h"
#include "stages/forwarding.h"

namespace thinwire {
namespace {

class MomentumCorrection final : public ForwardingWithVector {
 public:
  MomentumCorrection(float momentum, std::unique_ptr<Synchronizer> inner)
      : ForwardingWithVector(kVelocity, std::move(inner)), momentum_(momentum) {}

  void synchronize(BucketId bucket, Span<float> gradient, Span<float> residual, Step& step) override {
    require_matching(gradient, residual);
    const Span<float> velocity = vectors_.open(step.executor, bucket, gradient.size());
    // The corrected gradient is overwritten with the mean, and whether the step counts is known only
    // afterwards.
    const Span<float> corrected = step.scratch.take<float>(gradient.size());
    correct_by_momentum(step.executor, momentum_, velocity, gradient, corrected);
    inner().synchronize(bucket, gradient, residual, step);
    if (!step.report.finite) return;
    keep_undelivered(step, corrected, velocity);
  }

 private:
  /// velocity = corrected, cleared where the step delivered.
  static void keep_undelivered(Step& step, Span<const float> corrected, Span<float> velocity) {
    const Delivered& delivered = step.delivered;
    switch (delivered.kind) {
      case Delivered::Kind::all:
        fill(step.executor, velocity, 0);
        break;
      case Delivered::Kind::bitset:
        copy(step.executor, corrected, velocity);
        clear_bits(step.executor, delivered.bits, velocity);
        break;
      case Delivered::Kind::indices:
        copy(step.executor, corrected, velocity);
        fill_rows(step.executor, delivered.indices, 1, 0, velocity);
        break;
    }
  }

  float momentum_;
};

}  // namespace

std::unique_ptr<Synchronizer> correct_momentum(float momentum, std::unique_ptr<Synchronizer> inner) {
  return std::make_unique<MomentumCorrection>(momentum, std::move(inner));
}

SystemInfo momentum_correction_info() {
  SystemInfo info;
  info.name = "mc";
  info.summary = "momentum before compression, cleared where elements were delivered";
  info.paper = "Lin et al., Deep Gradient Compression, ICLR 2018, section 3.2";
  info.formula = "that of the system behind it";
  info.stage = true;
  info.corrects_momentum = true;
  info.state = {kVelocity};
  info.undoes_steps = true;
  info.options = {{"momentum", "0.9", "decay of the velocity per step, 0 to 1"}};
  info.make = [](const Options& options, Inner inner) -> std::unique_ptr<Synchronizer> {
    return correct_momentum(static_cast<float>(options.real("momentum", 0, 1)),
                            std::move(inner.synchronizer));
  };
  return info;
}

}  // namespace thinwire
