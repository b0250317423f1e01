#pragma once
// Collectives on vectors that may lie on a device.

#include "thinwire/synchronizer.h"

namespace thinwire {

/// Communicator::all_reduce_sum of values in host memory or of the step's executor, with the same bits.
/// Values on a device stay there where the engine sums them or moves them; otherwise they come to the
/// workspace and go back. Counts as waiting: the caller has nothing to compute. Collective.
void all_reduce_sum(Step& step, Span<float> values);

}  // namespace thinwire
