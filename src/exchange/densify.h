#pragma once
// Rows through systems that know dense buckets only.

#include "thinwire/synchronizer.h"

namespace thinwire {

/// Writes the rows into a dense table in the step's scratch memory, runs system.synchronize on it and returns
/// the rows of the mean that hold a value other than 0. Parameters and contract as
/// Synchronizer::synchronize_rows. Costs a table of rows * width floats. Throws std::invalid_argument for
/// 2^32 or more elements.
RowSparse synchronize_densified(Synchronizer& system, BucketId bucket, const RowSparse& gradient,
                                Span<float> residual, Step& step);

}  // namespace thinwire
