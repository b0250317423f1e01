#pragma once
// The scheduler behind virtual_network.h: who runs, what is on its way, and when it is delivered.
//
// A conservative discrete-event simulation. One rank at a time holds the token, and only the holder touches
// the hub. When it blocks, it takes events from the queue in order of time: a message whose first bit arrives
// gets its place in the receiver's ingress, a rank that may go on gets the token. Whoever runs has a clock no
// earlier than the last event, so every message that could reach an ingress earlier has been sent already.
//
// Where ranks share a link, leaving is an event too: who runs may be ahead of another rank, which will send
// earlier by the clock.

#include <algorithm>
#include <array>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "comm/channel.h"
#include "thinwire/virtual_network.h"

namespace thinwire {

/// What a communication should cost by arithmetic, from counted bytes and from what depended on what, without
/// simulating when anything happened: the figure that a simulated time is held against.
/// A message belongs to the stage after the latest stage that its sender had received from; the first is 1.
/// See VirtualInterval::formula_seconds for what stages cost. Bytes are counted as the seconds that they
/// occupy a link.
class StageLedger {
 public:
  /// latencies: of the links, each of which has a number. A message has one at either end.
  StageLedger(std::size_t ranks, std::vector<double> latencies)
      : ranks_(ranks), links_(latencies.size()), latencies_(std::move(latencies)) {}

  struct Place {
    std::uint32_t stage = 0;
    double sent_through = 0;  ///< What its sender's link has sent in the stage, this message included.
  };

  Place sent(std::size_t rank, std::size_t link, double seconds) {
    Rank& own = ranks_[rank];
    for (const std::size_t one : own.awaited_links) load_of(links_[one], own.latest).sent_on = true;
    own.awaited_links.clear();
    own.sent = own.latest + 1;
    Load& load = load_of(links_[link], own.sent);
    load.sent += seconds;
    return {own.sent, load.sent};
  }

  void received(std::size_t rank, std::size_t link, const Place& place, double seconds) {
    Rank& own = ranks_[rank];
    Load& load = load_of(links_[link], place.stage);
    load.received += seconds;
    if (own.sent <= place.stage) load.awaited = std::max({load.awaited, load.received, place.sent_through});
    if (place.stage < own.latest) return;
    if (place.stage > own.latest) own.awaited_links.clear();
    own.latest = place.stage;
    if (!std::ranges::count(own.awaited_links, link)) own.awaited_links.push_back(link);
  }

  std::size_t stages() const {
    std::size_t most = 0;
    for (const auto& loads : links_) most = std::max(most, loads.size());
    return most;
  }

  double seconds() const {
    const std::size_t last = stages();
    double total = 0;
    for (std::size_t stage = 1; stage <= last; ++stage) {
      double slowest = 0;
      for (std::size_t link = 0; link < links_.size(); ++link) {
        if (stage > links_[link].size()) continue;
        const Load& load = links_[link][stage - 1];
        double cost = std::max(load.sent, load.received);
        if (stage == last) {
          cost += latencies_[link];
        } else if (load.sent_on) {
          cost = std::max(cost, latencies_[link] + load.awaited);
        }
        slowest = std::max(slowest, cost);
      }
      total += slowest;
    }
    return total;
  }

  void clear() {
    for (Rank& rank : ranks_) rank = {};
    for (auto& loads : links_) loads.clear();
  }

 private:
  struct Load {
    double sent = 0;
    double received = 0;
    /// Before anything of the next stage was sent: what was received, or a sender had to send until then.
    double awaited = 0;
    bool sent_on = false;
  };
  struct Rank {
    std::uint32_t latest = 0;                // stage that something was received from
    std::uint32_t sent = 0;                  // and sent in
    std::vector<std::size_t> awaited_links;  // by which, since something was sent
  };

  static Load& load_of(std::vector<Load>& loads, std::uint32_t stage) {
    if (loads.size() < stage) loads.resize(stage);
    return loads[stage - 1];
  }

  std::vector<Rank> ranks_;
  std::vector<std::vector<Load>> links_;  // by stage
  std::vector<double> latencies_;
};

/// A send or a receive.
struct VirtualOperation {
  bool sending = false;
  Communicator::Tag tag = 0;
  int from = -1;
  int to = -1;
  const std::byte* source = nullptr;  ///< Sends: the sender's memory, later `copy`.
  std::byte* target = nullptr;
  std::size_t size = 0;
  VirtualOperation* counterpart = nullptr;  ///< Once matched; the bytes have been copied then.
  VirtualOperation* next = nullptr;         ///< In its channel, or in the list of free ones.

  // Of sends.
  double egress_end = 0;
  double delivered = 0;  ///< Known once settled.
  StageLedger::Place place;
  bool departed = false;  ///< Its turn in the egress is known.
  bool settled = false;   ///< Its turn in the ingress is known.
  bool released = false;  ///< The sender has done with it.
  bool taken = false;     ///< The receiver has done with it.
  std::unique_ptr<std::byte[]> copy;
  std::size_t copy_class = 0;
};

class VirtualHub {
 public:
  VirtualHub(int workers, const VirtualLink& link, const VirtualHosts& hosts);

