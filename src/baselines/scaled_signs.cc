#include "baselines/scaled_signs.h"

#include <cmath>

#include "exchange/reduce_scatter.h"
#include "kernels/signs/sign_bits.h"
#include "wire/scaled_sign_payload.h"

namespace thinwire {
namespace {

/// The table is the scale and four zero bytes.
constexpr CodedShape kShape{.bits = 1, .table_floats = 2, .type = FrameType::scaled_sign_bits};

class ScaledSignCoder : public Coder {
 public:
  ScaledSignCoder(Step& step, double scale) : step_(step), scale_(static_cast<float>(scale)) {}

  bool encode(Span<float> table, Span<std::uint64_t> codes) override {
    if (!std::isfinite(scale_)) return false;
    table[0] = scale_;
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
  virtual void pack(Span<std::uint64_t> bits) = 0;

  Step& step_;

 private:
  float scale_;
};

/// Whose bits somebody else decides.
class GivenBits final : public ScaledSignCoder {
 public:
  GivenBits(Step& step, double scale, PackSigns pack) : ScaledSignCoder(step, scale), pack_(pack) {}

 private:
  void pack(Span<std::uint64_t> bits) override { pack_(bits); }

  PackSigns pack_;
};

/// Whose bits are the signs.
class SignsOfPart final : public ScaledSignCoder {
 public:
  SignsOfPart(Step& step, double scale, Span<const float> gradient, Span<const float> residual)
      : ScaledSignCoder(step, scale), gradient_(gradient), residual_(residual) {}

 private:
  void pack(Span<std::uint64_t> bits) override { pack_signs(step_.executor, gradient_, residual_, bits); }

  Span<const float> gradient_;
  Span<const float> residual_;
};

}  // namespace

void average_scaled_signs(BucketId bucket, Span<float> gradient, Span<float> residual, Step& step,
                          double scale, PackSigns pack) {
  GivenBits coder(step, scale, pack);
  average_coded(bucket, gradient, residual, step, kShape, coder);
  if (step.report.finite) step.report.scale = scale;
}

void reduce_scatter_signs(BucketId bucket, Span<float> gradient, Span<float> residual, Step& step,
                          FunctionRef<double(Span<const float> gradient, Span<const float> residual)> scale) {
  reduce_scatter_coded(
      bucket, gradient, residual, step, [](std::size_t) { return kShape; },
      [&](std::size_t, Span<const float> part, Span<const float> left) {
        return SignsOfPart(step, scale(part, left), part, left);
      });
}

std::uint64_t scaled_signs_payload_bytes(const Workload& workload) {
  if (workload.reduce_scatter) return reduce_scatter_bytes(workload.elements, kShape, workload.world_size);
  return coded_bytes(workload.elements, kShape, workload.world_size);
}

}  // namespace thinwire
