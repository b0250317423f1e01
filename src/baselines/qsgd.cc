// QSGD and NUQSGD: random rounding to levels that are fixed in advance, unbiased.
//
// Sources: D. Alistarh et al., "QSGD: Communication-efficient SGD via gradient quantization and encoding",
// NeurIPS 2017, with s equal steps. A. Ramezani-Kebrya et al., "NUQSGD: provably communication-efficient
// data-parallel SGD via nonuniform quantization", JMLR 2021, with the levels 0, 2^-(s-1), ..., 1/2, 1.
//
//   chunk of p, its norm n: |p| / n rounded up or down at random to a level
//     --all-gather--> mean of all Q(p), residual = p - Q(p)
//
// E[Q(p)] = p. For a chunk of m elements and s equal steps E|Q(p) - p|^2 is
//   at most min(m / s^2, sqrt(m) / s) |p|^2 with norm=l2 (QSGD, lemma 3.1);
//   at most m / (4 s^2) max|p|^2 with norm=max, which CASQ's paper calls QSGD-inf.
// norm=max is the default here, since it is far smaller at few bits. With the l2 norm of thousands of
// elements nearly all of them lie between 0 and the first level.
//
// Bytes per rank: (W-1) * (ceil(bits d/8) + 4 ceil(d/chunk)).
//
// In a reduce-scatter chunks are counted from the start of each rank's part.
//
// Deviations: codes have a fixed length and are not Elias coded. Chunks are counted from the start of the
// bucket and may span parameters.

#include "baselines/baselines.h"
#include "baselines/stochastic_quantizer.h"
#include "exchange/reduce_scatter.h"

namespace thinwire {
namespace {

class FixedLevels final : public Synchronizer {
 public:
  FixedLevels(const ChunkedQuantization& chunked, const QuantizationLevels& levels)
      : chunked_(chunked), levels_(levels) {}

  void synchronize(BucketId bucket, Span<float> gradient, Span<float> residual, Step& step) override {
    require_matching(gradient, residual);
    average_quantized(bucket, gradient, residual, step, chunked_, levels_);
  }

  std::uint64_t payload_bytes(const Workload& workload) const override {
    if (workload.reduce_scatter) {
      const std::uint64_t part = workload.elements / static_cast<std::uint64_t>(workload.world_size);
      return reduce_scatter_bytes(workload.elements, chunked_.shape(part), workload.world_size);
    }
    return coded_bytes(workload.elements, chunked_.shape(workload.elements), workload.world_size);
  }

 private:
  ChunkedQuantization chunked_;
  QuantizationLevels levels_;
};

SystemInfo fixed_info(const std::string& norm, QuantizationLevels (*levels)(std::size_t bits)) {
  SystemInfo info;
  info.formula = "(W-1) * (ceil(bits d/8) + 4 ceil(d/chunk))";
  info.turns_residual = true;
  info.reduce_scatters = true;
  info.options = chunked_options(norm);
  info.make = [levels](const Options& options, Inner) {
    const ChunkedQuantization chunked = read_chunked_options(options);
    return std::make_unique<FixedLevels>(chunked, levels(chunked.bits));
  };
  return info;
}

}  // namespace

SystemInfo qsgd_info() {
  SystemInfo info = fixed_info("max", QuantizationLevels::uniform);
  info.name = "qsgd";
  info.summary = "random rounding to equal steps of a chunk's norm, unbiased";
  info.paper = "Alistarh et al., QSGD, NeurIPS 2017";
  return info;
}

SystemInfo nuqsgd_info() {
  SystemInfo info = fixed_info("l2", QuantizationLevels::halving);
  info.name = "nuqsgd";
  info.summary = "random rounding to powers of 1/2 of a chunk's norm, unbiased";
  info.paper = "Ramezani-Kebrya et al., NUQSGD, JMLR 2021";
  return info;
}

}  // namespace thinwire
