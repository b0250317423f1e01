// EF-signSGD and SSDM: signs with one scale for all, codes of one bit whose table is the scale. All-gathered,
// every rank has its own scale. That is cheaper than a ring's growing sums up to 4 workers.
//
// On a ring or a torus (topology=ring, torus), which is how the Marsit paper extends both, signs are added up
// and only their sum travels on. So all ranks need one scale, which they agree on first:
// - EF-signSGD: the mean over ranks of |p|_1 / d. What the own sign with it does not say is the residual.
// - SSDM: the largest norm of any rank. With the mean of norms a probability could pass 1, and with each
//   rank's own norm the sum of signs could not be scaled any more. It stays unbiased, with more variance for
//   ranks whose norm is smaller.
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
// Bytes per rank: (W - 1) * (8 + ceil(d/8)). On a ring (W - 1) * 8 and, for each of W - 1 segments of len
// elements, ceil(len/8) times ceil(log2(m+1)) at the m-th hop and ceil(log2(W+1)) on the way back.
//
// A scale that is not finite on any rank makes the step non-finite on all.

#include <cmath>
#include <optional>
#include <stdexcept>
#include <string>

#include "baselines/baselines.h"
#include "baselines/sign_ring.h"
#include "exchange/collectives.h"
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

/// Where signs travel.
struct SignWay {
  std::optional<SignTopology> sums;  ///< Nothing: they are all-gathered.
  SumCoding coding = SumCoding::planes;
};

/// Sums of signs on a ring or a torus, with one scale for all ranks.
class RingOfSigns {
 public:
  RingOfSigns(BucketId bucket, Span<float> gradient, Span<float> residual, Step& step, const SignWay& way,
              double scale)
      : bucket_(bucket), gradient_(gradient), residual_(residual), step_(step), way_(way), scale_(scale) {
    step.report.finite = std::isfinite(static_cast<float>(scale));
    if (step.report.finite) step.report.scale = scale;
  }

  /// pack(chunk, p's parts, bits): this rank's signs. Collective.
  template <class Pack>
  void run(Pack pack) {
    if (!step_.report.finite) return;
    step_.communicator.commit_exchange();
    const auto pack_chunk = [&](const RingChunk& chunk, Span<std::uint64_t> bits) {
      pack(chunk, gradient_.subspan(chunk.begin, chunk.elements()),
           residual_.subspan(chunk.begin, chunk.elements()), bits);
    };
    SignRing ring(bucket_, gradient_.size(), step_, *way_.sums, SignsGathered::counters, way_.coding,
                  pack_chunk);
    ring.run();
    if (way_.coding == SumCoding::elias) {
      step_.report.formula_bytes =
          scalar_payload_bytes(step_.communicator.size()) + ring.coded_payload_bytes();
    }
    step_.clock.enter(Phase::decompress);
    const ResidualSpan turned = step_.turn.write(residual_);
    double squares = 0;
    ring.for_each([&](const RingChunk& chunk) { squares += apply(ring, chunk, turned); });
    if (!residual_.empty()) step_.report.residual_norm = std::sqrt(squares);
  }

 private:
  /// A counter c of W workers is a mean of scale (2 c - W) / W. Plane k of the counters is a vector of signs,
  /// and 2 c = the sum over P planes of 2^k sign + 2^P - 1.
  double apply(SignRing& ring, const RingChunk& chunk, const ResidualSpan& turned) {
    const auto part = gradient_.subspan(chunk.begin, chunk.elements());
    const auto scale = static_cast<float>(scale_);
    const double squares = apply_signs(step_.executor, ring.own_signs(chunk), scale, part,
                                       turned.subspan(chunk.begin, chunk.elements()));
    const auto world = static_cast<double>(step_.communicator.size());
    const auto counters = ring.counters(chunk);
    const std::size_t words = SignRing::sign_words(chunk);
    fill(step_.executor, part, static_cast<float>(scale_ * ((1 << ring.planes()) - 1 - world) / world));
    for (int k = 0; k < ring.planes(); ++k) {
      accumulate_signs(step_.executor, counters.subspan(static_cast<std::size_t>(k) * words, words),
                       static_cast<float>(scale_ * (1 << k) / world), part);
    }
    return squares;
  }

  BucketId bucket_;
  Span<float> gradient_;
  Span<float> residual_;
  Step& step_;
  SignWay way_;
  double scale_;
};

class ScaledSignSystem : public Synchronizer {
 public:
  explicit ScaledSignSystem(const SignWay& way) : way_(way) {}

  std::uint64_t payload_bytes(const Workload& workload) const override {
    if (workload.reduce_scatter) return reduce_scatter_bytes(workload.elements, kShape, workload.world_size);
    if (!way_.sums || workload.elements == 0 || workload.world_size == 1) {
      return coded_bytes(workload.elements, kShape, workload.world_size);
    }
    return scalar_payload_bytes(workload.world_size) +
           sign_ring_payload_bytes(workload.elements, workload.world_size, workload.rank, *way_.sums,
                                   SignsGathered::counters);
  }

