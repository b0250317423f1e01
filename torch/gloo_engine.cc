// Builds a Gloo process group as torch.distributed does with env://, except that nothing can block for ever:
// whatever in c10d has no time limit of its own runs on a thread that is given up.

#include "torch/gloo_environment.h"

#ifdef THINWIRE_TORCH_HAS_GLOO

#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <functional>
#include <future>
#include <random>
#include <stdexcept>
#include <thread>
#include <utility>

#include "comm/fault_note.h"
#include "comm/tcp_links.h"
#include "torch/c10d_communicator.h"
#include "torch/c10d_store.h"
#include "torch/loopback_listener.h"
#include "torch/start_watch.h"

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

namespace thinwire {
namespace {

using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;
using StorePointer = c10::intrusive_ptr<::c10d::Store>;

constexpr auto kRetry = std::chrono::milliseconds(50);

std::string endpoint(const GlooEnvironment& environment) {
  return environment.master_address + ":" + std::to_string(environment.master_port);
}

/// make() on a thread of its own; std::runtime_error(complaint) when it is not done by `end`. The thread and
/// whatever it captured are left behind then.
template <class Result>
Result within(Clock::time_point end, const std::string& complaint, std::function<Result()> make) {
  std::packaged_task<Result()> task(std::move(make));
  std::future<Result> result = task.get_future();
  std::thread(std::move(task)).detach();
  if (result.wait_until(end) != std::future_status::ready) throw std::runtime_error(complaint);
  return result.get();
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

int store_host_of(const GlooEnvironment& environment) {
  return environment.agent_serves_store ? -1 : 0;
}

/// Two jobs may have been given one port. The keys of each stand under its own token, so none takes a rank of
/// the other; this tells a rank that it has come to the wrong place. False while nobody has said whose the
/// rendezvous is: its rank 0 has not come yet, which it may do long after the port is open where an agent
/// serves it.
bool is_of_own_job(const GlooEnvironment& environment, const StorePointer& store) {
  C10dFaultStore book(store, store_host_of(environment));
  const std::string key = "thinwire/job";
  const std::string own = "job " + environment.job;
  const auto standing = environment.rank == 0 ? std::optional(book.set_if_absent(key, own)) : book.get(key);
  if (!standing || *standing == own) return standing.has_value();
  throw std::runtime_error("cannot open the rendezvous at " + endpoint(environment) +
                           ": the rendezvous there is of another job (" + standing->substr(4) +
                           "; THINWIRE_JOB of this one: " + environment.job +
                           "): choose another MASTER_PORT (thinwire launch --port)");
}

/// Where this job's keys stand.
StorePointer keys_of(const GlooEnvironment& environment, const StorePointer& store) {
  return c10::make_intrusive<::c10d::PrefixStore>(
      "thinwire/" + environment.job + "/attempt_" + environment.restart_count, store);
}

enum class Role { own, client };

/// role: what this rank is in its job, or a client beside that.
StorePointer open_store(const GlooEnvironment& environment, Clock::time_point end, Seconds deadline,
                        Role role = Role::own) {
  const bool serves = role == Role::own && environment.rank == 0 && !environment.agent_serves_store;
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
          if (serves && is_loopback(environment.master_address) &&
              !restrict_to_loopback(environment.master_port)) {
            std::fprintf(stderr, "thinwire: the rendezvous at %s listens on all interfaces\n", where.c_str());
          }
          store->check({"thinwire/hello"});  // an answer proves that it is a store
          return store;
        } catch (const std::exception& error) {
          const std::string text = error.what();
          const std::string brief = text.substr(0, text.find('\n'));
          if (serves) throw std::runtime_error("cannot open the rendezvous at " + where + ": " + brief);
          throw std::runtime_error("cannot open the rendezvous at " + where + ": " +
                                   store_server(store_host_of(environment)) + " is gone or silent (" + brief +
                                   ")");
        }
      });
}

/// Signs this rank in. Throws where the job's ranks cannot become one world.
void join(const GlooEnvironment& environment, C10dFaultStore& book) {
  const std::string rank = std::to_string(environment.rank);
  const std::string world = std::to_string(environment.world_size);
  const std::string key = "joined/" + rank;
  const std::string own_mark = std::to_string(std::random_device{}());
  if (book.set_if_absent(key, own_mark) != own_mark) {
    throw std::runtime_error("two processes have RANK=" + rank + " at " + endpoint(environment) +
                             ": every rank needs its own");
  }
  const std::string own = "rank " + rank + " has WORLD_SIZE=" + world;
  const std::string first = book.set_if_absent("world", own);
  if (first.substr(first.find('=')) == own.substr(own.find('='))) return;
  book.set("refused", first + ", " + own);
  throw std::runtime_error(first + ", " + own);
}

/// What a rank waits for others to write.
template <class Result>
std::optional<Result> poll(Clock::time_point end, const std::function<std::optional<Result>()>& ask) {
  for (;;) {
    if (auto found = ask()) return found;
    if (Clock::now() >= end) return std::nullopt;
    std::this_thread::sleep_for(kRetry);
  }
}

