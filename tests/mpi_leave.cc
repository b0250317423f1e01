// Three ranks under mpirun that leave, of which rank 1 is stopped: mpi_leave before|within. before: when it
// has yet to come to its end; within: in MPI_Finalize, when all have come. Nobody may wait for it for ever.

#include <signal.h>

#include <cstring>

#include "thinwire/mpi.h"

namespace {
bool stops_within = false;
}

// In front of MPI's own, as profilers have it.
extern "C" int MPI_Finalize() {
  if (stops_within) raise(SIGSTOP);
  return PMPI_Finalize();
}

int main(int argc, char** argv) {
  thinwire::MpiWorld world;
  world.communicator().set_deadline(std::chrono::seconds(2));
  world.communicator().barrier();
  if (argc < 2 || world.communicator().rank() != 1) return 0;
  if (std::strcmp(argv[1], "within") == 0) {
    stops_within = true;
  } else {
    raise(SIGSTOP);
  }
  return 0;
}
