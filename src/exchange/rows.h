#pragma once
// What every system for sparse gradients does with rows before and after its exchange.

#include "thinwire/executor.h"
#include "thinwire/row_sparse.h"
#include "thinwire/workspace.h"

namespace thinwire {

/// Throws std::invalid_argument naming the row when an index is not below gradient.rows, or sizes do not fit.
void require_rows(const RowSparse& gradient);

/// The same rows with ascending, distinct indices; rows of one index are added in the order in which they
/// come. `gradient` itself when it is so already, else in the workspace. Linear: nothing is sorted.
RowSparse merge_repeated_rows(Executor& executor, Workspace& workspace, const RowSparse& gradient);

/// The mean of a step in which some rank had inf or NaN: one row of NaN (none in an empty table).
RowSparse row_of_nan(Workspace& workspace, const RowSparse& gradient);

}  // namespace thinwire
