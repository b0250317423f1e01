#include "thinwire/virtual_network.h"

#include <pthread.h>

#include <cmath>
#include <deque>
#include <stdexcept>
#include <utility>
#include <vector>

#include "comm/virtual_hub.h"
#include "core/cpu_clock.h"
#include "thinwire/errors.h"

namespace thinwire {
namespace {

/// Systems keep what is large on the heap; with the usual 8 MiB, address space would limit a thousand ranks.
constexpr std::size_t kStackBytes = std::size_t{4} << 20;

}  // namespace

/// A visit of the communicator's: what the rank computed before is charged, the visit itself is not.
class VirtualCommunicator::Entry {
 public:
  explicit Entry(VirtualCommunicator& communicator) : communicator_(communicator) {
    if (communicator.cpu_factor_ > 0)
      communicator.hub_.advance(communicator.rank(), communicator.uncharged_seconds());
  }
  ~Entry() {
    if (communicator_.cpu_factor_ > 0) communicator_.cpu_seen_ = cpu_seconds();
  }
  Entry(const Entry&) = delete;
  Entry& operator=(const Entry&) = delete;

 private:
  VirtualCommunicator& communicator_;
};

VirtualCommunicator::VirtualCommunicator(VirtualHub& hub, int rank)
    : Communicator(rank, hub.workers()), hub_(hub) {}

double VirtualCommunicator::uncharged_seconds() const {
  return cpu_factor_ > 0 ? (cpu_seconds() - cpu_seen_) * cpu_factor_ : 0;
}

double VirtualCommunicator::now_seconds() const {
  return hub_.clock(rank()) + uncharged_seconds();
}

void VirtualCommunicator::advance(double seconds) {
  if (!(seconds >= 0 && std::isfinite(seconds))) {
    throw std::invalid_argument("a clock cannot advance by " + std::to_string(seconds) + " s");
  }
  hub_.advance(rank(), seconds);
}

void VirtualCommunicator::charge_cpu_time(double factor) {
  if (!(factor >= 0 && std::isfinite(factor))) {
    throw std::invalid_argument("CPU time times " + std::to_string(factor) +
                                ": the factor must be 0 or above");
  }
  const Entry entry(*this);
  cpu_factor_ = factor;
}

VirtualInterval VirtualCommunicator::align() {
  const Entry entry(*this);
  VirtualInterval interval;
  if (!hub_.align(rank(), interval)) fail(hub_.culprit(), hub_.complaint());
  return interval;
}

void* VirtualCommunicator::start_send(int peer, Tag tag, Span<const std::byte> bytes) {
  if (bytes.memory() != Memory::host)
    throw std::invalid_argument(
        "the virtual engine moves host memory only: copy device memory to the host first");
  const Entry entry(*this);
  return hub_.send(rank(), peer, tag, bytes);
}

void* VirtualCommunicator::start_receive(int peer, Tag tag, Span<std::byte> bytes) {
  if (bytes.memory() != Memory::host)
    throw std::invalid_argument(
        "the virtual engine moves host memory only: copy device memory to the host first");
  const Entry entry(*this);
  return hub_.receive(rank(), peer, tag, bytes);
}

void VirtualCommunicator::finish(void* handle, int peer) {
  const Entry entry(*this);
  auto* operation = static_cast<VirtualOperation*>(handle);
  const std::size_t expected = operation->size;
  std::size_t arrived = expected;
  if (!hub_.wait(operation, arrived)) {
    hub_.abandon(operation);
    fail(hub_.culprit(), hub_.complaint());
  }
  if (arrived != expected) {
    throw CorruptFrame("message from rank " + std::to_string(peer) + " has " + std::to_string(arrived) +
                       " bytes, expected " + std::to_string(expected));
  }
}

void VirtualCommunicator::abandon(void* operation) noexcept {
  hub_.abandon(static_cast<VirtualOperation*>(operation));
}

namespace {

/// What a thread is given.
struct Worker {
  VirtualHub& hub;
  VirtualCommunicator& communicator;
  const std::function<void(VirtualCommunicator&)>& body;

  static void* run(void* pointer) {
    const auto& self = *static_cast<Worker*>(pointer);
    const int rank = self.communicator.rank();
    std::exception_ptr error;
    if (self.hub.begin(rank)) {
      try {
        self.body(self.communicator);
      } catch (...) {
        error = std::current_exception();
      }
    }
    self.hub.end(rank, std::move(error));
    return nullptr;
  }
};

}  // namespace

namespace {

void require_link(const VirtualLink& link) {
  const auto positive = [](double value) { return value > 0 && std::isfinite(value); };
  if (positive(link.bytes_per_second) && positive(link.scale) && link.latency_seconds >= 0 &&
      std::isfinite(link.latency_seconds)) {
    return;
  }
  throw std::invalid_argument("a link of " + std::to_string(link.bytes_per_second) + " bytes/s and " +
                              std::to_string(link.latency_seconds) + " s, scale " +
                              std::to_string(link.scale) +
                              ": rate and scale must be above 0, the latency not negative");
}

}  // namespace

void run_virtual(int workers, const VirtualLink& link, const std::function<void(VirtualCommunicator&)>& body,
                 const VirtualHosts& hosts) {
  if (workers < 1) {
    throw std::invalid_argument("workers = " + std::to_string(workers) + ": at least 1 is needed");
  }
  if (hosts.ranks_per_host < 1 || workers % hosts.ranks_per_host != 0) {
    throw std::invalid_argument("ranks per host = " + std::to_string(hosts.ranks_per_host) +
                                ": it must divide the " + std::to_string(workers) + " workers");
  }
  require_link(link);
  if (hosts.ranks_per_host > 1) require_link(hosts.inside);
  VirtualHub hub(workers, link, hosts);
  // Communicators outlive all threads, as on the threads engine.
  std::deque<VirtualCommunicator> communicators;
  std::deque<Worker> states;
  std::vector<pthread_t> threads;
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, kStackBytes);
  for (int rank = 0; rank < workers; ++rank) {
    communicators.emplace_back(hub, rank);
    states.push_back({hub, communicators.back(), body});
    threads.emplace_back();
    if (pthread_create(&threads.back(), &attributes, &Worker::run, &states.back()) != 0) {
      threads.pop_back();
      break;
    }
  }
  pthread_attr_destroy(&attributes);
  const auto started = static_cast<int>(threads.size());
  hub.start(started);
  for (const pthread_t thread : threads) pthread_join(thread, nullptr);
  if (started < workers) {
    throw std::runtime_error("only " + std::to_string(started) + " of " + std::to_string(workers) +
                             " worker threads could be started: use fewer workers or raise the limits");
  }
  if (hub.first_error()) std::rethrow_exception(hub.first_error());
}

}  // namespace thinwire
