#include "stages/inner_momentum.h"

#include "core/bucket_vectors.h"
#include "kernels/dense/dense.h"

namespace thinwire {
namespace {

class InnerMomentum final : public Synchronizer {
 public:
  InnerMomentum(float momentum, MomentumTravels travels, std::unique_ptr<Synchronizer> inner)
      : momentum_(momentum), travels_(travels), inner_(std::move(inner)) {}

  void synchronize(BucketId bucket, Span<float> gradient, Span<float> residual, Step& step) override {
    require_matching(gradient, residual);
    const Span<float> delivered = momenta_.open(step.executor, bucket, gradient.size());
    if (travels_ == MomentumTravels::while_variance_is_frozen && !inner_->freezes_variance(step.index)) {
      inner_->synchronize(bucket, gradient, residual, step);
      if (!step.report.finite) return;
      scale(step.executor, delivered, momentum_);
      add(step.executor, delivered, gradient);
      return;
    }
    const Span<float> decayed = step.scratch.take<float>(gradient.size());
    copy(step.executor, Span<const float>(delivered), decayed);
    scale(step.executor, decayed, momentum_);
    add(step.executor, gradient, decayed);
    inner_->synchronize(bucket, gradient, residual, step);
    if (!step.report.finite) return;
    copy(step.executor, Span<const float>(gradient), delivered);
    scale(step.executor, decayed, -1);
    add(step.executor, gradient, decayed);
  }

  void require_world(int world_size) const override { inner_->require_world(world_size); }
  bool freezes_variance(std::uint64_t step) const override { return inner_->freezes_variance(step); }

  std::uint64_t payload_bytes(const Workload& workload) const override {
    return inner_->payload_bytes(workload);
  }

  void save(BucketWriter& writer) const override {
    momenta_.save(writer);
    inner_->save(writer);
  }
  void load(const BucketReader& reader) override {
    momenta_.load(reader);
    inner_->load(reader);
  }

  void keep_step(BucketId bucket) override {
    momenta_.keep(bucket);
    inner_->keep_step(bucket);
  }
  void undo_step(BucketId bucket) override {
    momenta_.undo(bucket);
    inner_->undo_step(bucket);
  }
  void undo_step(BucketId bucket, std::size_t begin, std::size_t count) override {
    momenta_.undo(bucket, begin, count);
    inner_->undo_step(bucket, begin, count);
  }

 private:
  float momentum_;
  MomentumTravels travels_;
  std::unique_ptr<Synchronizer> inner_;
  BucketVectors momenta_{kDeliveredMomentum};
};

}  // namespace

std::unique_ptr<Synchronizer> keep_momentum(float momentum, MomentumTravels travels,
                                            std::unique_ptr<Synchronizer> inner) {
  return std::make_unique<InnerMomentum>(momentum, travels, std::move(inner));
}

SystemInfo inner_momentum_info() {
  SystemInfo info;
  info.name = "momentum";
  info.summary = "momentum travels, and the gradient that gives the optimizer this momentum is delivered";
  info.paper = "Tang et al., 1-bit Adam, ICML 2021, algorithm 1";
  info.formula = "that of the system behind it";
  info.stage = true;
  info.state = {kDeliveredMomentum};
  info.undoes_steps = true;
  info.options = {{"momentum", "0.9", "the optimizer's momentum, or Adam's beta1, 0 to 1"}};
  info.make = [](const Options& options, Inner inner) -> std::unique_ptr<Synchronizer> {
    return keep_momentum(static_cast<float>(options.real("momentum", 0, 1)), MomentumTravels::always,
                         std::move(inner.synchronizer));
  };
  return info;
}

}  // namespace thinwire
