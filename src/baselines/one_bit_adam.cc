// 1-bit Adam and 0/1 Adam, as far as whoever synchronizes gradients can hold them: Adam's momentum travels in
// one bit per element, and Adam's variance stands still meanwhile.
//
// Sources: H. Tang et al., "1-bit Adam: Communication Efficient Large-Scale Training with Adam's Convergence
// Speed", ICML 2021 (arXiv 2102.02888), algorithm 1. Y. Lu et al., "Maximizing Communication Efficiency for
// Large-scale Training via 0/1 Adam" (arXiv 2202.06009), algorithm 1.
//
//   gradient --+ beta1 V--> v --signs on both legs--> V' --- beta1 V--> what Adam is given
//   gradient --dense--> what Adam is given, + beta1 V --> V'
//
// V is the momentum delivered so far (stages/inner_momentum.h). Adam makes it its own again: m = (1 - beta1)
// V'. Whoever steps the optimizer asks Session::variance_is_frozen() and holds the second moment in these
// steps.
//
// one_bit_adam: dense in the first `freeze` steps, then signs. The variance is frozen with the first signs.
//
// zero_one_adam: dense in the steps k_0 = 0, k_(j+1) = k_j + 2^floor(j / kappa) up to `freeze`, where the
// variance moves; signs in all others. The dense steps leave the residual where it is, so that the variance
// sees the mean of gradients and nothing else. The paper's steps without any exchange are not here: all ranks
// get the same mean in every step.
//
// Bytes per rank: dense's, or those of sign_shards.h.

#include <utility>

#include "baselines/baselines.h"
#include "baselines/sign_shards.h"
#include "stages/inner_momentum.h"

namespace thinwire {
namespace {

class OneBitSteps : public Synchronizer {
 public:
  OneBitSteps(SignScale scale, std::unique_ptr<Synchronizer> dense)
      : scale_(scale), dense_(std::move(dense)) {}

  std::uint64_t payload_bytes(const Workload& workload) const override {
    return freezes_variance(workload.step) ? sign_shards_payload_bytes(workload)
                                           : dense_->payload_bytes(workload);
  }

 protected:
  void signs(BucketId bucket, Span<float> gradient, Span<float> residual, Step& step) const {
    average_sign_shards(bucket, gradient, residual, step, scale_);
  }
  Synchronizer& dense() const { return *dense_; }

 private:
  SignScale scale_;
  std::unique_ptr<Synchronizer> dense_;
};

class OneBitAdam final : public OneBitSteps {
 public:
  OneBitAdam(std::uint64_t freeze, SignScale scale, std::unique_ptr<Synchronizer> dense)
      : OneBitSteps(scale, std::move(dense)), freeze_(freeze) {}

  bool freezes_variance(std::uint64_t step) const override { return step >= freeze_; }

  void synchronize(BucketId bucket, Span<float> gradient, Span<float> residual, Step& step) override {
    require_matching(gradient, residual);
    if (freezes_variance(step.index)) return signs(bucket, gradient, residual, step);
    dense().synchronize(bucket, gradient, residual, step);
  }

 private:
  std::uint64_t freeze_;
};

class ZeroOneAdam final : public OneBitSteps {
 public:
  ZeroOneAdam(std::uint64_t kappa, std::uint64_t freeze, SignScale scale, std::unique_ptr<Synchronizer> dense)
      : OneBitSteps(scale, std::move(dense)), kappa_(kappa), freeze_(freeze) {}

  bool freezes_variance(std::uint64_t step) const override {
    if (step >= freeze_) return true;
    std::uint64_t interval = 1;
    while (step >= kappa_ * interval) {
      step -= kappa_ * interval;
      interval *= 2;
    }
    return step % interval != 0;
  }

  void synchronize(BucketId bucket, Span<float> gradient, Span<float> residual, Step& step) override {
    require_matching(gradient, residual);
    if (freezes_variance(step.index)) return signs(bucket, gradient, residual, step);
    dense().synchronize(bucket, gradient, {}, step);
  }

 private:
  std::uint64_t kappa_;
  std::uint64_t freeze_;
};

std::unique_ptr<Synchronizer> make_dense() {
  const SystemInfo info = dense_info();
  return info.make(Options({.name = info.name, .options = {}}, info.options), Inner{});
}

SystemInfo common_info() {
  SystemInfo info;
  info.feedback_default = true;
  info.freezes_variance = true;
  info.state = {kDeliveredMomentum};
  info.undoes_steps = true;
  info.options = {{"beta1", "0.9", "the Adam's own, 0 to 1"},
                  {"norm", "l2", "a sign's scale: l2, sqrt(mean p^2), or l1, mean |p|"}};
  return info;
}

SignScale scale_of(const Options& options) {
  return options.choice("norm", {"l1", "l2"}) == "l1" ? SignScale::l1 : SignScale::l2;
}

float beta1_of(const Options& options) {
  return static_cast<float>(options.real("beta1", 0, 1));
}

constexpr std::int64_t kMostSteps = 1'000'000'000;

}  // namespace

SystemInfo one_bit_adam_info() {
  SystemInfo info = common_info();
  info.name = "one_bit_adam";
  info.incomparable = [](const Options&) { return "take another system"; };
  info.summary = "dense, then Adam's momentum in one bit per element both ways while its variance is frozen";
  info.paper = "Tang et al., ICML 2021";
  info.formula = "2(W-1)/W * 4d in the first steps, then 2(W-1)/W * (d/8 + 4 * parameters)";
  info.options.insert(
      info.options.begin(),
      {"freeze", "100", "steps of dense training, after which the variance is frozen; 1 or more"});
  info.make = [](const Options& options, Inner) -> std::unique_ptr<Synchronizer> {
    const auto freeze = static_cast<std::uint64_t>(options.integer("freeze", 1, kMostSteps));
    return keep_momentum(beta1_of(options), MomentumTravels::while_variance_is_frozen,
                         std::make_unique<OneBitAdam>(freeze, scale_of(options), make_dense()));
  };
  return info;
}

SystemInfo zero_one_adam_info() {
  SystemInfo info = common_info();
  info.name = "zero_one_adam";
  info.incomparable = [](const Options&) { return "take another system"; };
  info.summary =
      "dense steps ever further apart, in which Adam's variance moves; one bit per element between them";
  info.paper = "Lu et al., 0/1 Adam, ICLR 2023";
  info.formula = "2(W-1)/W * 4d where the variance moves, else 2(W-1)/W * (d/8 + 4 * parameters)";
  info.options.insert(
      info.options.begin(),
      {{"kappa", "16", "dense steps after which the distance between them doubles; 1 or more"},
       {"freeze", "100000", "steps after which the variance moves no more; 1 or more"}});
  info.make = [](const Options& options, Inner) -> std::unique_ptr<Synchronizer> {
    const auto kappa = static_cast<std::uint64_t>(options.integer("kappa", 1, kMostSteps));
    const auto freeze = static_cast<std::uint64_t>(options.integer("freeze", 1, kMostSteps));
    return keep_momentum(beta1_of(options), MomentumTravels::while_variance_is_frozen,
                         std::make_unique<ZeroOneAdam>(kappa, freeze, scale_of(options), make_dense()));
  };
  return info;
}

}  // namespace thinwire
