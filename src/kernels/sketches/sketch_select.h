#pragma once
// The elements that a count sketch estimates to be largest, without a sort and, for the most part, without
// their estimates: that a median reaches a threshold is seen from how many rows do, which is a matter of
// counting bits.

#include "kernels/selection/select.h"
#include "kernels/sketches/count_sketch.h"

namespace thinwire {

/// All of a bucket's elements whose estimate (count_sketch.h) has a magnitude of at least `least_bits` and is
/// not 0, with their estimates. table: [sketch.cells()], finite. Exactly what query and select_at_least
/// would choose, for any number of threads. Throws as query does.
Selection select_estimates_at_least(Executor& executor, Workspace& workspace, const CountSketch& sketch,
                                    std::size_t elements, Span<const float> table, std::uint32_t least_bits);

/// The k elements whose estimates are largest in magnitude, or all whose estimate is not 0 where those are
/// fewer; ties go to lower indices. Exactly what query and select_largest would choose. The threshold comes
/// from the estimates of a sample; where it deceives, all elements are estimated.
Selection select_largest_estimates(Executor& executor, Workspace& workspace, const CountSketch& sketch,
                                   std::size_t elements, Span<const float> table, std::size_t k);

}  // namespace thinwire
