// SSDM: stochastic signs, unbiased.
//
// Source: M. Safaryan, P. Richtarik, "Stochastic sign descent methods", ICML 2021. It is a baseline of
// Marsit, section 5 and appendix A. The probability here is appendix A's, which sums to 1; section 3.2's
// lacks the factor 2.
//
//   P(+1) = 1/2 + p_i / (2 |p|_2)
//   Q(p) = |p|_2 * (+-1) --all-gather--> mean of all Q, residual = p - Q(p)
//
// E[Q(p)] = p, at a variance of about d |p|^2: every element of Q is as large as the whole vector's norm.

#include <cmath>

#include "baselines/baselines.h"
#include "baselines/scaled_signs.h"
#include "kernels/dense/dense.h"
#include "kernels/signs/stochastic_signs.h"

namespace thinwire {
namespace {

class Ssdm final : public Synchronizer {
 public:
  void synchronize(BucketId bucket, Span<float> gradient, Span<float> residual, Step& step) override {
    require_matching(gradient, residual);
    const double norm = std::sqrt(sum_of_squares(step.executor, gradient, residual));
    const RandomStream stream = random_stream(step.seed, step.index, bucket, RandomPurpose::stochastic_sign,
                                              static_cast<std::uint32_t>(step.communicator.rank()));
    average_scaled_signs(bucket, gradient, residual, step, norm, [&](Span<std::uint64_t> bits) {
      const auto factor = static_cast<float>(norm > 1e-37 ? 0.5 / norm : 0.0);
      stochastic_signs(step.executor, stream, gradient, residual, factor, bits);
    });
  }

  std::uint64_t payload_bytes(const Workload& workload) const override {
    return scaled_signs_payload_bytes(workload);
  }
};

}  // namespace

SystemInfo ssdm_info() {
  SystemInfo info;
  info.name = "ssdm";
  info.summary = "unbiased stochastic signs scaled by |p|_2, all-gathered";
  info.paper = "Safaryan and Richtarik, ICML 2021";
  info.formula = "(W-1) * (ceil(d/8) + 8)";
  info.turns_residual = true;
  info.make = [](const Options&, Inner) -> std::unique_ptr<Synchronizer> { return std::make_unique<Ssdm>(); };
  return info;
}

}  // namespace thinwire
