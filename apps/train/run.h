#pragma once
// A whole call of `thinwire train`: checks, training of one system after the other, results.

#include "apps/train/options.h"

namespace thinwire::train {

/// Trains options.specs and prints their table; writes the JSON, the plot and checkpoints that are asked for.
/// Everything that can be checked is checked before the first step. Throws std::invalid_argument for what was
/// asked wrongly, std::runtime_error for what failed (the message says what to do), CommError, CorruptFrame.
void run(const Options& options);

}  // namespace thinwire::train
