#include "stages/learning_rate.h"

#include <sstream>
#include <stdexcept>

#include "kernels/dense/dense.h"

namespace thinwire {
namespace {

class LearningRateInside final : public Synchronizer {
 public:
  explicit LearningRateInside(std::unique_ptr<Synchronizer> inner) : inner_(std::move(inner)) {}

  void synchronize(BucketId bucket, Span<float> gradient, Span<float> residual, Step& step) override {
    const double rate = step.learning_rate;
    if (!(rate >= 1e-30 && rate <= 1e30)) {
      std::ostringstream text;
      text
          << "a learning rate of " << rate << " in step " << step.index
          << " cannot be applied before compression: what is delivered is divided by it; keep it above 0, or "
             "take lr_after=on";
      throw std::invalid_argument(text.str());
    }
    if (rate == 1) {
      inner_->synchronize(bucket, gradient, residual, step);
      return;
    }
    scale(step.executor, gradient, static_cast<float>(rate));
    inner_->synchronize(bucket, gradient, residual, step);
    if (!step.report.finite) return;
    step.clock.enter(Phase::decompress);
    step.report.finite = scale(step.executor, gradient, static_cast<float>(1 / rate));
  }

  void require_world(int world_size) const override { inner_->require_world(world_size); }
  std::uint64_t payload_bytes(const Workload& workload) const override {
    return inner_->payload_bytes(workload);
  }
  void save(BucketWriter& writer) const override { inner_->save(writer); }
  void load(const BucketReader& reader) override { inner_->load(reader); }
  void keep_step(BucketId bucket) override { inner_->keep_step(bucket); }
  void undo_step(BucketId bucket) override { inner_->undo_step(bucket); }
  void undo_step(BucketId bucket, std::size_t begin, std::size_t count) override {
    inner_->undo_step(bucket, begin, count);
  }

 private:
  std::unique_ptr<Synchronizer> inner_;
};

}  // namespace

std::unique_ptr<Synchronizer> put_learning_rate_inside(std::unique_ptr<Synchronizer> inner) {
  return std::make_unique<LearningRateInside>(std::move(inner));
}

}  // namespace thinwire