 protected:
  const SignWay& way() const { return way_; }
  static void average(BucketId bucket, Span<float> gradient, Span<float> residual, Step& step,
                      ScaledSignCoder&& coder) {
    average_coded(bucket, gradient, residual, step, kShape, coder);
    if (step.report.finite) step.report.scale = coder.scale();
  }

 private:
  SignWay way_;
};

class EfSignSgd final : public ScaledSignSystem {
 public:
  using ScaledSignSystem::ScaledSignSystem;

  void synchronize(BucketId bucket, Span<float> gradient, Span<float> residual, Step& step) override {
    if (step.reduce_scatter) {
      return reduce_scatter_coded(
          bucket, gradient, residual, step, [](std::size_t) { return kShape; },
          [&](std::size_t, Span<const float> part, Span<const float> left) {
            return EfSignCoder(step, part, left);
          });
    }
    if (!way().sums) return average(bucket, gradient, residual, step, EfSignCoder(step, gradient, residual));
    const double magnitude =
        sum_of_magnitudes(step.executor, gradient, residual) / static_cast<double>(gradient.size());
    RingOfSigns ring(bucket, gradient, residual, step, way(), mean_over_ranks(step, magnitude));
    ring.run([&](const RingChunk&, Span<const float> part, Span<const float> left, Span<std::uint64_t> bits) {
      pack_signs(step.executor, part, left, bits);
    });
  }
};

class Ssdm final : public ScaledSignSystem {
 public:
  using ScaledSignSystem::ScaledSignSystem;

  void synchronize(BucketId bucket, Span<float> gradient, Span<float> residual, Step& step) override {
    if (!way().sums) {
      return average(bucket, gradient, residual, step, SsdmCoder(bucket, step, gradient, residual));
    }
    const double norm =
        largest_over_ranks(step, std::sqrt(sum_of_squares(step.executor, gradient, residual)));
    const auto factor = static_cast<float>(norm > 1e-37 ? 0.5 / norm : 0.0);
    RingOfSigns ring(bucket, gradient, residual, step, way(), norm);
    ring.run([&](const RingChunk& chunk, Span<const float> part, Span<const float> left,
                 Span<std::uint64_t> bits) {
      // A chunk's random bits begin anew, so each has a stream of its own.
      const auto number = static_cast<std::uint32_t>(chunk.part * kMostChunks + chunk.index);
      const RandomStream stream =
          random_stream(step.seed, step.index, bucket, RandomPurpose::stochastic_sign,
                        static_cast<std::uint32_t>(step.communicator.rank()), 1 + number);
      stochastic_signs(step.executor, stream, part, left, factor, bits);
    });
  }

 private:
  static constexpr std::size_t kMostChunks = std::size_t{1} << 12;  // of a bucket below 2^32 elements
};

const std::string kFormula =
    "(W-1) * (ceil(d/8) + 8); ring: sum over m = 1..W-1 of (ceil(log2(m+1)) + ceil(log2(W+1))) * "
    "ceil(len/8), "
    "and 8 for each other rank";
const OptionInfo kTopology = {"topology", "all_gather",
                              "all_gather; ring or torus: sums of signs that grow by bits, as in the Marsit "
                              "paper; a torus has as many rows as make it most nearly square"};

SignWay way_of(const Options& options, const char* name) {
  const std::string topology = options.choice("topology", {"all_gather", "ring", "torus"});
  SignWay way{.sums = std::nullopt, .coding = sum_coding(options)};
  if (topology != "all_gather") way.sums = topology == "ring" ? SignTopology::ring : SignTopology::torus;
  if (way.coding == SumCoding::elias && !way.sums) {
    throw std::invalid_argument(std::string(name) +
                                ": coding=elias is of sums: give topology=ring or topology=torus");
  }
  return way;
}

}  // namespace

SystemInfo ef_signsgd_info() {
  SystemInfo info;
  info.name = "ef_signsgd";
  info.summary = "signs scaled by mean |p|, all-gathered, with error feedback";
  info.paper = "Karimireddy et al., ICML 2019";
  info.formula = kFormula;
  info.feedback_default = true;
  info.turns_residual = true;
  info.reduce_scatters = true;
  info.options = {kTopology, sum_coding_option()};
  info.make = [](const Options& options, Inner) {
    return std::make_unique<EfSignSgd>(way_of(options, "ef_signsgd"));
  };
  return info;
}

SystemInfo ssdm_info() {
  SystemInfo info;
  info.name = "ssdm";
  info.summary = "unbiased stochastic signs scaled by |p|_2, all-gathered";
  info.paper = "Safaryan and Richtarik, ICML 2021";
  info.formula = kFormula;
  info.turns_residual = true;
  info.options = {kTopology, sum_coding_option()};
  info.make = [](const Options& options, Inner) { return std::make_unique<Ssdm>(way_of(options, "ssdm")); };
  return info;
}

}  // namespace thinwire
