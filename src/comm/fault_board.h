#pragma once
// Finds out which rank is dead when a communicator gives up. A rank only knows whom it waits for, and that
// one may be waiting itself: with one frozen rank in a ring, every other rank sees its live neighbour time
// out. So each rank writes whom it awaits into a store that all can reach. Then it follows the chain to a
// rank that is awaited and silent.
//
// Every board's thread also writes a beat now and then, as long as its process lives, so a rank that is busy
// by itself is told apart from one that is gone. It is read by those who wait for long (wait_watch.h), and by
// the rank before.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "comm/fault_note.h"
#include "comm/verdict.h"

namespace thinwire {

/// How long something has been silent, without what an interrupted network explains.
class Silence {
 public:
  void heard() { seconds_ = 0; }
  void nothing_for(double seconds) { seconds_ += seconds; }
  /// The other end has been out of reach for so long. TCP's pauses between retransmissions double: what was
  /// lost may come as late after the end of an outage as the outage was long. So that much is excused.
  void out_of_reach_for(double seconds) { seconds_ = std::min(seconds_, -seconds); }
  double seconds() const { return seconds_; }

 private:
  double seconds_ = 0;
};

/// One rank's view of the board. Its methods are called by the thread that drives the communicator. Store
/// operations may block for ever when the store's host is frozen, so they run on a thread of the board's own,
/// which is given up rather than waited for.
class FaultBoard {
 public:
  using Seconds = std::chrono::duration<double>;

  /// The operations of a rendezvous store that are needed. Each may throw or block when its host is gone.
  class Store {
   public:
    virtual ~Store() = default;
    virtual void set(const std::string& key, const std::string& value) = 0;
    /// Nothing when nobody has set the key; does not wait for it.
    virtual std::optional<std::string> get(const std::string& key) = 0;
    /// Sets the key unless somebody has, in one operation of the store; returns what stands afterwards.
    virtual std::string set_if_absent(const std::string& key, const std::string& value) = 0;
    /// Adds to a number that begins at 0; returns what it is then.
    virtual std::int64_t add(const std::string& key, std::int64_t number) = 0;
  };

  struct Options {
    int rank = 0;
    int size = 1;
    int store_host = 0;   ///< The rank whose process serves the store; -1: none of them.
    std::string links{};  ///< What Links::describe() says of this rank's connections; empty: not known.
    std::string prefix = "thinwire/fault/";
  };

  FaultBoard(std::shared_ptr<Store> store, Options options);
  /// For a rank whose board opens soon, before others may wait for it: from now on silence counts. Where all
  /// ranks have come to a start together, none can stop unseen between it and its board's first beat.
  static void write_first_note(Store& store, const Options& options);
  /// A store operation that does not come back soon is left to its thread.
  ~FaultBoard();
  FaultBoard(const FaultBoard&) = delete;
  FaultBoard& operator=(const FaultBoard&) = delete;

  /// This rank has been waiting for these ranks for a while (empty: unknown). From now on the board says so,
  /// and reads their beats and whether bytes move between any ranks, every `period`.
  void waits_for(const std::vector<int>& ranks, Seconds period);
  /// Of the awaited, those of which the board shall find out whether they have left in good order, instead of
  /// any that it was told before. On a slow network each question costs, so it asks for no others.
  void may_have_left(std::vector<int> ranks);
  /// The wait is over.
  void waits_no_more();
  /// Beats are written so often that others miss none within `grace`.
  void set_grace(Seconds grace);

  /// From now on, also while this rank waits for nobody: the next rank is to blame once its process has not
  /// beaten for so long. Ranks may wait for it where no board knows of it. 0: not any more.
  void watch_next(Seconds patience);
  /// Boards of one process over the same ranks, one for each of its communicators: bytes that move on the
  /// connections of one excuse the silence on another. Before watch_next(); `signs` is the same for all.
  using Signs = std::atomic<std::chrono::steady_clock::rep>;
  void share_signs(std::shared_ptr<Signs> signs);

  /// Tells waiting ranks that bytes move on this one's connections.
  void announce_movement();
  /// While this rank cannot reach others, it knows nothing of their silence; see Silence. 0: nor while the
  /// network is busy.
  void out_of_reach_for(double seconds);
  /// Called every so often, with the time since the last call and the part of it that this process is sure to
  /// have run for. What has stood still for the deadline was away: this process, or the store's host. A
  /// failure soon afterwards is laid to it: while the store is silent no rank's note can move, and ranks may
  /// have given up and gone since, so that notes say nothing of the others.
  void time_passes(Seconds time, Seconds awake, Seconds deadline);

