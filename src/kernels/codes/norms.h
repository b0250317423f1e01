#pragma once
// Norms of p = gradient + residual, which codes are scaled by.

#include "kernels/codes/quantization_levels.h"
#include "thinwire/executor.h"
#include "thinwire/span.h"

namespace thinwire {

/// The largest |p|; not finite if any p is not.
float largest_magnitude(Executor& executor, Span<const float> gradient, Span<const float> residual);

/// largest_magnitude and the sum of p^2 of every range of `ends` (ascending, the last at n). largest: one per
/// range; squares: as many, or empty. All three lists lie in host memory.
void measure_ranges(Executor& executor, Span<const std::size_t> ends, Span<const float> gradient,
                    Span<const float> residual, Span<float> largest, Span<double> squares);

/// The norm, as a float may hold it, of elements in host memory; on the calling thread. l2: their squares are
/// summed in double.
float norm_serially(QuantizationNorm norm, Span<const float> gradient, Span<const float> residual);

}  // namespace thinwire
