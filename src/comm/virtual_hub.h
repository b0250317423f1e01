#pragma once
// The scheduler behind virtual_network.h: who runs, what is on its way, and when it is delivered.
//
// A conservative discrete-event simulation. One rank at a time holds the token, and only the holder touches
// the hub. When it blocks, it takes events from the queue in order of time: a message whose first bit arrives
// gets its place in the receiver's ingress, a rank that may go on gets the token. Whoever runs has a clock no
// earlier than the last event, so every message that could reach an ingress earlier has been sent already.

#include <array>
#include <condition_variable>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "comm/channel.h"
#include "comm/stage_ledger.h"
#include "thinwire/virtual_network.h"

namespace thinwire {

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
  bool settled = false;   ///< Its turn in the ingress is known.
  bool released = false;  ///< The sender has done with it.
  bool taken = false;     ///< The receiver has done with it.
  std::unique_ptr<std::byte[]> copy;
  std::size_t copy_class = 0;
};

class VirtualHub {
 public:
  VirtualHub(int workers, const VirtualLink& link);

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
    double egress_free = 0;
    double ingress_free = 0;
    int awaiting = -1;                     ///< A rank or kEveryone while blocked, else -1.
    const VirtualOperation* on = nullptr;  ///< The receive that it is blocked on.
    bool resuming = false;                 ///< An event will wake it.
    bool ended = false;

    std::mutex mutex;
    std::condition_variable wake;
    bool token = false;
  };

  struct Event {
    double time = 0;
    VirtualOperation* arrival = nullptr;  ///< nullptr: the rank goes on.
    int rank = 0;                         ///< Who goes on, or who sent.
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

  VirtualOperation* allocate();
  void free(VirtualOperation* operation);
  void free_if_done(VirtualOperation* send);
  void keep_bytes(VirtualOperation* send);
  void pair(VirtualOperation* send, VirtualOperation* receive);
  void match(VirtualOperation* operation);
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
  std::deque<Rank> ranks_;
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

  std::deque<VirtualOperation> storage_;  // stable addresses
  VirtualOperation* free_ = nullptr;
  std::array<std::vector<std::unique_ptr<std::byte[]>>, 64> buffers_;  // by power of two
};

}  // namespace thinwire