  /// What the store has said since waits_for(); at once, however slow the store is. A conclusion stays.
  struct Hearing {
    std::uint64_t movements = 0;      ///< Grows when other ranks announce movement.
    std::vector<int> silent;          ///< Of the awaited: no beat for longer than `limit`, and not left.
    std::vector<int> left;            ///< Of the awaited: it has left in good order.
    std::uint64_t store_answers = 0;  ///< Operations that came back, ever.
    bool asks_store = false;          ///< One is under way.
    bool concluded = false;           ///< A rank has given up and said whom it blames.
  };
  Hearing hear(Seconds limit) const;

  /// Whose this rank's connections are, for Links::identify(); once, when it is known.
  std::optional<std::string> take_link_owners();

  /// This rank has failed while awaiting these ranks (empty: unknown). Returns at once.
  /// deadline: others that live may notice, and ask, so much later.
  void report(std::vector<int> awaited, Seconds grace, Seconds deadline = Seconds(0));

  /// After report(). Whom this rank, and all others that ask, should blame. Takes `grace` at most when the
  /// store answers, another `grace` when it does not (then its host is the culprit). The store's host then
  /// stays until the others have their answers too: 2 * grace for one whose process does not beat, that and
  /// the deadline for one whose process does.
  /// evidence: what this rank has seen itself. Where that says nothing, whoever was away, see time_passes(),
  /// or else what the others' notes say. The evidence is what the others are told, also where it blames
  /// nobody. With evidence a store that does not answer is waited for 1 s at most. Where it does not answer,
  /// what this rank has read of another's conclusion comes before the evidence.
  Verdict judge(const Verdict& evidence = {});
  /// The same after an error elsewhere in this process, which did not wait for the ranks of report(). One
  /// that has left() is not missed: where no other is silent, the verdict blames nobody. The store's host
  /// does not stay: see stay().
  Verdict judge_lost();

  /// With tell(): the process ends, and does not only leave this exchange. Returns at once; for any thread,
  /// and one at a time.
  void tell_end();
  /// Whether ranks are gone, or a process ends by an error: read from the store with every beat. Also when
  /// the store has not answered for twice the deadline. An error that a script may catch is neither.
  bool others_have_ended() const;

  /// This rank ends although nothing has failed here, since something else of its process has. Other ranks
  /// that ask hear this verdict: they would blame this one, whose note stands still. Those that wait for long
  /// end their waits, this one included. Returns at once; for any thread, and one at a time. The board's end
  /// still says it.
  void tell(const Verdict& verdict);

  /// After tell(), where this process serves the store: stays until all other ranks but those that it blames
  /// have read of it or are gone, for `patience` at most, or until `enough`, which it sets then. At once
  /// elsewhere.
  void stay(Seconds grace, Seconds patience, std::atomic<bool>& enough);

  /// At an orderly end: returns when every rank has called it, or when `patience` is over. Sockets closed
  /// earlier would cut off ranks that are still reading their last message. Others that miss this rank later
  /// find that it has left.
  void leave(Seconds patience);

  /// After leave(), where this process serves the store, and at once elsewhere: stays while other ranks wait
  /// in an exchange or have failed, since they ask whom to blame. They may ask as late as the deadline.
  /// Whoever waits for this rank shall notice before: its connections are closed by now. grace: of the
  /// others' inquiries, see report().
  void stay_for_those_who_ask(Seconds grace, Seconds deadline);

  /// This rank leaves before its step is over, and waits for nobody.
  /// Its script has caught the error that ended the step. Others that miss it later find that it has left.
  /// Returns at once.
  void leave_alone();

 private:
  struct Shared;
  struct Inquiry;
  static std::string key_of(const Options& options, const char* kind, int rank) {
    return options.prefix + kind + (rank < 0 ? "" : std::to_string(rank));
  }
  void post(std::function<void()> job);
  Verdict inquire(const Verdict& evidence, bool blames_left);
  Verdict without_store() const;
  std::shared_ptr<std::atomic<bool>> begin_stay(std::vector<int> culprits, Seconds grace, Seconds patience);
  bool await_store(const std::atomic<bool>& done, Seconds silence, Seconds in_all);

  std::shared_ptr<Shared> shared_;
  std::thread thread_;
  std::vector<int> awaited_;
  std::vector<int> blamed_;  // by what was told last
  Seconds grace_{1.0};
  Seconds deadline_{0.0};
};

}  // namespace thinwire
