#pragma once
// Values in codes of a few bits, through owners. Every rank owns a part of the values, averages what all
// ranks say of it, and tells all ranks the result. Both ways values travel as codes. A block of some hundred
// values shares a scale, its largest magnitude. Where a residual keeps what codes leave out, values are
// rounded to the nearest level, which leaves out least; without one they are rounded at random, so that
// nothing is lost on average.
//
//   p --codes of each part--> its owner --mean of all Q(p), as codes--> all ranks
//
// Bytes per rank, with C(n) = ceil(bits n / 8) + 4 ceil(n / block) and a part of n_r values at rank r:
//   sum over the other ranks r of C(n_r), and (W - 1) C(n_self).

#include "exchange/coded_exchange.h"
#include "kernels/codes/quantization_levels.h"
#include "thinwire/synchronizer.h"

namespace thinwire {

struct BlockCodes {
  QuantizationLevels levels;
  std::size_t block = 256;  ///< Values that share a scale, a multiple of QuantizationScales::kAlignment.

  CodedShape shape(std::size_t values) const { return {levels.bits, chunk_count(values, block)}; }
};

/// Throws CorruptFrame unless every norm, of what another rank sent, is at least 0.
void require_norms(Span<const float> norms);

/// gradient [n], n > 0, in memory of the step's executor: becomes the mean, the same bits on all ranks.
/// residual [n] or empty: becomes p - Q(p). In the part that this rank owns it also has what the result's
/// codes left out, times W: so the equation of thinwire/synchronizer.h holds. Where any rank has a value that
/// is not finite, or `finite` is false on any, report.finite becomes false, residual stays, and gradient is
/// without meaning. Collective.
/// base: the number of the first value, so that of several calls for one bucket in one step none takes
/// another's messages: how many values the calls before had. Throws CorruptFrame, CommError.
void average_blocks(BucketId bucket, Span<float> gradient, Span<float> residual, Step& step,
                    const BlockCodes& codes, std::size_t base = 0, bool finite = true);

/// What average_blocks sends from `rank`, headers of frames not counted.
std::uint64_t block_average_bytes(std::uint64_t elements, int world_size, int rank, const BlockCodes& codes);

}  // namespace thinwire
