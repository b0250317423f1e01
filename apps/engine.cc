#include "apps/engine.h"

#include <stdexcept>

#include "thinwire/in_process.h"
#if THINWIRE_HAVE_MPI
#include "thinwire/mpi.h"
#endif

namespace thinwire::apps {
namespace {

GlooEngine& gloo_engine() {
  static GlooEngine engine;
  return engine;
}

std::string known_engines() {
  std::string names = "threads, virtual";
  if (THINWIRE_HAVE_MPI) names += ", mpi";
  if (gloo_engine().world != nullptr) names += ", gloo";
  return names;
}

[[noreturn]] void refuse(const std::string& engine) {
  if (engine == "mpi") {
    throw std::invalid_argument(
        "engine mpi: this build has no MPI; install libopenmpi-dev and openmpi-bin and configure again "
        "(here: " +
        known_engines() + ")");
  }
  if (engine == "gloo") {
    throw std::invalid_argument(
        "engine gloo: this build has no torch with Gloo; install libtorch-dev and libgloo-dev and configure "
        "again "
        "(here: " +
        known_engines() + ")");
  }
  throw std::invalid_argument("unknown engine '" + engine + "': this build has " + known_engines());
}

void check_world(const EngineOptions& options, int world, const std::string& start) {
  if (world == options.workers) return;
  throw std::invalid_argument("--workers " + std::to_string(options.workers) + ", but " +
                              std::to_string(world) + (world == 1 ? " process was" : " processes were") +
                              " started: use " + start + std::to_string(options.workers) + " or --workers " +
                              std::to_string(world));
}

// A process joins its world once and stays until it ends: MPI cannot be initialised twice, and a rendezvous
// port that closes and opens again could be met half way.

#if THINWIRE_HAVE_MPI
MpiWorld& mpi_world() {
  static MpiWorld world;
  return world;
}

void run_on_mpi(const EngineOptions& options, const std::function<void(Communicator&)>& run) {
  MpiWorld& world = mpi_world();
  try {
    check_world(options, world.communicator().size(), "mpirun -n ");
    run(world.communicator());
  } catch (...) {
    world.abandon();  // ranks that did not fail would keep this one waiting in MPI_Finalize
    throw;
  }
}
#endif

Communicator& gloo_world(const EngineOptions& options) {
  check_world(options, gloo_engine().world_size(), "thinwire launch -n ");
  return gloo_engine().world(std::chrono::duration<double>(options.deadline_seconds));
}

}  // namespace

void use_gloo(GlooEngine engine) {
  gloo_engine() = engine;
}

int started_ranks(const EngineOptions& options) {
#if THINWIRE_HAVE_MPI
  if (options.engine == "mpi") return mpi_world().communicator().size();
#endif
  if (options.engine == "gloo" && gloo_engine().world != nullptr) return gloo_engine().world_size();
  return options.workers;
}

void run_on_engine(const EngineOptions& options, const std::function<void(Communicator&)>& body) {
  if (options.workers < 1) {
    throw std::invalid_argument("workers = " + std::to_string(options.workers) + ": at least 1 is needed");
  }
  if (!(options.deadline_seconds > 0 && options.deadline_seconds <= Communicator::kLongestDeadlineSeconds)) {
    throw std::invalid_argument("deadline of " + std::to_string(options.deadline_seconds) +
                                " s: it must be above 0 and at most a day");
  }
  const std::chrono::duration<double> deadline(options.deadline_seconds);
  const auto run = [&](Communicator& communicator) {
    communicator.set_deadline(deadline);
    if (options.step_limit_seconds > 0) {
      communicator.set_step_limit(std::chrono::duration<double>(options.step_limit_seconds));
    }
    communicator.set_checked_sums(options.checked_sums);
    body(communicator);
  };
  if (options.engine == "threads") return run_in_process(options.workers, body, deadline);
  if (options.engine == "virtual") return run_virtual(options.workers, options.link, body);
#if THINWIRE_HAVE_MPI
  if (options.engine == "mpi") return run_on_mpi(options, run);
#endif
  if (options.engine == "gloo" && gloo_engine().world != nullptr) return run(gloo_world(options));
  refuse(options.engine);
}

}  // namespace thinwire::apps
