// EF-signSGD and SSDM: signs with one scale for all, codes of one bit whose table is the scale. All-gathered:
// the growing sums that the Marsit paper speaks of cannot carry a scale per worker on a ring. That is exact,
// and cheaper than growing sums up to 8 workers.
//
// EF-signSGD: signs scaled by the mean magnitude, with error feedback. Source: S. P. Karimireddy et al.,
// "Error feedback fixes SignSGD and other gradient compression schemes", ICML 2019, algorithm 1; a baseline
// of Marsit (section 5).
//
//   p --> Q(p) = |p|_1 / d * sign(p) --all-gather--> mean of all Q, residual = p - Q(p)
//
// The paper scales per layer; here the unit is the bucket, and a rank's part of it in a reduce-scatter.
//
// SSDM: stochastic signs, unbiased. Source: M. Safaryan, P. Richtarik, "Stochastic sign descent methods",
// ICML 2021. It is a baseline of Marsit, section 5 and appendix A. The probability here is appendix A's,
// which sums to 1; section 3.2's lacks the factor 2.
//
//   P(+1) = 1/2 + p_i / (2 |p|_2)
//   Q(p) = |p|_2 * (+-1) --all-gather--> mean of all Q, residual = p - Q(p)
//
// E[Q(p)] = p, at a variance of about d |p|^2: every element of Q is as large as the whole vector's norm.
//
// Bytes per rank: (W - 1) * (8 + ceil(d/8)). A scale that is not finite on any rank makes the step non-finite
// on all.

#include <cmath>

#include "baselines/baselines.h"
#include "exchange/reduce_scatter.h"
#include "kernels/dense/dense.h"
#include "kernels/signs/random_signs.h"
#include "kernels/signs/sign_bits.h"
#include "wire/payloads.h"

namespace thinwire {
namespace {

/// The table is the scale and four zero bytes.
constexpr CodedShape kShape{.bits = 1, .table_floats = 2, .type = FrameType::scaled_sign_bits};

class ScaledSignCoder : public Coder {
 public:
  double scale() const { return scale_; }

  bool encode(Span<float> table, Span<std::uint64_t> codes) override {
    const auto scale = static_cast<float>(scale_);
    if (!std::isfinite(scale)) return false;
    table[0] = scale;
    table[1] = 0;
    pack(codes);
    return true;
  }

  void prepare(std::size_t, Span<const float> table) override { require_scale(table); }

  double average(Executor& executor, Span<const CodedFrame> frames, std::size_t self, Span<float> gradient,
                 ResidualSpan residual) const override {
    const auto vectors = step_.workspace.take<ScaledSigns>(frames.size());
    for (std::size_t rank = 0; rank < frames.size(); ++rank) {
      vectors[rank] = {frames[rank].codes(), frames[rank].table()[0]};
    }
    return average_signs(executor, vectors, self, gradient, residual);
  }

 protected:
  ScaledSignCoder(Step& step, double scale, Span<const float> gradient, Span<const float> residual)
      : step_(step), scale_(scale), gradient_(gradient), residual_(residual) {}

  virtual void pack(Span<std::uint64_t> bits) = 0;

  Step& step_;
  double scale_;
  Span<const float> gradient_;
  Span<const float> residual_;
};

class EfSignCoder final : public ScaledSignCoder {
 public:
  EfSignCoder(Step& step, Span<const float> gradient, Span<const float> residual)
      : ScaledSignCoder(
            step, sum_of_magnitudes(step.executor, gradient, residual) / static_cast<double>(gradient.size()),
            gradient, residual) {}

 private:
  void pack(Span<std::uint64_t> bits) override { pack_signs(step_.executor, gradient_, residual_, bits); }
};

class SsdmCoder final : public ScaledSignCoder {
 public:
  SsdmCoder(BucketId bucket, Step& step, Span<const float> gradient, Span<const float> residual)
      : ScaledSignCoder(step, std::sqrt(sum_of_squares(step.executor, gradient, residual)), gradient,
                        residual),
        stream_(random_stream(step.seed, step.index, bucket, RandomPurpose::stochastic_sign,
                              static_cast<std::uint32_t>(step.communicator.rank()))) {}

 private:
  void pack(Span<std::uint64_t> bits) override {
    const auto factor = static_cast<float>(scale_ > 1e-37 ? 0.5 / scale_ : 0.0);
    stochastic_signs(step_.executor, stream_, gradient_, residual_, factor, bits);
  }

  RandomStream stream_;
};

class ScaledSignSystem : public Synchronizer {
 public:
  std::uint64_t payload_bytes(const Workload& workload) const override {
    if (workload.reduce_scatter) return reduce_scatter_bytes(workload.elements, kShape, workload.world_size);
    return coded_bytes(workload.elements, kShape, workload.world_size);
  }

 protected:
  static void average(BucketId bucket, Span<float> gradient, Span<float> residual, Step& step,
                      ScaledSignCoder&& coder) {
    average_coded(bucket, gradient, residual, step, kShape, coder);
    if (step.report.finite) step.report.scale = coder.scale();
  }
};

class EfSignSgd final : public ScaledSignSystem {
 public:
  void synchronize(BucketId bucket, Span<float> gradient, Span<float> residual, Step& step) override {
    if (!step.reduce_scatter) {
      return average(bucket, gradient, residual, step, EfSignCoder(step, gradient, residual));
    }
    reduce_scatter_coded(
        bucket, gradient, residual, step, [](std::size_t) { return kShape; },
        [&](std::size_t, Span<const float> part, Span<const float> left) {
          return EfSignCoder(step, part, left);
        });
  }
};

class Ssdm final : public ScaledSignSystem {
 public:
  void synchronize(BucketId bucket, Span<float> gradient, Span<float> residual, Step& step) override {
    average(bucket, gradient, residual, step, SsdmCoder(bucket, step, gradient, residual));
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
  info.make = [](const Options&, Inner) { return std::make_unique<EfSignSgd>(); };
  return info;
}

SystemInfo ssdm_info() {
  SystemInfo info;
  info.name = "ssdm";
  info.summary = "unbiased stochastic signs scaled by |p|_2, all-gathered";
  info.paper = "Safaryan and Richtarik, ICML 2021";
  info.formula = "(W-1) * (ceil(d/8) + 8)";
  info.turns_residual = true;
  info.make = [](const Options&, Inner) { return std::make_unique<Ssdm>(); };
  return info;
}

}  // namespace thinwire
