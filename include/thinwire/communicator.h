#pragma once
// How ranks talk. A Communicator is a thin shell over an engine that users already run: threads of one
// process, MPI, torch's c10d. Systems see tagged asynchronous messages and the dense collectives; whatever
// the engine does well natively it overrides, the rest comes from collectives.cc on send and receive.

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "thinwire/function_ref.h"
#include "thinwire/report.h"
#include "thinwire/span.h"
#include "thinwire/step_clock.h"

namespace thinwire {

class Communicator;

/// A message under way. Move-only. The buffer belongs to the operation until wait() returns or the Pending is
/// destroyed; destroying one that was not waited for abandons the message, after which the communicator must
/// not be used any more (the engine may have delivered half of it).
class Pending {
 public:
  Pending() = default;
  Pending(Pending&& other) noexcept { swap(other); }
  Pending& operator=(Pending&& other) noexcept {
    Pending moved(std::move(other));
    swap(moved);
    return *this;
  }
  ~Pending();

  /// Blocks until the buffer may be used again (send) or holds the message (receive). No-op when empty.
  /// Throws CommError when the peer is gone or one of the communicator's limits passes.
  void wait();

 private:
  friend class Communicator;
  Pending(Communicator* owner, void* operation, int peer)
      : owner_(owner), operation_(operation), peer_(peer) {}
  void swap(Pending& other) noexcept {
    std::swap(owner_, other.owner_);
    std::swap(operation_, other.operation_);
    std::swap(peer_, other.peer_);
  }

  Communicator* owner_ = nullptr;
  void* operation_ = nullptr;
  int peer_ = -1;
};

/// What ranks exchange together: one bucket of one step. The same on all ranks, but for `occasion`.
struct ExchangeCall {
  std::uint32_t bucket = 0;
  std::uint64_t step = 0;
  std::uint64_t elements = 0;
  /// How: "dense", "rows", "sum of Half". Only its first 15 characters are shown to other ranks.
  std::string_view kind = "dense";
  std::uint64_t names = 0;           ///< Hash of the parameters' names, in their order.
  std::string_view first_name = {};  ///< The first parameter's, for messages.
  std::string_view occasion = {};    ///< See SessionOptions::occasion. Its first 39 characters are shown.
};

/// Not thread-safe: one thread per rank drives one communicator.
class Communicator {
 public:
  /// Tags separate streams of messages between the same two ranks. Users take tags below kFirstReservedTag;
  /// the collectives use those above.
  using Tag = std::uint32_t;
  static constexpr Tag kFirstReservedTag = 1u << 8;

  virtual ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  /// 0, 1, ..., size() - 1: the members of a ring of all ranks.
  Span<const int> ranks() const { return ranks_; }
  /// The rank in messages: where this has some ranks of another communicator, that among all.
  virtual int number(int rank) const { return rank; }
  /// "threads", "mpi", "gloo": for messages and reports.
  virtual std::string engine() const = 0;
  /// Seconds on this rank's clock since some moment in the past. Where time is simulated the clock is the
  /// engine's.
  virtual double now_seconds() const;

  static constexpr double kLongestDeadlineSeconds = 86'400;
  /// Longest time that a blocking call waits while nothing moves between the ranks; default 5 minutes. Where
  /// the engine cannot see bytes move (all but gloo on Linux), longest time that it waits at all. Throws
  /// std::invalid_argument unless above 0 and at most a day.
  void set_deadline(std::chrono::duration<double> deadline);
  std::chrono::duration<double> deadline() const { return deadline_; }

  /// Longest time that all blocking calls of one step wait together, bytes moving or not. Default: an hour,
  /// or twice the deadline where that is longer. Heeded by the gloo engine. Throws std::invalid_argument
  /// unless above 0.
  void set_step_limit(std::chrono::duration<double> limit);
  std::chrono::duration<double> step_limit() const;

  /// Whether sums of host memory that the engine makes by itself, as gloo does, go by Thinwire's ring
  /// instead, whose messages carry checksums. Off unless set; the same on all ranks.
  void set_checked_sums(bool on) { checked_sums_ = on; }
  bool checked_sums() const { return checked_sums_; }

  /// How long the process of an awaited rank may show no sign of life while its machine answers. Default: the
  /// deadline, at least 4 s. Heeded by the gloo engine. Throws std::invalid_argument
  /// unless above 0.
  void set_silence_limit(std::chrono::duration<double> limit);
  std::chrono::duration<double> silence_limit() const;

