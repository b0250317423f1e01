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
//
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
//
// Blocks: an all-reduce in a few bits. Blocks of values share a scale, both on the way to the rank that adds
// them up and on the way back.
//
// Sources: T. Dettmers et al., "8-bit optimizers via block-wise quantization", ICLR 2022, section 2.1 (a
// scale to each block, so that an outlier spoils its own block alone); G. Wang et al., "ZeRO++", 2023,
// section 3.3 (gradients in blocks of 4 bits, all-to-all in place of a ring, so that they are coded twice and
// not W times).
//
//   block of p, its largest magnitude n: p / n rounded to one of 2^bits - 1 values equally far apart
//     --to the part's owner--> mean of all Q(p), coded in the same way --to all--> mean
//   residual = p - Q(p); the owner's also has W times what the result's codes left out
//
// Bytes per rank: 2(W-1)/W * (ceil(bits d/8) + 4 ceil(d/block)), whatever the number of ranks.
//
// Rounding is to the nearest step where a residual keeps the rest, and at random, unbiased, with
// feedback=off.

#include "baselines/stochastic_quantizer.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <stdexcept>

#include "baselines/baselines.h"
#include "exchange/reduce_scatter.h"
#include "kernels/codes/quantize.h"

namespace thinwire {

RoundingCoder::RoundingCoder(BucketId bucket, Step& step, const QuantizationLevels& levels,
                             const QuantizationScales& scales, Span<const float> gradient,
                             Span<const float> residual)
    : executor_(step.executor),
      workspace_(step.workspace),
      stream_(random_stream(step.seed, step.index, bucket, RandomPurpose::rounding,
                            static_cast<std::uint32_t>(step.communicator.rank()))),
      levels_(levels),
      scales_(scales),
      gradient_(gradient),
      residual_(residual) {}

double RoundingCoder::average(Executor& executor, Span<const CodedFrame> frames, std::size_t self,
                              Span<float> gradient, ResidualSpan residual) const {
  const auto vectors = workspace_.take<QuantizedVector>(frames.size());
  for (std::size_t rank = 0; rank < frames.size(); ++rank) {
    vectors[rank] = {frames[rank].table(), frames[rank].codes()};
  }
  return average_dequantized(executor, levels_, scales_, vectors, self, gradient, residual);
}

namespace {

class ChunkCoder final : public RoundingCoder {
 public:
  ChunkCoder(BucketId bucket, Step& step, const ChunkedQuantization& chunked,
             const QuantizationLevels& levels, Span<const float> gradient, Span<const float> residual,
             std::size_t part = 0)
      : RoundingCoder(bucket, step, levels, {.chunk = chunked.chunk}, gradient, residual),
        norm_(chunked.norm) {
    stream_.hop = static_cast<std::uint32_t>(part);
  }

  bool encode(Span<float> table, Span<std::uint64_t> codes) override {
    return quantize_chunks(executor_, stream_, levels_, norm_, scales_.chunk, gradient_, residual_, table,
                           codes);
  }

 private:
  QuantizationNorm norm_;
};

}  // namespace

std::vector<OptionInfo> chunked_options(const std::string& norm) {
  return {{"bits", "4", "bits per element, sign included, 2 to 8: 2^(bits-1) levels from 0 to the norm"},
          {"norm", norm, "what a chunk is scaled by: max, its largest magnitude, or l2"},
          {"chunk", "8192", "elements that share a norm, a multiple of 128"}};
}

static std::size_t read_bits(const Options& options) {
  return static_cast<std::size_t>(
      options.integer("bits", QuantizationLevels::kLeastBits, QuantizationLevels::kMostBits));
}

/// Elements that share a scale.
static std::size_t read_run(const Options& options, const std::string& name) {
  constexpr std::size_t kUnit = QuantizationScales::kAlignment;
  constexpr std::int64_t kMost = std::int64_t{1} << 32;
  const std::int64_t elements = options.integer(name, 1, kMost);
  if (elements % static_cast<std::int64_t>(kUnit) == 0) return static_cast<std::size_t>(elements);
  options.refuse(name, "a multiple of " + std::to_string(kUnit) + " up to " + std::to_string(kMost));
}

BlockCodes read_block_codes(const Options& options) {
  const std::size_t block = read_run(options, "block");
  return {QuantizationLevels::uniform(read_bits(options)), block};
}

std::optional<BlockCodes> read_codes_or_floats(const Options& options) {
  const std::string text = options.text("bits");
  std::size_t bits = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), bits);
  const bool whole = error == std::errc{} && end == text.data() + text.size();
  if (whole && bits == 32) return {};
  if (!whole || bits < QuantizationLevels::kLeastBits || bits > QuantizationLevels::kMostBits) {
    options.refuse("bits", "32 for floats, or " + std::to_string(QuantizationLevels::kLeastBits) + " to " +
                               std::to_string(QuantizationLevels::kMostBits) + " for codes");
  }
  return read_block_codes(options);
}

ChunkedQuantization read_chunked_options(const Options& options) {
  const std::size_t bits = read_bits(options);
  const bool largest = options.choice("norm", {"max", "l2"}) == "max";
  return {bits, read_run(options, "chunk"), largest ? QuantizationNorm::largest : QuantizationNorm::l2};
}

void average_quantized(BucketId bucket, Span<float> gradient, Span<float> residual, Step& step,
                       const ChunkedQuantization& chunked, const QuantizationLevels& levels) {
  if (step.reduce_scatter) {
    const std::size_t elements = gradient.size() / static_cast<std::size_t>(step.communicator.size());
    return reduce_scatter_coded(
        bucket, gradient, residual, step, [&](std::size_t) { return chunked.shape(elements); },
        [&](std::size_t owner, Span<const float> part, Span<const float> left) {
          return ChunkCoder(bucket, step, chunked, levels, part, left, owner);
        });
  }
  ChunkCoder coder(bucket, step, chunked, levels, gradient, residual);
  average_coded(bucket, gradient, residual, step, chunked.shape(gradient.size()), coder);
}

namespace {

class FixedLevels final : public Synchronizer {
 public:
  FixedLevels(const ChunkedQuantization& chunked, const QuantizationLevels& levels)
      : chunked_(chunked), levels_(levels) {}

  void synchronize(BucketId bucket, Span<float> gradient, Span<float> residual, Step& step) override {
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

class Blocks final : public Synchronizer {
 public:
  explicit Blocks(const BlockCodes& codes) : codes_(codes) {}

  void synchronize(BucketId bucket, Span<float> gradient, Span<float> residual, Step& step) override {
    average_blocks(bucket, gradient, residual, step, codes_);
  }

  std::uint64_t payload_bytes(const Workload& workload) const override {
    return block_average_bytes(workload.elements, workload.world_size, workload.rank, codes_);
  }

 private:
  BlockCodes codes_;
};

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

SystemInfo blocks_info() {
  SystemInfo info;
  info.name = "blocks";
  info.summary = "8 or fewer bits per element both ways, a scale to each block";
  info.paper = "Dettmers et al., 8-bit optimizers, ICLR 2022; Wang et al., ZeRO++, 2023";
  info.formula = "2(W-1)/W * (ceil(bits d/8) + 4 ceil(d/block))";
  info.feedback_default = true;
  info.turns_residual = true;
  info.options = {{"bits", "8", "bits per element, sign included, 2 to 8"},
                  {"block", "256", "elements that share a scale, a multiple of 128"}};
  info.make = [](const Options& options, Inner) {
    return std::make_unique<Blocks>(read_block_codes(options));
  };
  return info;
}

}  // namespace thinwire
