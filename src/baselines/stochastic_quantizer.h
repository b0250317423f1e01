#pragma once
// What QSGD, NUQSGD, ALQ and AMQ have in common: chunks of a bucket, a norm for each, random rounding to
// levels between 0 and the norm. They differ in where the levels lie.

#include <string>
#include <vector>

#include "core/philox.h"
#include "exchange/block_average.h"
#include "exchange/coded_exchange.h"
#include "kernels/codes/dequantize.h"
#include "kernels/codes/quantization_levels.h"
#include "thinwire/registry.h"

namespace thinwire {

struct ChunkedQuantization {
  std::size_t bits = 4;
  std::size_t chunk = 8192;
  QuantizationNorm norm = QuantizationNorm::largest;

  CodedShape shape(std::uint64_t elements) const {
    return {bits, chunk_count(static_cast<std::size_t>(elements), chunk)};
  }
};

/// The options bits, norm and chunk.
std::vector<OptionInfo> chunked_options(const std::string& norm);
ChunkedQuantization read_chunked_options(const Options& options);

/// This rank's random numbers for rounding.
RandomStream rounding_stream(BucketId bucket, const Step& step);

/// The frames with their tables as norms, in the workspace.
Span<const QuantizedVector> quantized_vectors(Workspace& workspace, Span<const CodedFrame> frames);

/// average_coded with these levels, which have as many bits as `chunked`.
void average_quantized(BucketId bucket, Span<float> gradient, Span<float> residual, Step& step,
                       const ChunkedQuantization& chunked, const QuantizationLevels& levels);

}  // namespace thinwire
