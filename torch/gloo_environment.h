#pragma once
// Joins the ranks that torchrun, `thinwire launch` or Slurm's srun started: the only place that reads their
// environment.

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "thinwire/communicator.h"

namespace thinwire {

/// What the variables say, checked.
struct GlooEnvironment {
  std::string master_address;
  int master_port = 0;
  int rank = 0;
  int world_size = 1;
  std::string network_interface;  ///< GLOO_SOCKET_IFNAME; empty: chosen by the route to the master.
  /// torchrun may serve the store from its own process; then no rank does, and keys need a prefix per
  /// restart.
  bool agent_serves_store = false;
  std::string restart_count = "0";
  /// THINWIRE_JOB, which `thinwire launch` draws, or TORCHELASTIC_RUN_ID, or Slurm's job and step: ranks of
  /// another job are refused.
  std::string job;

  /// Torchrun's variables; in a task of srun, what of them is missing comes from Slurm's. Throws
  /// std::invalid_argument listing what is missing and how to start ranks, or naming a value that cannot be.
  static GlooEnvironment read(const std::function<std::optional<std::string>(const char*)>& get);
  /// read() on this process's environment.
  static GlooEnvironment read();
};

/// What GlooEnvironment::read() finds -> a communicator over Gloo with that deadline. Collective. Throws
/// std::invalid_argument as read() does; std::runtime_error, within the deadline and a few seconds, when the
/// port is taken, the master cannot be reached or serves another job, ranks do not join or leave while
/// connections are opened (naming them), or torch was built without Gloo. The rendezvous that rank 0 serves
/// listens on loopback alone where MASTER_ADDR is a loopback address. The process ignores SIGPIPE afterwards,
/// unless it has a handler of its own: Gloo writes to connections that a dead rank has left.
std::unique_ptr<Communicator> open_gloo_from_environment(std::chrono::duration<double> deadline);

}  // namespace thinwire
