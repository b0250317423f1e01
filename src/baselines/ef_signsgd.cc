// EF-signSGD: signs scaled by the mean magnitude, with error feedback.
//
// Source: S. P. Karimireddy et al., "Error feedback fixes SignSGD and other gradient compression schemes",
// ICML 2019, algorithm 1; a baseline of Marsit (section 5).
//
//   p --> Q(p) = |p|_1 / d * sign(p) --all-gather--> mean of all Q, residual = p - Q(p)
//
// The paper scales per layer; here the unit is the bucket, and a rank's part of it in a reduce-scatter.
// On a ring the growing sums that the Marsit paper
// speaks of cannot carry a scale per worker, so the frames are gathered: exact, and cheaper than growing sums
// up to 8 workers.

#include "baselines/baselines.h"
#include "baselines/scaled_signs.h"
#include "kernels/dense/dense.h"
#include "kernels/signs/sign_bits.h"

namespace thinwire {
namespace {

class EfSignSgd final : public Synchronizer {
 public:
  void synchronize(BucketId bucket, Span<float> gradient, Span<float> residual, Step& step) override {
    require_matching(gradient, residual);
    const auto scale_of = [&](Span<const float> part, Span<const float> left) {
      return sum_of_magnitudes(step.executor, part, left) / static_cast<double>(part.size());
    };
    if (step.reduce_scatter) return reduce_scatter_signs(bucket, gradient, residual, step, scale_of);
    const double scale = scale_of(gradient, residual);
    average_scaled_signs(bucket, gradient, residual, step, scale, [&](Span<std::uint64_t> bits) {
      pack_signs(step.executor, gradient, residual, bits);
    });
  }

  std::uint64_t payload_bytes(const Workload& workload) const override {
    return scaled_signs_payload_bytes(workload);
  }
};

}  // namespace

SystemInfo ef_signsgd_info() {
  SystemInfo info;
  info.name = "ef_signsgd";
  info.summary = "signs scaled by mean |p|, all-gathered, with error feedback";
  info.paper = "Karimireddy et al., ICML 2019";
  info.formula = "(W-1) * (ceil(d/8) + 8)";
  info.feedback_default = true;
  info.turns_residual = true;
  info.reduce_scatters = true;
  info.make = [](const Options&, Inner) -> std::unique_ptr<Synchronizer> {
    return std::make_unique<EfSignSgd>();
  };
  return info;
}

}  // namespace thinwire