  /// Names the work under way in the errors thrown from now on.
  void set_context(std::uint32_t bucket, std::uint64_t step);

  /// All that is sent and received from now on belongs to `call`, until end_exchange() or abandon_exchange():
  /// see Exchange, which calls them. Not collective.
  void begin_exchange(const ExchangeCall& call);
  void end_exchange();
  void abandon_exchange() noexcept;

  /// In an exchange of which nothing was sent: from now on this rank refuses nothing by itself. So its stamp
  /// goes out at once and travels while the rank works; calls are compared before the first message, as
  /// without. An exchange that is given up between leaves the communicator unusable, since others count on
  /// this rank. Does nothing outside of an exchange and after its first message. Not collective.
  void commit_exchange();
  /// Whether an exchange was given up after commit_exchange() and before its first message: then every other
  /// one throws CommError.
  bool is_given_up() const { return stage_ == Stage::given_up; }

  /// Whether the engine's own sums may begin before their call is compared. Off unless set; the same on all
  /// ranks. On, a sum whose call repeats that of the step before begins at once, and ranks compare while it
  /// is under way. Its result is not handed out before they have. A rank whose call does not repeat compares
  /// first, so no sum of different sizes begins. Where calls differ, the communicator is unusable afterwards,
  /// and `values` of a sum that had begun are undefined. Heeded by the gloo engine.
  void set_early_sums(bool on) { early_sums_ = on; }
  /// Sums so far that have begun before their call was compared.
  std::uint64_t sums_begun_early() const { return sums_begun_early_; }

  /// send() of what only guards other messages, counted in guard_bytes() too.
  Pending send_guard(int peer, Tag tag, Span<const std::byte> bytes);
  /// Bytes sent so far that guard others: stamps of exchanges, checksums of collectives.
  std::uint64_t guard_bytes() const { return guard_bytes_; }
  /// Whether collectives send a checksum (CRC-32C, 4 bytes) behind each of their messages: in an exchange,
  /// where the engine moves bytes over a network. The same on all ranks.
  bool seals() const { return stage_ == Stage::bound && size_ > 1 && may_lose_bits(); }
  /// Throws CorruptFrame, naming the peer, bucket and step, unless `seal` is the checksum of what arrived.
  void check_seal(int peer, Span<const std::byte> arrived, std::uint32_t seal) const;

  /// Sending and waiting are charged to this clock from now on; null: to none. It outlives its use here.
  void set_clock(StepClock* clock) { clock_ = clock; }

  /// Whether messages of several ranks to one go one after the other (core/turns.h).
  enum class Sending : std::uint8_t { at_once, in_turns };
  /// Bytes per second that come in from all others in exchanges of that kind: seven of the last ten times had
  /// less, about. It begins at most at kFirstInflow. 0: not known yet.
  double inflow(Sending how) const { return inflow_[static_cast<std::size_t>(how)]; }
  /// The larger one of both.
  double inflow() const { return std::max(inflow_[0], inflow_[1]); }
  static constexpr double kFirstInflow = 12.5e6;  // 100 Mbit/s
  /// So many bytes came from all others in so many seconds, from when this rank was about to send on.
  void saw_inflow(double bytes, double seconds, Sending how);
  /// How the long messages of the coming exchange go: as brought more bytes per second so far, and now and
  /// then as did not, which may have changed.
  Sending choose_sending();

  /// Whether long messages go one after the other, see core/turns.h: where several ranks can send to one at
  /// the same time over a network that drops packets.
  bool takes_turns() const { return size_ > 2 && may_lose_bits(); }
  /// Long messages to several ranks are about to go out (core/turns.h). Where several communicators of this
  /// process exchange at the same time, blocks until it is this one's turn, in an order that is the same on
  /// all ranks; the time is charged as waiting. Not collective: whether other ranks take turns does not
  /// matter. Throws what an earlier exchange has failed with.
  void await_turn();
  /// The exchange that await_turn() let through has no more long messages: the next one's turn, unless
  /// keep_turn() has been called since. Where nothing calls it, the end of the bucket ends the turn.
  void end_turn() {
    if (!std::exchange(keeps_turn_, false)) pass_turn();
  }
  /// The coming exchange is not the bucket's last one.
  void keep_turn() { keeps_turn_ = true; }

