#pragma once
// Rows together with a residual that is dense: what a system that takes rows needs when it is given one.

#include "thinwire/synchronizer.h"

namespace thinwire {

/// gradient + residual as rows: those of the gradient and those whose residual holds something other than 0.
/// gradient: indices ascending and distinct; residual: [rows * width]. In the step's workspace.
RowSparse add_residual_rows(const RowSparse& gradient, Span<const float> residual, Step& step);

/// The rows that hold a value other than 0 and -0; `gradient` itself where all do, else in the step's
/// workspace. finite: whether every value is.
RowSparse without_zero_rows(const RowSparse& gradient, Step& step, bool& finite);

}  // namespace thinwire
