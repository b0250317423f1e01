#include "stages/momentum.h"

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

class InnerMomentum final : public ForwardingWithVector {
 public:
  InnerMomentum(float momentum, MomentumTravels travels, std::unique_ptr<Synchronizer> inner)
      : ForwardingWithVector(kDeliveredMomentum, std::move(inner)), momentum_(momentum), travels_(travels) {}

  void synchronize(BucketId bucket, Span<float> gradient, Span<float> residual, Step& step) override {
    const Span<float> delivered = vectors_.open(step.executor, bucket, gradient.size());
    if (travels_ == MomentumTravels::while_variance_is_frozen && !inner().freezes_variance(step.index)) {
      inner().synchronize(bucket, gradient, residual, step);
      if (!step.report.finite) return;
      scale(step.executor, delivered, momentum_);
      add(step.executor, delivered, gradient);
      return;
    }
    add_momentum(step.executor, momentum_, delivered, gradient);
    inner().synchronize(bucket, gradient, residual, step);
    if (step.report.finite) take_momentum(step.executor, momentum_, delivered, gradient);
  }

 private:
  float momentum_;
  MomentumTravels travels_;
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
  info.bears_momentum = [](const Options& options) { return options.real("momentum", 0, 1) == 0; };
  info.state = {kVelocity};
  info.undoes_steps = true;
  info.options = {{"momentum", "0.9", "decay of the velocity per step, 0 to 1"}};
  info.make = [](const Options& options, Inner inner) -> std::unique_ptr<Synchronizer> {
    return correct_momentum(static_cast<float>(options.real("momentum", 0, 1)),
                            std::move(inner.synchronizer));
  };
  return info;
}

std::unique_ptr<Synchronizer> keep_momentum(float momentum, MomentumTravels travels,
                                            std::unique_ptr<Synchronizer> inner) {
  return std::make_unique<InnerMomentum>(momentum, travels, std::move(inner));
}

SystemInfo inner_momentum_info() {
  SystemInfo info;
  info.name = "momentum";
  info.incomparable = [](const Options&) { return "put momentum in front"; };
  info.summary = "momentum travels, and the gradient that gives the optimizer this momentum is delivered";
  info.paper = "Tang et al., 1-bit Adam, ICML 2021, algorithm 1";
  info.formula = "that of the system behind it";
  info.stage = true;
  info.state = {kDeliveredMomentum};
  info.undoes_steps = true;
  info.turns_residual = true;
  info.optimizers_momentum_option = "momentum";
  info.options = {{"momentum", "0.9", "the optimizer's momentum, or Adam's beta1, 0 to 1"}};
  info.make = [](const Options& options, Inner inner) -> std::unique_ptr<Synchronizer> {
    return keep_momentum(static_cast<float>(options.real("momentum", 0, 1)), MomentumTravels::always,
                         std::move(inner.synchronizer));
  };
  return info;
}

}  // namespace thinwire
