// mpi_rank KEY=VALUE...: one rank of the campaign on a Session under mpirun, see session_rank.h. Turns over a
// bit of what MPI delivers, as shim.cc does of what sockets deliver, through MPI's interface for profilers.

#include <atomic>
#include <map>

#include "tests/campaign/session_rank.h"
#include "thinwire/mpi.h"

namespace {

struct Receive {
  unsigned char* buffer;
  int bytes;
};
std::map<MPI_Request, Receive> receives;  // of one thread: the one that drives the communicator
long countdown = -1;
int flipped = 0;

}  // namespace

extern "C" {

void campaign_flip(long bytes) {
  countdown = bytes;
}
int campaign_flipped() {
  return flipped;
}

int MPI_Irecv(void* buffer, int count, MPI_Datatype type, int source, int tag, MPI_Comm group,
              MPI_Request* request) {
  const int code = PMPI_Irecv(buffer, count, type, source, tag, group, request);
  // Notes of ranks that fail go by MPI_ANY_SOURCE or are short; payload comes from one rank.
  if (code == MPI_SUCCESS && type == MPI_BYTE && source >= 0) {
    receives[*request] = {static_cast<unsigned char*>(buffer), count};
  }
  return code;
}

int MPI_Test(MPI_Request* request, int* done, MPI_Status* status) {
  const auto found = receives.find(*request);
  const int code = PMPI_Test(request, done, status);
  if (code != MPI_SUCCESS || *done == 0 || found == receives.end()) return code;
  const auto [buffer, bytes] = found->second;
  receives.erase(found);
  if (countdown >= 0) {
    if (countdown < bytes) {
      buffer[countdown] ^= static_cast<unsigned char>(1u << (countdown % 8));
      flipped = 1;  // there are no ports
    }
    countdown -= bytes;
  }
  return code;
}

}  // extern "C"
int main(int argc, char** argv) {
  return thinwire::campaign::run_rank(argc, argv, [](const auto& plan, auto body) {
    thinwire::MpiWorld world;
    world.communicator().set_deadline(std::chrono::duration<double>(plan.number("deadline")));
    body(world.communicator());
  });
}
