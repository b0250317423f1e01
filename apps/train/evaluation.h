#pragma once
// How good the model is on examples that it was not trained on.

#include "apps/train/data/dataset.h"
#include "apps/train/models/models.h"
#include "thinwire/communicator.h"

namespace thinwire::train {

struct Score {
  double accuracy = 0;  ///< Share of labels that the model holds for the most likely.
  double loss = 0;  ///< Mean cross entropy of a label, in nats; of words, the logarithm of the perplexity.
};

/// Each rank looks at its part of the test examples; the result is the same on all. Leaves the model in
/// evaluation mode. Collective.
Score evaluate(Model& model, const Dataset& dataset, Communicator& communicator);

}  // namespace thinwire::train
