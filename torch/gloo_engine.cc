// Builds a Gloo process group as torch.distributed does with env://, except that nothing can block for ever:
// whatever in c10d has no time limit of its own runs on a thread that is given up.

#include "torch/gloo_environment.h"

#ifdef THINWIRE_TORCH_HAS_GLOO

#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <condition_variable>
#include <cstring>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <utility>

#include "comm/fault_note.h"
#include "comm/tcp_links.h"
#include "torch/c10d_communicator.h"
#include "torch/c10d_store.h"

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

namespace thinwire {
namespace {

using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;
using StorePointer = c10::intrusive_ptr<::c10d::Store>;

// The communicator's deadline ends a wait; Gloo's own limit must not end it sooner.
constexpr auto kGlooTimeout = std::chrono::hours(24);
constexpr auto kRetry = std::chrono::milliseconds(50);

std::string endpoint(const GlooEnvironment& environment) {
  return environment.master_address + ":" + std::to_string(environment.master_port);
}

/// make() on a thread of its own; std::runtime_error(complaint) when it is not done by `end`. The thread and
/// whatever it captured are left behind then.
template <class Result>
Result within(Clock::time_point end, const std::string& complaint, std::function<Result()> make) {
  struct Outcome {
    std::mutex mutex;
    std::condition_variable changed;
    bool done = false;
    Result result;
    std::exception_ptr error;
  };
  const auto outcome = std::make_shared<Outcome>();
  std::thread([outcome, make = std::move(make)] {
    Result result;
    std::exception_ptr error;
    try {
      result = make();
    } catch (...) {
      error = std::current_exception();
    }
    std::lock_guard lock(outcome->mutex);
    outcome->result = std::move(result);
    outcome->error = error;
    outcome->done = true;
    outcome->changed.notify_all();
  }).detach();
  std::unique_lock lock(outcome->mutex);
  if (!outcome->changed.wait_until(lock, end, [&] { return outcome->done; }))
    throw std::runtime_error(complaint);
  if (outcome->error) std::rethrow_exception(outcome->error);
  return std::move(outcome->result);
}

struct Addresses {
  Addresses(const std::string& host, int port) {
    addrinfo hints{};
    hints.ai_socktype = SOCK_STREAM;
    if (const int code = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &first); code != 0) {
      throw std::runtime_error("cannot resolve MASTER_ADDR=" + host + ": " + gai_strerror(code));
    }
  }
  ~Addresses() { freeaddrinfo(first); }
  Addresses(const Addresses&) = delete;
  Addresses& operator=(const Addresses&) = delete;
  addrinfo* first = nullptr;
};

struct Socket {
  explicit Socket(const addrinfo& address, int type) : descriptor(socket(address.ai_family, type, 0)) {}
  ~Socket() {
    if (descriptor >= 0) close(descriptor);
  }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  int descriptor;
};

/// Waits until somebody listens at the master's port; c10d would fill the terminal with its attempts.
void await_listener(const GlooEnvironment& environment, Clock::time_point end, Seconds deadline) {
  const Addresses addresses(environment.master_address, environment.master_port);
  std::string error;
  do {
    for (const addrinfo* address = addresses.first; address != nullptr; address = address->ai_next) {
      const Socket probe(*address, SOCK_STREAM);
      timeval limit{.tv_sec = 1, .tv_usec = 0};
      setsockopt(probe.descriptor, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
      if (probe.descriptor >= 0 && connect(probe.descriptor, address->ai_addr, address->ai_addrlen) == 0)
        return;
      error = std::strerror(errno);
    }
    std::this_thread::sleep_for(kRetry);
  } while (Clock::now() < end);
  throw std::runtime_error("cannot reach the rendezvous at " + endpoint(environment) + " within " +
                           seconds_text(deadline) + " (" + error + "): is rank 0 running there?");
}

/// Before c10d tries, which would add lines of its own to the one that matters.
void require_free_port(const GlooEnvironment& environment) {
  addrinfo any{};
  sockaddr_in address{};
  any.ai_family = AF_INET;
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(environment.master_port));
  const Socket probe(any, SOCK_STREAM);
  const int reuse = 1;  // as c10d does: a port whose last connections linger is free
  setsockopt(probe.descriptor, SOL_SOCKET, SO_REUSEADDR, &reuse, sizeof reuse);
  if (bind(probe.descriptor, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0) return;
  throw std::runtime_error("cannot serve the rendezvous at " + endpoint(environment) + ": " +
                           (errno == EADDRINUSE ? "the port is in use" : std::strerror(errno)) +
                           "; choose another MASTER_PORT (thinwire launch --port)");
}

bool is_loopback(const std::string& host) {
  return host == "localhost" || host == "::1" || host.starts_with("127.");
}

/// The address by which this machine reaches the master, so that ranks on several machines find each other
/// whatever their host names resolve to. Empty when torch's own choice is better.
std::string local_address(const GlooEnvironment& environment) {
  const Addresses addresses(environment.master_address, environment.master_port);
  for (const addrinfo* address = addresses.first; address != nullptr; address = address->ai_next) {
    // Connecting a datagram socket sends nothing; it only looks up the route.
    const Socket probe(*address, SOCK_DGRAM);
    sockaddr_storage own{};
    socklen_t length = sizeof own;
    if (probe.descriptor < 0 || connect(probe.descriptor, address->ai_addr, address->ai_addrlen) != 0)
      continue;
    if (getsockname(probe.descriptor, reinterpret_cast<sockaddr*>(&own), &length) != 0) continue;
    char text[NI_MAXHOST];
    if (getnameinfo(reinterpret_cast<sockaddr*>(&own), length, text, sizeof text, nullptr, 0,
                    NI_NUMERICHOST) != 0) {
      continue;
    }
    // The master itself may know its name as a loopback address that the others cannot reach.
    if (is_loopback(text) && !is_loopback(environment.master_address)) continue;
    return text;
  }
  return {};
}

StorePointer open_store(const GlooEnvironment& environment, Clock::time_point end, Seconds deadline) {
  const bool serves = environment.rank == 0 && !environment.agent_serves_store;
  if (serves) {
    require_free_port(environment);
  } else {
    await_listener(environment, end, deadline);
  }
  ::c10d::TCPStoreOptions options;
  options.port = static_cast<std::uint16_t>(environment.master_port);
  options.isServer = serves;
  options.waitWorkers = false;
  options.timeout = std::chrono::ceil<std::chrono::milliseconds>(deadline);
  const std::string host = environment.master_address;
  const std::string where = endpoint(environment);
  return within<StorePointer>(
      end,
      "what listens at " + where +
          " does not answer as a torch rendezvous: is the port used by something else?",
      [=]() -> StorePointer {
        try {
          StorePointer store = c10::make_intrusive<::c10d::TCPStore>(host, options);
          store->check({"thinwire/hello"});  // an answer proves that it is a store
          return c10::make_intrusive<::c10d::PrefixStore>("thinwire/attempt_" + environment.restart_count,
                                                          store);
        } catch (const std::exception& error) {
          const std::string text = error.what();
          throw std::runtime_error("cannot open the rendezvous at " + where + ": " +
                                   text.substr(0, text.find('\n')));
        }
      });
}

/// Every rank signs in, so that a missing one is named instead of timing out inside Gloo.
void await_ranks(const GlooEnvironment& environment, const StorePointer& store, Clock::time_point end,
                 Seconds deadline) {
  C10dFaultStore book(store);
  const auto key = [](int rank) { return "joined/" + std::to_string(rank); };
  if (const auto other = book.get(key(environment.rank))) {
    throw std::runtime_error("two processes have RANK=" + std::to_string(environment.rank) + " at " +
                             endpoint(environment) + ": every rank needs its own");
  }
  book.set(key(environment.rank), std::to_string(environment.world_size));
  std::vector<int> missing;
  do {
    missing.clear();
    for (int rank = 0; rank < environment.world_size; ++rank) {
      const auto world = book.get(key(rank));
      if (!world) {
        missing.push_back(rank);
      } else if (*world != std::to_string(environment.world_size)) {
        throw std::runtime_error("rank " + std::to_string(rank) + " has WORLD_SIZE=" + *world + ", rank " +
                                 std::to_string(environment.rank) + " has " +
                                 std::to_string(environment.world_size));
      }
    }
    if (missing.empty()) return;
    std::this_thread::sleep_for(kRetry);
  } while (Clock::now() < end);
  throw std::runtime_error(name_ranks(missing) + " of " + std::to_string(environment.world_size) +
                           " did not join the rendezvous at " + endpoint(environment) + " within " +
                           seconds_text(deadline));
}

}  // namespace

std::unique_ptr<Communicator> open_gloo_from_environment(Seconds deadline) {
  const GlooEnvironment environment = GlooEnvironment::read();
  const std::string& interface = environment.network_interface;
  if (!interface.empty() && if_nametoindex(interface.c_str()) == 0) {
    throw std::invalid_argument("GLOO_SOCKET_IFNAME=" + interface +
                                ": this machine has no such network interface");
  }
  const auto end = Clock::now() + std::chrono::duration_cast<Clock::duration>(deadline);
  const StorePointer store = open_store(environment, end, deadline);
  // Two seconds more than await_ranks takes, so that its own words are the ones that are read.
  const auto latest = end + std::chrono::seconds(2);
  const std::string silent = "the rendezvous at " + endpoint(environment) + " stopped answering";
  const auto before = open_tcp_sockets();
  const auto group = within<c10::intrusive_ptr<::c10d::ProcessGroupGloo>>(latest, silent, [=] {
    await_ranks(environment, store, end, deadline);
    const auto options = ::c10d::ProcessGroupGloo::Options::create(kGlooTimeout);
    const std::string address = local_address(environment);
    if (!environment.network_interface.empty()) {
      options->devices.push_back(
          ::c10d::ProcessGroupGloo::createDeviceForInterface(environment.network_interface));
    } else if (!address.empty()) {
      options->devices.push_back(::c10d::ProcessGroupGloo::createDeviceForHostname(address));
    } else {
      options->devices.push_back(::c10d::ProcessGroupGloo::createDefaultDevice());
    }
    return c10::make_intrusive<::c10d::ProcessGroupGloo>(
        c10::make_intrusive<::c10d::PrefixStore>("gloo", store), environment.rank, environment.world_size,
        options);
  });
  auto communicator = std::make_unique<C10dCommunicator>(
      group, store,
      C10dCommunicator::Options{.store_host = environment.agent_serves_store ? -1 : 0,
                                .leave_together = true,
                                .sockets = tcp_sockets_since(before)});
  communicator->set_deadline(deadline);
  return communicator;
}

}  // namespace thinwire

#else  // THINWIRE_TORCH_HAS_GLOO

#include <stdexcept>

namespace thinwire {

std::unique_ptr<Communicator> open_gloo_from_environment(std::chrono::duration<double>) {
  throw std::runtime_error(
      "this build's libtorch has no Gloo, so there is no gloo engine: use threads or mpi, or build against a "
      "libtorch with Gloo (Debian: libtorch-dev and libgloo-dev)");
}

}  // namespace thinwire

#endif  // THINWIRE_TORCH_HAS_GLOO
