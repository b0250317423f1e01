#include "stages/momentum_correction.h"

#include "core/bucket_vectors.h"
#include "kernels/dense/dense.h"
#include "kernels/rows/row_access.h"

namespace thinwire {
namespace {

class MomentumCorrection final : public Synchronizer {
 public:
  MomentumCorrection(float momentum, std::unique_ptr<Synchronizer> inner)
      : momentum_(momentum), inner_(std::move(inner)) {}

  void synchronize(BucketId bucket, Span<float> gradient, Span<float> residual, Step& step) override {
    require_matching(gradient, residual);
    const Span<float> velocity = velocities_.open(step.executor, bucket, gradient.size());
    // The corrected gradient is overwritten with the mean, and whether the step counts is known only
    // afterwards.
    const Span<float> corrected = step.scratch.take<float>(gradient.size());
    correct_by_momentum(step.executor, momentum_, velocity, gradient, corrected);
    inner_->synchronize(bucket, gradient, residual, step);
    if (!step.report.finite) return;
    keep_undelivered(step, corrected, velocity);
  }

  void require_world(int world_size) const override { inner_->require_world(world_size); }

  bool freezes_variance(std::uint64_t step) const override { return inner_->freezes_variance(step); }

  std::uint64_t payload_bytes(const Workload& workload) const override {
    return inner_->payload_bytes(workload);
  }

  void save(BucketWriter& writer) const override {
    velocities_.save(writer);
    inner_->save(writer);
  }

  void load(const BucketReader& reader) override {
    velocities_.load(reader);
    inner_->load(reader);
  }

  void keep_step(BucketId bucket) override {
    velocities_.keep(bucket);
    inner_->keep_step(bucket);
  }
  void undo_step(BucketId bucket) override {
    velocities_.undo(bucket);
    inner_->undo_step(bucket);
  }
  void undo_step(BucketId bucket, std::size_t begin, std::size_t count) override {
    velocities_.undo(bucket, begin, count);
    inner_->undo_step(bucket, begin, count);
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
  std::unique_ptr<Synchronizer> inner_;
  BucketVectors velocities_{kVelocity};
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
