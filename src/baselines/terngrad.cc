// TernGrad: every element becomes -n, 0 or n at random, unbiased.
//
// Source: W. Wen et al., "TernGrad: ternary gradients to reduce communication in distributed deep learning",
// NeurIPS 2017.
//
//   p of a parameter, n = max |p|: sign(p) n with probability |p| / n, else 0
//     --all-gather--> mean of all Q(p), residual = p - Q(p)
//
// E[Q(p)] = p and E|Q(p) - p|^2 = n |p|_1 - |p|_2^2. clip=c cuts |p| to c times the root mean square first
// (section 3.3, with c = 2.5). That is less variance, but what is cut is lost. So Q is biased unless
// feedback=on keeps it.
//
// Bytes per rank: (W-1) * (ceil(d/4) + 4 scales).
//
// Deviations:
// - A code has 2 bits where log2(3) would do.
// - The paper's workers share the largest n, so that a server can add up integers. Here each rank's codes are
//   decoded with its own n, which is never larger.
// - Clipping takes the root mean square for the standard deviation. A gradient's mean is small beside it.

#include <algorithm>
#include <cmath>
#include <limits>

#include "baselines/baselines.h"
#include "baselines/stochastic_quantizer.h"
#include "kernels/codes/norms.h"
#include "kernels/codes/quantize.h"

namespace thinwire {
namespace {

class TernaryCoder final : public RoundingCoder {
 public:
  TernaryCoder(BucketId bucket, Step& step, const QuantizationLevels& levels, float clip,
               Span<const std::size_t> ends, Span<const float> gradient, Span<const float> residual)
      : RoundingCoder(bucket, step, levels, {.ends = ends}, gradient, residual), clip_(clip), ends_(ends) {}

  bool encode(Span<float> table, Span<std::uint64_t> codes) override {
    const auto squares = workspace_.take<double>(clip_ == 0 ? 0 : ends_.size());
    measure_ranges(executor_, ends_, gradient_, residual_, table, squares);
    std::size_t begin = 0;
    for (std::size_t range = 0; range < ends_.size(); begin = ends_[range], ++range) {
      float& norm = table[range];
      if (!std::isfinite(norm)) return false;
      const std::size_t count = ends_[range] - begin;
      if (clip_ != 0 && count != 0) norm = clipped(norm, squares[range] / static_cast<double>(count));
      if (norm < std::numeric_limits<float>::min()) norm = 0;
    }
    quantize_ranges(executor_, stream_, levels_, ends_, table, gradient_, residual_, codes);
    return true;
  }

 private:
  float clipped(float largest, double mean_square) const {
    return static_cast<float>(
        std::min(static_cast<double>(largest), static_cast<double>(clip_) * std::sqrt(mean_square)));
  }

  float clip_;
  Span<const std::size_t> ends_;
};

class TernGrad final : public Synchronizer {
 public:
  TernGrad(bool per_parameter, float clip) : per_parameter_(per_parameter), clip_(clip) {}

  void synchronize(BucketId bucket, Span<float> gradient, Span<float> residual, Step& step) override {
    require_matching(gradient, residual);
    const std::size_t whole = gradient.size();
    const auto ends = per_parameter_ && !step.parameter_ends.empty() ? step.parameter_ends
                                                                     : Span<const std::size_t>(&whole, 1);
    TernaryCoder coder(bucket, step, levels_, clip_, ends, gradient, residual);
    average_coded(bucket, gradient, residual, step, {levels_.bits, ends.size()}, coder);
  }

  std::uint64_t payload_bytes(const Workload& workload) const override {
    const std::size_t scales = per_parameter_ ? std::max<std::size_t>(1, workload.parameter_ends.size()) : 1;
    return coded_bytes(workload.elements, {levels_.bits, scales}, workload.world_size);
  }

 private:
  bool per_parameter_;
  float clip_;
  QuantizationLevels levels_ = QuantizationLevels::uniform(2);
};

}  // namespace

SystemInfo terngrad_info() {
  SystemInfo info;
  info.name = "terngrad";
  info.summary = "-n, 0 or n per element at random, n the largest of its parameter; unbiased";
  info.paper = "Wen et al., TernGrad, NeurIPS 2017";
  info.formula = "(W-1) * (ceil(d/4) + 4 scales)";
  info.turns_residual = true;
  info.options = {
      {"scale", "parameter", "elements that share n: those of a parameter, or of the bucket"},
      {"clip", "0",
       "cut magnitudes to so many standard deviations first (the paper: 2.5), which biases; 0: off"}};
  info.make = [](const Options& options, Inner) -> std::unique_ptr<Synchronizer> {
    return std::make_unique<TernGrad>(options.choice("scale", {"parameter", "bucket"}) == "parameter",
                                      static_cast<float>(options.real("clip", 0, 1e6)));
  };
  return info;
}

}  // namespace thinwire
