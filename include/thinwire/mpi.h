#pragma once
// Ranks as processes under mpirun. Everything is a non-blocking MPI call polled against the deadline, because
// a blocking one could wait for a dead rank for ever.
//
//   thinwire::MpiWorld world;                       // MPI_Init
//   thinwire::Session session("marsit", world.communicator());
//
// After a CommError the process should print it and end by _exit(1): MPI_Finalize would wait for the dead
// rank, while mpirun ends the others when one process exits without it.

// Open MPI's retired C++ bindings would bring their own warnings.
#ifndef OMPI_SKIP_MPICXX
#define OMPI_SKIP_MPICXX 1
#endif
#include <mpi.h>

#include <memory>

#include "thinwire/communicator.h"

namespace thinwire {

/// A communicator on duplicates of `group`. Collective over the group. MPI must be initialised, and all
/// calls, this one included, come from the thread that initialised it. Throws std::runtime_error when MPI's
/// tags are too few. Host memory, and that of CUDA devices where Open MPI was built with CUDA.
std::unique_ptr<Communicator> make_mpi_communicator(MPI_Comm group);

/// Initialises MPI and finalises it at the end, unless a rank has failed. One per process.
///
/// MPI_Finalize waits for all ranks, without a limit of its own. So the destructor first waits for them as
/// any blocking call does. When one does not come within the deadline, the destructor says so on stderr and
/// leaves MPI unfinalised, and mpirun then ends all ranks. A rank that is stopped later still makes
/// MPI_Finalize wait; where that takes longer than the deadline, the process says so and ends with status 1.
class MpiWorld {
 public:
  /// Uses MPI as it is where it was initialised elsewhere. Throws
  /// std::runtime_error when it was finalised before.
  MpiWorld();
  ~MpiWorld();
  MpiWorld(const MpiWorld&) = delete;
  MpiWorld& operator=(const MpiWorld&) = delete;

  Communicator& communicator() { return *communicator_; }

  /// Leaves MPI unfinalised at the end: for a rank that stops early, which the others would wait for.
  void abandon() noexcept { abandoned_ = true; }

 private:
  bool leave() noexcept;

  std::unique_ptr<Communicator> communicator_;
  bool initialised_here_ = false;
  bool abandoned_ = false;
  int exceptions_at_start_ = 0;
};

}  // namespace thinwire
