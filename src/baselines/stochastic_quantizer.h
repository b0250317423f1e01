#pragma once
// What QSGD, NUQSGD, ALQ, AMQ and TernGrad have in common: random rounding to levels between 0 and a norm.
// The first four have a norm for each chunk of a bucket and differ in where the levels lie.

#include <optional>
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

/// The options bits and block, wherever floats travel in codes. Throws std::invalid_argument where bits is
/// not 2 to 8, or block no multiple of 128.
BlockCodes read_block_codes(const Options& options);
/// The same, or nothing where bits=32 says that floats travel.
std::optional<BlockCodes> read_codes_or_floats(const Options& options);

/// The options bits, norm and chunk.
std::vector<OptionInfo> chunked_options(const std::string& norm);
ChunkedQuantization read_chunked_options(const Options& options);

/// Codes that are rounded by this rank's random numbers, and norms as their table.
class RoundingCoder : public Coder {
 public:
  void prepare(std::size_t, Span<const float> table) override { require_norms(table); }
  double average(Executor& executor, Span<const CodedFrame> frames, std::size_t self, Span<float> gradient,
                 ResidualSpan residual) const override;

 protected:
  /// scales: which elements share a norm.
  RoundingCoder(BucketId bucket, Step& step, const QuantizationLevels& levels,
                const QuantizationScales& scales, Span<const float> gradient, Span<const float> residual);

  Executor& executor_;
  Workspace& workspace_;
  RandomStream stream_;
  const QuantizationLevels& levels_;
  QuantizationScales scales_;
  Span<const float> gradient_;
  Span<const float> residual_;
};

/// average_coded with these levels, which have as many bits as `chunked`.
void average_quantized(BucketId bucket, Span<float> gradient, Span<float> residual, Step& step,
                       const ChunkedQuantization& chunked, const QuantizationLevels& levels);

}  // namespace thinwire
