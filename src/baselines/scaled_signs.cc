#include "baselines/scaled_signs.h"

#include <cmath>

#include "exchange/coded_exchange.h"
#include "kernels/signs/sign_bits.h"
#include "wire/scaled_sign_payload.h"

namespace thinwire {
namespace {

/// The table is the scale and four zero bytes.
constexpr CodedShape kShape{.bits = 1, .table_floats = 2, .type = FrameType::scaled_sign_bits};

class ScaledSignCoder final : public Coder {
 public:
  ScaledSignCoder(Step& step, double scale, PackSigns pack)
      : workspace_(step.workspace), scale_(static_cast<float>(scale)), pack_(pack) {}

  bool encode(Span<float> table, Span<std::uint64_t> codes) override {
    if (!std::isfinite(scale_)) return false;
    table[0] = scale_;
    table[1] = 0;
    pack_(codes);
    return true;
  }

  void prepare(std::size_t, Span<const float> table) override { require_scale(table); }

  double average(Executor& executor, Span<const CodedFrame> frames, std::size_t self, Span<float> gradient,
                 ResidualSpan residual) const override {
    const auto vectors = workspace_.take<ScaledSigns>(frames.size());
    for (std::size_t rank = 0; rank < frames.size(); ++rank) {
      vectors[rank] = {frames[rank].codes(), frames[rank].table()[0]};
    }
    return average_signs(executor, vectors, self, gradient, residual);
  }

 private:
  Workspace& workspace_;
  float scale_;
  PackSigns pack_;
};

}  // namespace

void average_scaled_signs(BucketId bucket, Span<float> gradient, Span<float> residual, Step& step,
                          double scale, PackSigns pack) {
  ScaledSignCoder coder(step, scale, pack);
  average_coded(bucket, gradient, residual, step, kShape, coder);
  if (step.report.finite) step.report.scale = scale;
}

std::uint64_t scaled_signs_payload_bytes(const Workload& workload) {
  return coded_bytes(workload.elements, kShape, workload.world_size);
}

}  // namespace thinwire
