#pragma once
// One rank's training: forward and backward on its own examples, the gradients through a Session, then the
// same step of the optimizer as all the others. With local steps: several steps of an optimizer of its own,
// and then how far they moved through the Session (optimizer/local_updates.h).

#include <string>

#include "apps/train/data/dataset.h"
#include "apps/train/options.h"
#include "apps/train/progress.h"
#include "apps/train/results.h"
#include "thinwire/communicator.h"

namespace thinwire::train {

/// Synchronizations in a row that were not finite after which a system counts as diverged.
constexpr int kHopelessSteps = 20;

struct Job {
  const Options& options;
  const Dataset& dataset;
  std::string spec;
  std::string checkpoint;  ///< Folder of this system's checkpoints; empty: none are written.
  bool resume = false;     ///< Continue from the newest checkpoint.
};

/// Trains one replica to the end. Collective. A system that diverges yields a result with `failure`. Throws
/// std::runtime_error if ranks were asked for different things, disagree about the model, or a checkpoint
/// cannot be read or written; CommError, CorruptFrame. `progress` is null on all ranks but one, which speaks.
RunResult train_rank(const Job& job, Communicator& communicator, Progress* progress);

}  // namespace thinwire::train
