// Dense all-reduce: the engine's own float32 sum of every rank's gradient divided by the number of ranks.
// What every system is compared with. Divided first, as DistributedDataParallel does: then training is the
// same as under plain DDP to the last bit, and a sum does not overflow where the mean would not.
//
// A gradient of 16-bit floats is summed in its type unless sum=float32, which is for whoever holds such a
// gradient to do (Synchronizer::is_plain_sum); what comes here is float32.
//
// Bytes per rank: those of a ring, 2(W-1)/W * 4 d, which engines with other algorithms are counted as. In a
// reduce-scatter half of them, in frames of floats from each rank to each.

#include "kernels/dense/dense.h"
#include "baselines/baselines.h"
#include "exchange/collectives.h"
#include "exchange/reduce_scatter.h"

namespace thinwire {
namespace {

class Dense final : public Synchronizer {
 public:
  explicit Dense(bool sums_in_type) : sums_in_type_(sums_in_type) {}

  bool is_plain_sum() const override { return sums_in_type_; }
  bool keeps_little(BucketId) const override { return true; }

  void synchronize(BucketId bucket, Span<float> gradient, Span<float> residual, Step& step) override {
    step.communicator.commit_exchange();
    if (step.reduce_scatter) return reduce_scatter_floats(bucket, gradient, residual, step);
    step.clock.enter(Phase::exchange);  // its passes belong to the mean that an all-reduce is
    if (!residual.empty()) add(step.executor, gradient, residual);
    // The mark in the first element tells every rank, which saves another pass over the mean.
    if (!scale(step.executor, gradient, 1.0f / static_cast<float>(step.communicator.size()))) {
      mark_not_finite(step.executor, gradient);
    }
    all_reduce_sum(step, gradient);
    step.report.finite = all_finite(step.executor, gradient.first(gradient.empty() ? 0 : 1));
    if (!step.report.finite || residual.empty()) return;
    fill(step.executor, step.turn.write(residual).after, 0);
    step.report.residual_norm = 0;
  }

  std::uint64_t payload_bytes(const Workload& workload) const override {
    if (workload.reduce_scatter) {
      return reduce_scatter_bytes(workload.elements, {.bits = 32, .type = FrameType::floats},
                                  workload.world_size);
    }
    return workload.ring_sent_bytes(workload.elements, sizeof(float));
  }

 private:
  bool sums_in_type_;
};

}  // namespace

SystemInfo dense_info() {
  SystemInfo info;
  info.name = "dense";
  info.summary = "float32 all-reduce of the engine";
  info.paper = "the baseline of all five papers";
  info.formula = "2(W-1)/W * 4d";
  info.lossless = true;
  info.turns_residual = true;
  info.reduce_scatters = true;
  info.options = {
      {"sum", "type", "gradients in 16 bits: summed in their type, as plain DDP does, or in float32"}};
  info.make = [](const Options& options, Inner) -> std::unique_ptr<Synchronizer> {
    return std::make_unique<Dense>(options.choice("sum", {"type", "float32"}) == "type");
  };
  return info;
}

}  // namespace thinwire