  /// Empty between collectives; a collective that keeps operations under way in it does not allocate again.
  /// Leave it empty, also on an exception (PendingLease in comm/ring.h does).
  std::vector<Pending>& pending_storage() { return pendings_; }

  /// Whether send() and receive() take `memory`. The same on all ranks. What lies on a CUDA device is of the
  /// calling thread's current one and complete: an engine knows nothing of the streams that work on it.
  virtual bool reaches(Memory memory) const { return memory == Memory::host; }

  /// Everything sent and received so far.
  const Traffic& traffic() const { return traffic_; }
  /// Messages so far that waited for each other: those to the peer that was sent most, and those of the
  /// engine's own collectives. So often the latency has passed, about.
  std::uint64_t messages_in_turn() const;

  // --- Messages. Two messages from one rank to another with the same tag arrive in the order they were sent.

  /// Sends `bytes` to `peer` (not this rank). Errors: std::invalid_argument for a peer outside [0, size) or
  /// memory that the engine cannot reach.
  Pending send(int peer, Tag tag, Span<const std::byte> bytes);
  /// Receives a message of exactly bytes.size() bytes; one of another size raises CorruptFrame (or the
  /// engine's own complaint as CommError) in wait().
  Pending receive(int peer, Tag tag, Span<std::byte> bytes);

  // --- Collectives: every rank calls the same ones in the same order with the same sizes. In an exchange
  // that is checked before anything is sent. Errors beside those of send() and receive(): CorruptFrame for
  // bytes that changed on the way, in collectives that are not the engine's own.

  /// values[i] becomes the sum over ranks, bit-identical on all ranks. Ring bound: 2 (W-1)/W * 4 n bytes
  /// sent. Values on a device: only where reduces() says so, with send()'s conditions.
  virtual void all_reduce_sum(Span<float> values);
  /// Whether all_reduce_sum takes `memory`, whatever reaches() says. The same on all ranks.
  virtual bool reduces(Memory memory) const { return memory == Memory::host; }
  /// words[i] becomes the bitwise OR over ranks. Same bytes as all_reduce_sum, 8 per word. Never an engine's
  /// own: what follows is as long as the result says, so all of it is checked.
  void all_reduce_or(Span<std::uint64_t> words);
  /// all [W * n] receives every rank's mine [n] in rank order; (W-1) n bytes sent. `mine` may alias its slot.
  virtual void all_gather(Span<const std::byte> mine, Span<std::byte> all);
  /// As all_gather with counts[r] bytes from rank r, the same counts on all ranks; all: [sum of counts].
  virtual void all_gather_v(Span<const std::byte> mine, Span<std::byte> all, Span<const std::size_t> counts);
  /// `bytes` of rank `root` reach all ranks; binomial tree, at most ceil(log2 W) * n bytes sent.
  virtual void broadcast(Span<std::byte> bytes, int root);
  /// Returns when all ranks have called it.
  virtual void barrier();

  /// Bytes that this rank sends in a ring all-reduce of n elements.
  std::uint64_t ring_sent_bytes(std::size_t elements, std::size_t element_bytes) const;

 protected:
  Communicator(int rank, int size);

  // What an engine provides. An operation is whatever the engine needs to find the message again.
  virtual void* start_send(int peer, Tag tag, Span<const std::byte> bytes) = 0;
  virtual void* start_receive(int peer, Tag tag, Span<std::byte> bytes) = 0;
  /// Blocks until done or deadline; frees the operation in either case.
  virtual void finish(void* operation, int peer) = 0;
  /// Gives up and frees the operation.
  virtual void abandon(void* operation) noexcept = 0;

  /// Blocks until it is this communicator's turn. Default: it has no others beside it.
  virtual void begin_turn() {}
  virtual void pass_turn() {}

  /// For an engine's own collectives, whose messages nobody sees: counts what the usual algorithm moves.
  void count_native(std::uint64_t sent_bytes, std::uint64_t received_bytes, std::uint64_t messages);
  /// What it receives in a ring all-reduce of n elements: as it sends, ring-shifted.
  std::uint64_t ring_received_bytes(std::size_t elements, std::size_t element_bytes) const;

  /// As the inherited all_reduce_sum, of doubles in host memory.
  void ring_sum(Span<double> values);

