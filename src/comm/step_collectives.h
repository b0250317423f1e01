#pragma once
// Collectives on vectors that may lie on a device.

#include "thinwire/synchronizer.h"

namespace thinwire {

/// Communicator::all_reduce_sum of values in host memory or of the step's executor. Where the engine does not
/// take them on their device, they come to the workspace and go back. Collective.
void all_reduce_sum(Step& step, Span<float> values);

}  // namespace thinwire
