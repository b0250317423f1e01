#include "baselines/stochastic_quantizer.h"

#include <stdexcept>

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
  const auto elements = static_cast<std::size_t>(options.integer(name, kUnit, std::int64_t{1} << 32));
  if (elements % kUnit == 0) return elements;
  throw std::invalid_argument(name + "=" + std::to_string(elements) + ": give a multiple of " +
                              std::to_string(kUnit));
}

BlockCodes read_block_codes(const Options& options) {
  const std::size_t block = read_run(options, "block");
  return {QuantizationLevels::uniform(read_bits(options)), block};
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

}  // namespace thinwire
