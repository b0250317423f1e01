#include "baselines/stochastic_quantizer.h"

#include <stdexcept>
#include <string>

#include "exchange/reduce_scatter.h"
#include "kernels/codes/quantize.h"

namespace thinwire {
namespace {

class ChunkCoder final : public Coder {
 public:
  ChunkCoder(BucketId bucket, Step& step, const ChunkedQuantization& chunked,
             const QuantizationLevels& levels, Span<const float> gradient, Span<const float> residual,
             std::size_t part = 0)
      : executor_(step.executor),
        workspace_(step.workspace),
        stream_(rounding_stream(bucket, step)),
        chunked_(chunked),
        levels_(levels),
        gradient_(gradient),
        residual_(residual) {
    stream_.hop = static_cast<std::uint32_t>(part);
  }

  bool encode(Span<float> table, Span<std::uint64_t> codes) override {
    return quantize_chunks(executor_, stream_, levels_, chunked_.norm, chunked_.chunk, gradient_, residual_,
                           table, codes);
  }

  void prepare(std::size_t, Span<const float> table) override { require_norms(table); }

  double average(Executor& executor, Span<const CodedFrame> frames, std::size_t self, Span<float> gradient,
                 ResidualSpan residual) const override {
    return average_dequantized(executor, levels_, {.chunk = chunked_.chunk},
                               quantized_vectors(workspace_, frames), self, gradient, residual);
  }

 private:
  Executor& executor_;
  Workspace& workspace_;
  RandomStream stream_;
  const ChunkedQuantization& chunked_;
  const QuantizationLevels& levels_;
  Span<const float> gradient_;
  Span<const float> residual_;
};

}  // namespace

std::vector<OptionInfo> chunked_options(const std::string& norm) {
  return {{"bits", "4", "bits per element, sign included, 2 to 8: 2^(bits-1) levels from 0 to the norm"},
          {"norm", norm, "what a chunk is scaled by: max, its largest magnitude, or l2"},
          {"chunk", "8192", "elements that share a norm, a multiple of 128"}};
}

ChunkedQuantization read_chunked_options(const Options& options) {
  ChunkedQuantization chunked;
  chunked.bits = static_cast<std::size_t>(
      options.integer("bits", QuantizationLevels::kLeastBits, QuantizationLevels::kMostBits));
  chunked.norm =
      options.choice("norm", {"max", "l2"}) == "max" ? QuantizationNorm::largest : QuantizationNorm::l2;
  chunked.chunk = static_cast<std::size_t>(
      options.integer("chunk", QuantizationScales::kAlignment, std::int64_t{1} << 32));
  if (chunked.chunk % QuantizationScales::kAlignment != 0) {
    throw std::invalid_argument("chunk=" + std::to_string(chunked.chunk) + ": give a multiple of " +
                                std::to_string(QuantizationScales::kAlignment));
  }
  return chunked;
}

RandomStream rounding_stream(BucketId bucket, const Step& step) {
  return random_stream(step.seed, step.index, bucket, RandomPurpose::rounding,
                       static_cast<std::uint32_t>(step.communicator.rank()));
}

Span<const QuantizedVector> quantized_vectors(Workspace& workspace, Span<const CodedFrame> frames) {
  const auto vectors = workspace.take<QuantizedVector>(frames.size());
  for (std::size_t rank = 0; rank < frames.size(); ++rank) {
    vectors[rank] = {frames[rank].table(), frames[rank].codes()};
  }
  return vectors;
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
