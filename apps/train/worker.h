#pragma once
// One rank's training: forward and backward on its own examples, the gradients through a Session, then the
// same step of SGD as all the others.

#include <string>

#include "apps/train/data/dataset.h"
#include "apps/train/options.h"
#include "apps/train/progress.h"
#include "apps/train/results.h"
#include "thinwire/communicator.h"

namespace thinwire::train {

/// Steps without a finite gradient after which a system counts as diverged.
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
