#include "thinwire/in_process.h"

#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <stdexcept>
#include <system_error>
#include <thread>

#include "comm/channel.h"
#include "cuda/copy.h"
#include "thinwire/errors.h"

namespace thinwire {
namespace {

/// A send or receive. Owned by the rank that posted it; matched with its counterpart under the hub's lock.
/// The bytes go straight from the sender's buffer to the receiver's, copied by whichever came second.
struct Operation {
  enum class State { queued, copying, done };
  bool sending = false;
  Communicator::Tag tag = 0;
  Span<const std::byte> source;
  Span<std::byte> target;
  std::size_t size = 0;
  std::size_t arrived = 0;
  State state = State::queued;
  Operation* next = nullptr;  // in its channel's queue, or in the free list
};

/// What the ranks share.
struct Hub {
  explicit Hub(int workers)
      : size(workers),
        channels(static_cast<std::size_t>(workers) * static_cast<std::size_t>(workers)),
        wake(static_cast<std::size_t>(workers)),
        awaiting(static_cast<std::size_t>(workers), -1) {}

  Channel<Operation>& channel(int from, int to) {
    return channels[static_cast<std::size_t>(from) * static_cast<std::size_t>(size) +
                    static_cast<std::size_t>(to)];
  }

  /// Follows who waits for whom until a rank that waits for nobody: that one keeps the others waiting.
  int culprit(int awaited) const {
    for (int hops = 0; hops < size; ++hops) {
      const int next = awaiting[static_cast<std::size_t>(awaited)];
      if (next < 0) return awaited;
      awaited = next;
    }
    return awaited;  // a circle: each waits for the next
  }

  const int size;
  std::mutex mutex;
  std::vector<Channel<Operation>> channels;
  std::deque<std::condition_variable> wake;  // one per rank
  std::vector<int> awaiting;                 // peer that the rank is blocked on, or -1
  int failed = -1;                           // first rank whose body threw
};

class InProcessCommunicator final : public Communicator {
 public:
  InProcessCommunicator(Hub& hub, int rank) : Communicator(rank, hub.size), hub_(hub) {}

  std::string engine() const override { return "threads"; }
  bool reaches(Memory memory) const override { return copies(memory); }

 protected:
  void* start_send(int peer, Tag tag, Span<const std::byte> bytes) override {
    Operation* operation = allocate(bytes);
    operation->sending = true;
    operation->tag = tag;
    operation->source = bytes;
    start(operation, hub_.channel(rank(), peer), peer);
    return operation;
  }

  void* start_receive(int peer, Tag tag, Span<std::byte> bytes) override {
    Operation* operation = allocate(bytes);
    operation->sending = false;
    operation->tag = tag;
    operation->target = bytes;
    start(operation, hub_.channel(peer, rank()), peer);
    return operation;
  }

  void finish(void* handle, int peer) override {
    auto* operation = static_cast<Operation*>(handle);
    auto& awaited = hub_.awaiting[static_cast<std::size_t>(rank())];
    std::unique_lock lock(hub_.mutex);
    awaited = peer;
    const bool in_time = wake().wait_for(lock, deadline(), [&] {
      return operation->state == Operation::State::done ||
             (hub_.failed >= 0 && operation->state == Operation::State::queued);
    });
    if (operation->state == Operation::State::done) {
      awaited = -1;
      const std::size_t arrived = operation->arrived;
      const std::size_t expected = operation->size;
      const bool sending = operation->sending;
      lock.unlock();
      pool_.give_back(operation);
      if (!sending && arrived != expected) {
        throw CorruptFrame("message from rank " + std::to_string(peer) + " has " + std::to_string(arrived) +
                           " bytes, expected " + std::to_string(expected));
      }
      return;
    }
    // awaiting stays set when the deadline passed, so that the others' search leads past this rank.
    const int failed = hub_.failed;
    const int culprit = in_time ? failed : hub_.culprit(peer);
    lock.unlock();
    give_up(operation);
    if (in_time) fail(failed, "rank " + std::to_string(failed) + " failed");
    fail(culprit, "rank " + std::to_string(culprit) + " was silent for " +
                      std::to_string(deadline().count()) + " s while rank " + std::to_string(rank()) +
                      " waited for rank " + std::to_string(peer));
  }

