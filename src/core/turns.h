#pragma once
// Long messages from each rank to each take turns. Senders that all aim at one receiver at the same moment
// overrun the queue in front of its link: packets are lost, and TCP waits 200 ms or more for some of them.
// With turns every receiver has one sender at a time, as far as the ranks are at the same point.
//
//   turn 1: to self + 1        what self - 1 sends arrives
//   turn 2: to self + 2        once that has arrived; and so on
//
// No rank waits for ever: everybody's first message goes at once, and the message of turn k waits only for
// one of turn k - 1. It does not matter whether the ranks agree about what is long. Buckets that are under
// way at the same time take turns too, since each has senders of its own: see Communicator::await_turn.
//
// What is long depends on the link, whose rate the exchanges before have shown (Communicator::inflow). A turn
// costs a latency and the time until a thread wakes, so what fits into the queue does without. Over a link
// of much latency, or with many ranks, that can be more than lost packets cost. So turns are taken where they
// have brought more bytes per second than sending at once, which is tried now and then.

#include <chrono>
#include <cstddef>
#include <utility>

#include "thinwire/communicator.h"

namespace thinwire {

class Turns {
 public:
  /// Whatever the rate, so little goes without turns.
  static constexpr std::size_t kShortBytes = std::size_t{32} << 10;
  /// What the queue in front of a link holds, in time on that link: packets wait up to some tens of
  /// milliseconds in the queues of common switches and routers before they are dropped.
  static constexpr std::chrono::duration<double> kQueue{0.02};

  explicit Turns(Communicator& communicator)
      : communicator_(communicator),
        world_(static_cast<std::size_t>(communicator.size())),
        self_(static_cast<std::size_t>(communicator.rank())) {}

  /// To be called before `bytes` go to self + `shift`, with shifts from 1 on in ascending order. Calls
  /// await(peer) for the ranks self - 1, self - 2, ... whose messages go ahead of these bytes.
  void before(std::size_t shift, std::size_t bytes, FunctionRef<void(std::size_t peer)> await) {
    if (began_ == Clock::time_point()) began_ = Clock::now();
    if (!is_long(bytes)) return;
    if (!std::exchange(chose_, true)) {
      sending_ = communicator_.choose_sending();
      if (sending_ == Sending::in_turns) communicator_.await_turn();
    }
    while (sending_ == Sending::in_turns && next_ < shift) take(await);
  }
  /// Calls await(peer) for all others of which before() has not.
  void rest(FunctionRef<void(std::size_t peer)> await) {
    while (next_ < world_) take(await);
  }

  /// A message of `bytes` has come from one of the others. The last one's tells the rate.
  void arrived(std::size_t bytes) {
    bytes_ += bytes;
    if (++messages_ + 1 != world_ || bytes_ < kLeastBytes || began_ == Clock::time_point()) return;
    const std::chrono::duration<double> seconds = Clock::now() - began_;
    communicator_.saw_inflow(static_cast<double>(bytes_), seconds.count(), sending_);
  }

 private:
  using Sending = Communicator::Sending;
  /// So much from all others tells the link's rate: 20 ms of Communicator::kFirstInflow. Latencies are most
  /// of what less takes.
  static constexpr std::size_t kLeastBytes = 250'000;
  using Clock = std::chrono::steady_clock;

  bool is_long(std::size_t bytes) const {
    if (!communicator_.takes_turns() || bytes < kShortBytes) return false;
    return static_cast<double>(bytes * (world_ - 1)) >= kQueue.count() * communicator_.inflow();
  }
  void take(FunctionRef<void(std::size_t peer)> await) {
    await((self_ + world_ - next_) % world_);
    ++next_;
  }

  Communicator& communicator_;
  std::size_t world_;
  std::size_t self_;
  bool chose_ = false;
  Sending sending_ = Sending::at_once;
  std::size_t next_ = 1;  // the shift whose message has not been awaited
  Clock::time_point began_;
  std::size_t messages_ = 0;  // that have come
  std::size_t bytes_ = 0;     // in them
};

}  // namespace thinwire
