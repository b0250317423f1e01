#pragma once
// How good the model is on images that it was not trained on.

#include "batches.h"
#include "data.h"
#include "models.h"
#include "thinwire/communicator.h"

namespace thinwire::train {

/// Share of the test images that the model classifies rightly. Each rank looks at its part of them; the
/// counts are integers, so that the result is exact and the same on all ranks. Leaves the model in evaluation
/// mode. Collective.
double test_accuracy(Model& model, const Dataset& dataset, const BatchCutter& cutter,
                     Communicator& communicator);

}  // namespace thinwire::train