  void abandon(void* handle) noexcept override { give_up(static_cast<Operation*>(handle)); }

 private:
  std::condition_variable& wake() { return hub_.wake[static_cast<std::size_t>(rank())]; }

  template <class T>
  Operation* allocate(Span<T> bytes) {
    if (!reaches(bytes.memory())) {
      throw std::invalid_argument(
          "this build has no CUDA, so the threads engine moves host memory only: copy device memory to the "
          "host first");
    }
    Operation* operation = pool_.take();
    *operation = Operation{};
    operation->size = bytes.size();
    return operation;
  }

  void start(Operation* operation, Channel<Operation>& channel, int peer) {
    Operation* counterpart = nullptr;
    {
      std::lock_guard lock(hub_.mutex);
      counterpart = channel.take_counterpart(*operation);
      if (counterpart == nullptr) {
        channel.push(operation);
        return;
      }
      operation->state = counterpart->state = Operation::State::copying;
    }
    const Operation& from = operation->sending ? *operation : *counterpart;
    const Operation& to = operation->sending ? *counterpart : *operation;
    const std::size_t size = std::min(from.size, to.size);
    try {
      copy_bytes(from.source.first(size), to.target.first(size));
    } catch (...) {
      // A device failed. The peer learns of it when this rank ends.
      std::lock_guard lock(hub_.mutex);
      operation->state = counterpart->state = Operation::State::queued;
      hub_.wake[static_cast<std::size_t>(peer)].notify_one();
      throw;
    }
    {
      std::lock_guard lock(hub_.mutex);
      operation->arrived = counterpart->arrived = from.size;
      operation->state = counterpart->state = Operation::State::done;
    }
    hub_.wake[static_cast<std::size_t>(peer)].notify_one();
  }

  void give_up(Operation* operation) {
    std::unique_lock lock(hub_.mutex);
    // A copy that has begun ends by itself; the buffers must stay until then.
    wake().wait(lock, [&] { return operation->state != Operation::State::copying; });
    if (operation->state == Operation::State::queued) {
      for (int peer = 0; peer < hub_.size; ++peer) {
        hub_.channel(rank(), peer).remove(operation);
        hub_.channel(peer, rank()).remove(operation);
      }
    }
    lock.unlock();
    pool_.give_back(operation);
  }

  Hub& hub_;
  OperationPool<Operation> pool_;
};

}  // namespace

void run_in_process(int workers, const std::function<void(Communicator&)>& body,
                    std::chrono::duration<double> deadline) {
  if (workers < 1) {
    throw std::invalid_argument("workers = " + std::to_string(workers) + ": at least 1 is needed");
  }
  Hub hub(workers);
  // Communicators outlive all threads: a peer may still look at an operation of a rank that has ended.
  std::deque<InProcessCommunicator> communicators;
  for (int rank = 0; rank < workers; ++rank) {
    communicators.emplace_back(hub, rank);
    communicators.back().set_deadline(deadline);
  }
  std::exception_ptr first_error;
  // The first failure interrupts everyone's communication.
  auto failed = [&](int rank) {
    std::lock_guard lock(hub.mutex);
    if (hub.failed < 0) {
      hub.failed = rank;
      first_error = std::current_exception();
    }
    for (auto& wake : hub.wake) wake.notify_all();
  };
  std::vector<std::thread> threads;
  threads.reserve(static_cast<std::size_t>(workers));
  for (int rank = 0; rank < workers; ++rank) {
    try {
      threads.emplace_back([&, rank] {
        try {
          body(communicators[static_cast<std::size_t>(rank)]);
        } catch (...) {
          failed(rank);
        }
      });
    } catch (const std::system_error&) {
      try {
        throw std::runtime_error("only " + std::to_string(rank) + " of " + std::to_string(workers) +
                                 " worker threads could be started: use fewer workers or raise the limits");
      } catch (...) {
        failed(rank);
      }
      break;
    }
  }
  for (auto& thread : threads) thread.join();
  if (first_error) std::rethrow_exception(first_error);
}

}  // namespace thinwire
