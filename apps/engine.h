#pragma once
// Opens an engine by its name on the command line and runs the ranks that live in this process.

#include <functional>
#include <string>

#include "thinwire/communicator.h"

namespace thinwire::apps {

struct EngineOptions {
  std::string engine = "threads";  ///< threads, mpi, gloo
  int workers = 4;  ///< threads: how many; mpi and gloo: must equal the world that was started.
  double deadline_seconds = 300;
};

/// Runs body once per rank of this process: `workers` times on threads, once under mpi and gloo. Rethrows
/// what a body throws. Throws std::invalid_argument for an unknown engine (listing those of this build), for
/// one that this build lacks (naming the package), for workers < 1 or a world of another size.
void run_on_engine(const EngineOptions& options, const std::function<void(Communicator&)>& body);

}  // namespace thinwire::apps