/// Why the ranks do not come together. The first rank whose patience ends asks who is missing, for all: each
/// asking would be as many requests as the square of the ranks.
std::string who_is_missing(const GlooEnvironment& environment, C10dFaultStore& book, Seconds deadline) {
  constexpr std::chrono::seconds kToAsk{1};  // longer than the first one needs
  if (book.add("asks who is missing", 1) > 1) {
    const auto found = poll<std::string>(Clock::now() + kToAsk, [&] { return book.get("refused"); });
    if (found) return *found;
  }
  std::vector<int> missing;
  for (int rank = 0; rank < environment.world_size; ++rank) {
    if (!book.get("joined/" + std::to_string(rank))) missing.push_back(rank);
  }
  const std::string text = name_ranks(missing) + " of " + std::to_string(environment.world_size) +
                           " did not join the rendezvous at " + endpoint(environment) + " within " +
                           seconds_text(deadline);
  book.set("refused", text);
  return text;
}

/// The store ends with the rank that serves it: that one stays until the others have read why, for a moment.
[[noreturn]] void refuse(const GlooEnvironment& environment, C10dFaultStore& book, const std::string& text) {
  constexpr std::chrono::seconds kToRead{1};
  book.add("heard", 1);
  if (store_host_of(environment) == environment.rank) {
    poll<bool>(Clock::now() + kToRead, [&, all = book.add("joined", 0)] {
      return book.add("heard", 0) >= all ? std::optional(true) : std::nullopt;
    });
  }
  throw std::runtime_error(text);
}

/// Every rank signs in, so that a missing one is named instead of timing out inside Gloo. A rank asks for two
/// or three keys at a time, however many ranks there are.
void await_ranks(const GlooEnvironment& environment, const StorePointer& store, Clock::time_point end,
                 Seconds deadline) {
  bool own = is_of_own_job(environment, store);
  C10dFaultStore book(keys_of(environment, store), store_host_of(environment));
  join(environment, book);
  book.add("joined", 1);
  do {
    if (const auto refused = book.get("refused")) refuse(environment, book, *refused);
    if (book.add("joined", 0) >= environment.world_size) return;
    std::this_thread::sleep_for(kRetry);
    own = own || is_of_own_job(environment, store);
  } while (Clock::now() < end);
  refuse(environment, book, who_is_missing(environment, book, deadline));
}

using GroupPointer = c10::intrusive_ptr<::c10d::ProcessGroupGloo>;

/// Connects to all other ranks until `end`.
GroupPointer connect_ranks(const GlooEnvironment& environment, const StorePointer& store,
                           Clock::time_point end) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - Clock::now());
  const auto options =
      ::c10d::ProcessGroupGloo::Options::create(std::max(left, std::chrono::milliseconds(1000)));
  const std::string address = local_address(environment);
  if (!environment.network_interface.empty()) {
    options->devices.push_back(
        ::c10d::ProcessGroupGloo::createDeviceForInterface(environment.network_interface));
  } else if (!address.empty()) {
    options->devices.push_back(::c10d::ProcessGroupGloo::createDeviceForHostname(address));
  } else {
    options->devices.push_back(::c10d::ProcessGroupGloo::createDefaultDevice());
  }
  const StorePointer keys = c10::make_intrusive<::c10d::PrefixStore>("gloo", store);
  auto group =
      c10::make_intrusive<::c10d::ProcessGroupGloo>(keys, environment.rank, environment.world_size, options);
  lengthen_gloo_timeout(*group);
  return group;
}

}  // namespace

std::unique_ptr<Communicator> open_gloo_from_environment(Seconds deadline) {
  const GlooEnvironment environment = GlooEnvironment::read();
  const std::string& interface = environment.network_interface;
  if (!interface.empty() && if_nametoindex(interface.c_str()) == 0) {
    throw std::invalid_argument("GLOO_SOCKET_IFNAME=" + interface +
                                ": this machine has no such network interface");
  }
  survive_broken_connections();
  const auto end = Clock::now() + std::chrono::duration_cast<Clock::duration>(deadline);
  const StorePointer server = open_store(environment, end, deadline);
  const StorePointer store = keys_of(environment, server);
  // More than await_ranks takes, so that its own words are the ones that are read.
  const auto latest = end + std::chrono::seconds(3);
  const std::string where = endpoint(environment);
  const int store_host = store_host_of(environment);
  within<bool>(
      latest,
      "the rendezvous at " + where + " stopped answering: " + store_server(store_host) + " is gone or silent",
      [=] {
        await_ranks(environment, server, end, deadline);
        return true;
      });
  // Of its own, since the other one waits for keys.
  const StorePointer asking = keys_of(environment, open_store(environment, latest, deadline, Role::client));
  StartWatch watch(asking, environment.rank, environment.world_size, store_host, deadline);
  watch.begins();
  const auto before = open_tcp_sockets();
  GroupPointer group;
  try {
    group = within<GroupPointer>(latest, "it took longer than " + seconds_text(deadline),
                                 [=] { return connect_ranks(environment, store, latest); });
  } catch (const std::exception& error) {
    const std::string text = error.what();
    throw std::runtime_error("not all ranks connected at " + where + ": " + watch.blame() + "; " +
                             text.substr(0, text.find('\n')));
  }
  watch.ends();
  // From now on an answer may be as late as an interruption of the network that ranks survive.
  store->setTimeout(
      std::chrono::ceil<std::chrono::milliseconds>(2 * deadline + std::chrono::duration<double>(10)));
  return std::make_unique<C10dCommunicator>(group, store,
                                            C10dCommunicator::Options{.store_host = store_host,
                                                                      .leave_together = true,
                                                                      .sockets = tcp_sockets_since(before),
                                                                      .deadline = deadline});
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