  // --- By the rank that holds the token.

  VirtualOperation* send(int from, int to, Communicator::Tag tag, Span<const std::byte> bytes);
  VirtualOperation* receive(int to, int from, Communicator::Tag tag, Span<std::byte> bytes);

  /// Moves the rank's clock to the end of the operation; false when it will never end. For a receive, `size`
  /// becomes the message's. Frees the operation unless false.
  bool wait(VirtualOperation* operation, std::size_t& size);
  void abandon(VirtualOperation* operation);

  double clock(int rank) const { return at(rank).clock; }
  void advance(int rank, double seconds) { at(rank).clock += seconds; }
  /// False when some rank will never come.
  bool align(int rank, VirtualInterval& interval);

  /// After a false: why, and the rank to blame or -1.
  const std::string& complaint() const { return complaint_; }
  int culprit() const { return culprit_; }

  // --- Of the threads.

  int workers() const { return static_cast<int>(ranks_.size()); }
  /// Blocks until the rank holds the token for the first time. False: not all ranks could be started.
  bool begin(int rank);
  /// Hands the token on for good. `error`: what the body threw, or empty.
  void end(int rank, std::exception_ptr error);
  /// Lets ranks [0, started) run; fewer than all: only to be told so.
  void start(int started);
  /// What the first body that failed threw.
  std::exception_ptr first_error() const { return first_error_; }

 private:
  static constexpr int kEveryone = -2;  ///< Awaited in align().

  struct Rank {
    double clock = 0;
    int awaiting = -1;                     ///< A rank or kEveryone while blocked, else -1.
    const VirtualOperation* on = nullptr;  ///< What it is blocked on.
    bool resuming = false;                 ///< An event will wake it.
    bool ended = false;

    std::mutex mutex;
    std::condition_variable wake;
    bool token = false;
  };

  /// One end of a link.
  struct Port {
    double egress_free = 0;
    double ingress_free = 0;
  };

  struct Event {
    double time = 0;
    VirtualOperation* message =
        nullptr;   ///< Leaves, or arrives where it has left; nullptr: the rank goes on.
    int rank = 0;  ///< Who goes on, or who sent.
    std::uint64_t number = 0;

    /// For a heap whose top is the next event. At one time ranks go first: what they send may arrive at once.
    bool operator<(const Event& other) const;
  };

  Rank& at(int rank) { return ranks_[static_cast<std::size_t>(rank)]; }
  const Rank& at(int rank) const { return ranks_[static_cast<std::size_t>(rank)]; }
  Channel<VirtualOperation>& channel(int from, int to) {
    return channels_[static_cast<std::size_t>(from) * ranks_.size() + static_cast<std::size_t>(to)];
  }
  bool interrupted() const { return failed_ || stuck_; }
  bool within_host(const VirtualOperation& message) const {
    return hosts_.ranks_per_host > 1 &&
           message.from / hosts_.ranks_per_host == message.to / hosts_.ranks_per_host;
  }
  const VirtualLink& link_of(const VirtualOperation& message) const {
    return within_host(message) ? hosts_.inside : link_;
  }
  /// The number of the port by which the rank sends or receives it: hosts come first.
  std::size_t port_of(const VirtualOperation& message, int rank) const {
    const int hosts = workers() / hosts_.ranks_per_host;
    return static_cast<std::size_t>(within_host(message) ? hosts + rank : rank / hosts_.ranks_per_host);
  }

  void free(VirtualOperation* operation);
  void free_if_done(VirtualOperation* send);
  void keep_bytes(VirtualOperation* send);
  void pair(VirtualOperation* send, VirtualOperation* receive);
  void match(VirtualOperation* operation);
  void depart(VirtualOperation* send, double time);
  void settle(VirtualOperation* send, double arrival);

  void push(Event event);
  void resume(int rank, double time);
  void resume_all_blocked();
  int next_rank();  ///< -1 when all have ended.
  void give_token(int rank);
  void await_token(Rank& rank);
  void block(int rank, int awaited, const VirtualOperation* on);
  void call_stuck();

  VirtualLink link_;
  VirtualHosts hosts_;
  std::deque<Rank> ranks_;
  std::vector<Port> ports_;
  std::vector<Channel<VirtualOperation>> channels_;
  std::vector<Event> events_;  // a heap
  std::uint64_t numbers_ = 0;
  StageLedger ledger_;
  double aligned_at_ = 0;
  int aligning_ = 0;
  VirtualInterval interval_;

  bool cancelled_ = false;
  bool stuck_ = false;
  bool failed_ = false;
  std::string complaint_;
  int culprit_ = -1;
  std::exception_ptr first_error_;

  OperationPool<VirtualOperation> pool_;
  std::array<std::vector<std::unique_ptr<std::byte[]>>, 64> buffers_;  // by power of two
};

}  // namespace thinwire
