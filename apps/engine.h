#pragma once
// Opens an engine by its name on the command line and runs the ranks that live in this process.

#include <chrono>
#include <functional>
#include <string>

#include "thinwire/communicator.h"
#include "thinwire/virtual_network.h"

namespace thinwire::apps {

struct EngineOptions {
  std::string engine = "threads";  ///< threads, virtual, mpi, gloo
  int workers = 4;  ///< threads, virtual: how many; mpi and gloo: must equal the world that was started.
  double deadline_seconds = 300;  ///< Not of virtual, which knows when nothing more can come.
  double step_limit_seconds = 0;  ///< 0: the communicator's default. Of gloo.
  VirtualLink link{};             ///< Of virtual.
  bool checked_sums = false;      ///< See Communicator::set_checked_sums.
};

/// The engine that needs torch, in a program that has it; see apps/gloo_engine.h.
struct GlooEngine {
  int (*world_size)() = nullptr;  ///< Of the ranks that were started. Throws as started_ranks does.
  /// Joins them at the first call. Collective.
  Communicator& (*world)(std::chrono::duration<double> deadline) = nullptr;
};
/// From here on the name gloo means this one. Before any run.
void use_gloo(GlooEngine engine);

/// Ranks that mpirun, torchrun or `thinwire launch` has started for this engine; options.workers for threads
/// and virtual, which start their own. Joins the world of mpi. Throws std::invalid_argument when variables of
/// gloo are missing.
int started_ranks(const EngineOptions& options);

/// Runs body once per rank of this process: `workers` times on threads and virtual, once under mpi and gloo.
/// Rethrows what a body throws. Throws std::invalid_argument for an unknown engine (listing those of this
/// build), for one that this build lacks (naming the package), for workers < 1 or a world of another size.
void run_on_engine(const EngineOptions& options, const std::function<void(Communicator&)>& body);

}  // namespace thinwire::apps
