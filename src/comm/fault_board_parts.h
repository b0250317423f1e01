#pragma once
// What a fault board is made of: what its thread works on, and the inquiry after a failure.

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "comm/fault_board.h"

namespace thinwire {

/// What is known of one awaited rank.
struct Heard {
  std::string last;  ///< The note that was read last.
  Silence silence;
  bool has_left = false;
};

/// A process that has stood still for the deadline.
struct Absence {
  int rank;
  double seconds;
  std::chrono::steady_clock::time_point until;
};

/// What outlives the board when its thread is stuck in the store.
struct FaultBoard::Shared {
  Shared(std::shared_ptr<Store> the_store, Options the_options)
      : store(std::move(the_store)), options(std::move(the_options)) {}

  std::string key(const char* kind, int rank) const { return key_of(options, kind, rank); }
  /// One operation of the store; others can see that it is under way.
  template <class Run>
  auto ask(Run run) {
    const struct Under {
      explicit Under(Shared& the_shared) : shared(the_shared) { shared.asks = true; }
      ~Under() {
        shared.asks = false;
        ++shared.answers;
      }
      Shared& shared;
    } under(*this);
    return run();
  }
  void set(const std::string& key, const std::string& value) {
    ask([&] { store->set(key, value); });
  }
  std::optional<std::string> get(const std::string& key) {
    return ask([&] { return store->get(key); });
  }
  std::string set_if_absent(const std::string& key, const std::string& value) {
    return ask([&] { return store->set_if_absent(key, value); });
  }
  std::int64_t add(const std::string& key, std::int64_t number) {
    return ask([&] { return store->add(key, number); });
  }

  void run();
  void round();
  void beat(const std::vector<int>& awaited, bool is_waiting);
  /// Between report() and the end of its inquiry: others shall see that this process still asks.
  void beat_failed();
  void listen(const std::vector<int>& awaited, double elapsed);
  void look_at_next();
  void forget_next();
  std::optional<std::string> read_conclusion();
  /// Whether this, read under "culprit", means that ranks are gone or end.
  bool says_an_end(const std::optional<std::string>& verdict);
  void share_links();
  void match_everyones_links();
  Verdict away_lately(std::chrono::duration<double> deadline) const;

  const std::shared_ptr<Store> store;
  const Options options;
  std::atomic<std::uint64_t> answers{0};  ///< Store operations that came back.
  std::atomic<double> period{0.5};        ///< Seconds between two rounds.
  std::atomic<double> beat_period{0.3};
  std::atomic<double> patience_with_next{0};  ///< Seconds; 0: it is not watched.
  std::atomic<bool> asks{false};              ///< An operation of the store is under way.
  std::atomic<bool> moves{false};             ///< Movement that was not announced yet.
  std::atomic<std::uint64_t> ticks{0};        ///< Calls of time_passes().
  std::atomic<bool> others_ended{false};
  std::atomic<bool> answers_last_inquiry{false};  ///< The store has, so it can be stayed for.

  // Of the board's thread alone.
  bool described = false;     ///< This rank's connections are.
  bool knows_owners = false;  ///< Of its connections.
  int rounds_left_out = 0;    ///< After the last round that met an error of the store.
  int rounds_to_leave_out = 0;
  std::uint64_t beats = 0;
  std::optional<FaultNote> failed_note;  ///< From report() until this rank has its verdict.
  std::uint64_t announced = 0;
  Heard next;  ///< The next rank, where it is watched.
  std::string movement_at_last_look;
  std::shared_ptr<Signs> signs = std::make_shared<Signs>(0);  ///< When one was seen last; under the mutex.
  std::chrono::steady_clock::time_point last_look_at_next = std::chrono::steady_clock::now();
  std::chrono::steady_clock::time_point last_beat{};
  std::chrono::steady_clock::time_point last_round = std::chrono::steady_clock::now();
  std::string last_movement;
  std::vector<std::string> lists;   ///< On rank 0: ranks' connections, those of the first ranks so far.
  std::vector<std::string> owners;  ///< On rank 0, once it has all lists: what it tells each rank.
  std::size_t told = 0;             ///< To so many.

  mutable std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::function<void()>> jobs;
  std::vector<int> waits_for;
  std::vector<int> may_have_left;  ///< Of the awaited: to be asked for.
  std::map<int, Heard> heard;
  Silence store_silence;
  std::uint64_t answers_before = 0;        ///< When time_passes() was called last.
  std::optional<Absence> absence;          ///< The latest.
  std::optional<std::string> link_owners;  ///< Until it is taken.
  std::optional<std::string> concluded;    ///< An encoded verdict, as it was read.
  std::uint64_t movements = 0;
  bool stop = false;
  bool ended = false;
  bool failed = false;  ///< This rank's note says so from now on.
  bool waiting = false;
};

/// Who is to blame (fault_inquiry.cc). All of it runs on the board's thread.
struct FaultBoard::Inquiry {
  std::atomic<bool> done{false};
  bool store_failed = false;
  Verdict verdict;

  static Verdict unreachable(const Options& options) {
    if (options.store_host < 0) return {{}, "the rendezvous store does not answer"};
    if (options.store_host == options.rank) return {{}, "this rank's own rendezvous store does not answer"};
    return {{options.store_host}, "the rendezvous store that it hosts does not answer"};
  }

  static Verdict conclude(Shared& shared, const Verdict& own);
  static std::optional<Verdict> await_conclusion(Shared& shared, Seconds grace);
  static Verdict ask(Shared& shared, const std::vector<int>& awaited, Seconds grace, bool blames_left);
  /// What all other ranks say at this moment; nothing in large worlds, where each rank would ask for all.
  static std::map<int, std::string> notes_of_all(Shared& shared);
  /// Whether it has failed, and knows why: it asks no more.
  static bool has_its_verdict(Shared& shared, int rank, const FaultNote& note);
  static std::vector<int> silent_since(Shared& shared, const std::map<int, std::string>& before);
  /// The value of a rank's "left/" where it has closed before its step was over.
  static constexpr const char* kWithinStep = "within a step";
  /// Of ranks all of which have left.
  static std::string why_left(Shared& shared, const std::vector<int>& ranks);
  static std::vector<int> without_left(Shared& shared, const std::vector<int>& ranks);
  static void stay_as_host(Shared& shared, const std::vector<int>& culprits, Seconds grace, Seconds most);
  static void stay_for_those_who_ask(Shared& shared, Seconds grace, Seconds deadline);
};

}  // namespace thinwire
