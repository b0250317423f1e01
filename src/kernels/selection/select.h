#pragma once
// The largest elements of a bucket, by magnitude, without sorting. Magnitudes are compared as integers (the
// bits of a float without its sign order like its magnitude), so the choice is exact and NaN counts as the
// largest. Ties go to lower indices. Elements that are 0 are never chosen. p = gradient + residual; residual
// is [n] or empty.

#include <bit>

#include "thinwire/executor.h"
#include "thinwire/span.h"
#include "thinwire/workspace.h"

namespace thinwire {

/// 0 for both zeros, NaN above infinity.
constexpr std::uint32_t magnitude_bits(float value) {
  return std::bit_cast<std::uint32_t>(value) & 0x7fffffffu;
}

/// Keeps every magnitude above `bits` and the first `ties` elements equal to it.
struct MagnitudeCut {
  std::uint32_t bits = 0;
  std::size_t ties = 0;
};

/// The cut that keeps the k largest |p|, or all that are not 0 where those are fewer. Three passes of radix
/// histograms over 11, 10 and 10 bits.
MagnitudeCut cut_of_largest(Executor& executor, Span<const float> gradient, Span<const float> residual,
                            std::size_t k);

/// Elements that were chosen, in memory of a workspace.
struct Selection {
  Span<std::uint32_t> indices;  ///< Ascending.
  Span<float> values;           ///< p at the indices.

  std::size_t size() const { return indices.size(); }
};

/// All elements whose magnitude is at least `least_bits` and not 0, in one pass. A CUDA device takes no more
/// of the workspace than they need.
Selection select_at_least(Executor& executor, Workspace& workspace, Span<const float> gradient,
                          Span<const float> residual, std::uint32_t least_bits);

/// What the cut keeps of a selection, in its memory.
Selection apply_cut(const Selection& selection, MagnitudeCut cut);

/// A threshold that about `k` of the n elements pass, from `sample` elements spread over the bucket, one in
/// each n/sample of them at a place that `seed` chooses. `safety` asks for so many standard deviations of the
/// number that passes more; 0 estimates. 0 when the sample is too small to tell.
std::uint32_t sampled_threshold(Executor& executor, Workspace& workspace, Span<const float> gradient,
                                Span<const float> residual, std::size_t k, std::size_t sample, double safety,
                                std::uint32_t seed);

/// Exactly the k largest |p|, or all that are not 0 where those are fewer. One pass over memory in most
/// cases: a sampled threshold drops what cannot be among them, and the cut is found among the rest; where the
/// sample deceived, the cut of all elements.
Selection select_largest(Executor& executor, Workspace& workspace, Span<const float> gradient,
                         Span<const float> residual, std::size_t k);

}  // namespace thinwire
