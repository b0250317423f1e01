// signSGD with majority vote, extended to a ring: the counters of positive signs grow by a bit whenever the
// number of workers that they count doubles.
//
// Sources: J. Bernstein et al., "signSGD: compressed optimisation for non-convex problems", ICML 2018. The
// ring with growing sums is how the Marsit paper extends it (sections 3.1 and 5).
//
//   p --pack_signs--> bits
//     --ring reduce-scatter of counters, ceil(log2(m+1)) bit planes at the m-th worker--> owner
//   owner: majority, ties by a fair coin
//     --ring all-gather of one bit--> mean = scale * (+-1), residual = p - mean
//
// scale: given, or auto. auto is the mean over ranks of mean |p|, exchanged as one double per rank.
//
// Bytes per rank: sum over hops m = 1 .. W-1 of ceil(log2(m+1)) * ceil(len/8), then W-1 segments of
// ceil(len/8).

#include <cmath>
#include <optional>

#include "baselines/baselines.h"
#include "baselines/sign_ring.h"
#include "exchange/collectives.h"
#include "kernels/dense/dense.h"
#include "kernels/signs/sign_bits.h"

namespace thinwire {
namespace {

class SignSgd final : public Synchronizer {
 public:
  SignSgd(std::optional<float> scale, SignTopology topology, SumCoding coding)
      : scale_(scale), topology_(topology), coding_(coding) {}

  void synchronize(BucketId bucket, Span<float> gradient, Span<float> residual, Step& step) override {
    const std::size_t elements = gradient.size();
    const double magnitude =
        sum_of_magnitudes(step.executor, gradient, residual) / static_cast<double>(elements);
    // Also tells every rank whether all are finite, before anything is compressed.
    const double mean_magnitude = mean_over_ranks(step, magnitude);
    step.report.finite = std::isfinite(mean_magnitude);
    if (!step.report.finite) return;
    const float scale = scale_ ? *scale_ : static_cast<float>(mean_magnitude);
    step.report.scale = static_cast<double>(scale);

    const auto pack = [&](const RingChunk& chunk, Span<std::uint64_t> bits) {
      pack_signs(step.executor, gradient.subspan(chunk.begin, chunk.elements()),
                 residual.subspan(chunk.begin, chunk.elements()), bits);
    };
    SignRing ring(bucket, elements, step, topology_, SignsGathered::majority, coding_, pack);
    ring.run();
    if (coding_ == SumCoding::elias) {
      step.report.formula_bytes = scalar_payload_bytes(step.communicator.size()) + ring.coded_payload_bytes();
    }

    step.clock.enter(Phase::decompress);
    double squares = 0;
    ring.for_each([&](const RingChunk& chunk) {
      squares += apply_signs(step.executor, ring.majority(chunk), scale,
                             gradient.subspan(chunk.begin, chunk.elements()),
                             residual.subspan(chunk.begin, chunk.elements()));
    });
    if (!residual.empty()) step.report.residual_norm = std::sqrt(squares);
  }

  std::uint64_t payload_bytes(const Workload& workload) const override {
    if (workload.world_size == 1 || workload.elements == 0) return 0;
    return scalar_payload_bytes(workload.world_size) +
           sign_ring_payload_bytes(workload.elements, workload.world_size, workload.rank, topology_,
                                   SignsGathered::majority);
  }

 private:
  std::optional<float> scale_;
  SignTopology topology_;
  SumCoding coding_;
};

}  // namespace

SystemInfo signsgd_info() {
  SystemInfo info;
  info.name = "signsgd";
  info.summary = "majority vote of signs, counters growing along a ring";
  info.paper = "Bernstein et al., ICML 2018; on a ring as in Marsit, section 3.1";
  info.formula = "sum over m = 1..W-1 of (ceil(log2(m+1)) + 1) * ceil(len/8), and 8 for each other rank";
  info.options = {{"scale", "auto", "step size; auto: the mean over ranks of mean |gradient|"},
                  {"topology", "ring", "ring, or torus with as many rows as make it most nearly square"},
                  sum_coding_option()};
  info.make = [](const Options& options, Inner) -> std::unique_ptr<Synchronizer> {
    std::optional<float> scale;
    if (options.text("scale") != "auto") scale = static_cast<float>(options.real("scale", 1e-30, 1e30));
    const bool torus = options.choice("topology", {"ring", "torus"}) == "torus";
    return std::make_unique<SignSgd>(scale, torus ? SignTopology::torus : SignTopology::ring,
                                     sum_coding(options));
  };
  return info;
}

}  // namespace thinwire
