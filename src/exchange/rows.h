#pragma once
// What systems for sparse gradients, and sessions, do with rows before and after an exchange.

#include "thinwire/synchronizer.h"

namespace thinwire {

/// Throws std::invalid_argument naming the row when an index is not below gradient.rows, or sizes do not fit.
void require_rows(const RowSparse& gradient);

/// The same rows with ascending, distinct indices; rows of one index are added in the order in which they
/// come. `gradient` itself when it is so already, else in the workspace. Linear: nothing is sorted.
RowSparse merge_repeated_rows(Executor& executor, Workspace& workspace, const RowSparse& gradient);

/// The mean of a step in which some rank had inf or NaN: one row of NaN (none in an empty table).
RowSparse row_of_nan(Workspace& workspace, const RowSparse& gradient);

/// gradient + residual, which is dense, as rows: those of the gradient and those whose residual holds
/// something other than 0.
/// gradient: indices ascending and distinct; residual: [rows * width]. In the step's workspace.
RowSparse add_residual_rows(const RowSparse& gradient, Span<const float> residual, Step& step);

/// The rows that hold a value other than 0 and -0; `gradient` itself where all do, else in the step's
/// workspace. finite: whether every value is.
RowSparse without_zero_rows(const RowSparse& gradient, Step& step, bool& finite);

/// For a system that knows dense buckets only. Writes the rows into a dense table in the step's scratch
/// memory, runs system.synchronize on it and returns the rows of the mean that hold a value other than 0.
/// Parameters and contract as Synchronizer::synchronize_rows. Costs a table of rows * width floats. Throws
/// std::invalid_argument for 2^32 or more elements.
RowSparse synchronize_densified(Synchronizer& system, BucketId bucket, const RowSparse& gradient,
                                Span<float> residual, Step& step);

}  // namespace thinwire