  [[noreturn]] void fail(int peer, const std::string& what) const;
  /// The step of set_context().
  std::uint64_t step() const { return step_; }

  /// False: messages stay in this process's memory and need no checksum.
  virtual bool may_lose_bits() const { return true; }
  /// For an engine's own collectives, before anything else: where an exchange has begun and nothing of it was
  /// sent, finds out whether all ranks make the same call. Collective then. Throws CommError on every rank if
  /// not.
  void bind_exchange() {
    if (stage_ != Stage::outside && stage_ != Stage::bound) compare_calls();
  }
  /// Where the engine's collective may begin before bind_exchange() (set_early_sums). True: this rank's stamp
  /// is under way, all ranks that make this call expect it, and finish_comparison() follows in place of
  /// bind_exchange(). False: nothing has changed.
  bool begin_comparison();
  /// After begin_comparison() and the beginning of the collective. Throws as bind_exchange() does.
  void finish_comparison();

 private:
  /// announced: nothing is sent; committed: the stamp alone.
  enum class Stage : std::uint8_t { outside, announced, committed, bound, given_up };
  struct CallRecord;
  struct StampHop;
  struct Calls;

  void compare_calls();
  void spread_stamps();
  void start_hop(std::size_t reach);
  void finish_hop(std::size_t reach);
  void finish_sends_of_hop();
  [[noreturn]] void refuse_given_up() const;
  [[noreturn]] void refuse_calls(const CallRecord& mine);
  void refuse_missed_occasion(Span<const CallRecord> all) const;
  friend class Pending;
  friend class GroupCommunicator;
  void check_peer(int peer, const char* verb) const;

  int rank_;
  int size_;
  std::vector<int> ranks_;
  std::uint32_t bucket_ = 0;
  std::uint64_t step_ = 0;
  std::chrono::duration<double> deadline_{300.0};
  std::chrono::duration<double> step_limit_{0};     // 0: not set
  std::chrono::duration<double> silence_limit_{0};  // 0: not set
  StepClock* clock_ = nullptr;
  Traffic traffic_;
  std::vector<std::uint64_t> sent_to_;  // messages, by peer
  std::uint64_t native_messages_ = 0;
  std::array<double, 2> inflow_{};  // bytes per second, by Sending
  Sending sending_ = Sending::in_turns;
  std::uint64_t long_exchanges_ = 0;
  bool keeps_turn_ = false;
  bool checked_sums_ = false;
  Stage stage_ = Stage::outside;
  ExchangeCall call_;
  std::unique_ptr<StampHop> hop_;  // of the comparison under way
  std::unique_ptr<Calls> calls_;   // those before
  bool early_sums_ = false;
  bool repeats_ = false;  // the exchange under way
  std::uint64_t sums_begun_early_ = 0;
  std::uint64_t guard_bytes_ = 0;
  // Of the collectives; they grow once.
  std::vector<std::byte> scratch_;
  std::vector<Pending> pendings_;
  std::vector<std::uint32_t> seals_;

  template <class T, class Combine>
  void ring_all_reduce(Span<T> values, Combine combine);
  void exchange_parts(Span<const std::byte> mine, Span<std::byte> all,
                      FunctionRef<std::size_t(std::size_t)> count);
  Span<std::byte> scratch(std::size_t bytes);
};

/// Binds everything that is exchanged while it lives to one call. Before the first message the ranks compare
/// what they call, by a stamp of 20 bytes that goes to at most seven ranks in each of ceil(log8 W) hops.
/// Where any two differ, every rank gets a CommError that names who differs in what, and nothing is added up;
/// so no rank hands out a mean of different buckets, steps, sizes or parameters. Sums that may begin early:
/// Communicator::set_early_sums.
class Exchange {
 public:
  /// Not collective. call.first_name lives as long as the exchange.
  Exchange(Communicator& communicator, const ExchangeCall& call) : communicator_(&communicator) {
    communicator.begin_exchange(call);
  }
  ~Exchange() {
    if (communicator_ != nullptr) communicator_->abandon_exchange();
  }
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  /// Before the result is used. Collective: the ranks compare their calls here where nothing had to be sent.
  void finish() { std::exchange(communicator_, nullptr)->end_exchange(); }

 private:
  Communicator* communicator_;
};

}  // namespace thinwire
