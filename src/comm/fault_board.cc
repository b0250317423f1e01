#include "comm/fault_board.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <exception>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

namespace thinwire {
namespace {

using Clock = std::chrono::steady_clock;

/// How long the end of a board waits for a store operation under way before it leaves it to its thread.
constexpr auto kParting = std::chrono::milliseconds(200);

/// How long a silent store is waited for by a rank that knows whom to blame.
constexpr FaultBoard::Seconds kToTellOthers{1.0};
/// Graces by which an inquiry is longer at most where it hears of more and more ranks.
constexpr double kExtensions = 1.5;

/// After rounds that failed, twice as many are left out each time, up to so many: the store ends before some
/// ranks do, but it may also have been out of reach for a while only.
constexpr int kMostRoundsLeftOut = 32;

/// In front of the ranks of a verdict: their processes live.
constexpr char kAlive = '+';
constexpr const char* kAway =
    "its process is alive, but busy with something else: give ranks a longer deadline where one evaluates or "
    "saves "
    "by itself, and let all make the same calls";

}  // namespace

/// What is known of one awaited rank.
struct Heard {
  std::string last;  ///< The note that was read last.
  Silence silence;
};

/// What outlives the board when its thread is stuck in the store.
struct FaultBoard::Shared {
  Shared(std::shared_ptr<Store> the_store, Options the_options)
      : store(std::move(the_store)), options(std::move(the_options)) {
    // Neighbours first: those are the connections that are used most.
    for (int distance = 1; distance <= options.size / 2 && !options.description.empty(); ++distance) {
      unread.push_back((options.rank + distance) % options.size);
      if (2 * distance != options.size)
        unread.push_back((options.rank + options.size - distance) % options.size);
    }
  }

  std::string key(const char* kind, int rank) const {
    return options.prefix + kind + (rank < 0 ? "" : std::to_string(rank));
  }
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

  void run();
  void round();
  void beat(const std::vector<int>& awaited, bool is_waiting);
  void listen(const std::vector<int>& awaited, double elapsed);
  void read_descriptions();

  const std::shared_ptr<Store> store;
  const Options options;
  std::atomic<std::uint64_t> answers{0};  ///< Store operations that came back.
  std::atomic<bool> asks{false};          ///< One is under way.
  std::atomic<double> period{0.5};        ///< Seconds between two rounds.
  std::atomic<double> beat_period{0.3};
  std::atomic<bool> moves{false};  ///< Movement that was not announced yet.

  // Of the board's thread alone.
  std::uint64_t beats = 0;
  std::uint64_t announced = 0;
  Clock::time_point last_beat{};
  Clock::time_point last_round = Clock::now();
  std::string last_movement;
  bool described = false;
  int rounds_left_out = 0;  ///< After the last round that met an error of the store.
  int rounds_to_leave_out = 0;
  std::deque<int> unread;  ///< Ranks whose description is not known yet.

  mutable std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::function<void()>> jobs;
  bool stop = false;
  bool ended = false;
  bool failed = false;  ///< This rank's note is final: no more beats.
  bool waiting = false;
  std::vector<int> waits_for;
  std::map<int, Heard> heard;
  std::uint64_t movements = 0;
  bool concluded = false;
  std::vector<std::pair<int, std::string>> descriptions;
};

void FaultBoard::Shared::run() {
  std::unique_lock lock(mutex);
  while (!stop) {
    const Seconds pause(std::min(period.load(), beat_period.load()));
    if (changed.wait_for(lock, pause, [&] { return stop || !jobs.empty(); })) {
      if (stop) break;
      const auto job = std::move(jobs.front());
      jobs.pop_front();
      lock.unlock();
      job();
      lock.lock();
    } else if (!failed && rounds_to_leave_out > 0) {
      --rounds_to_leave_out;
    } else if (!failed) {
      lock.unlock();
      try {
        round();
        rounds_left_out = 0;
      } catch (const std::exception&) {
        // A wait will end in an error of its own, and the inquiry will find the store gone.
        rounds_left_out = std::clamp(2 * rounds_left_out, 1, kMostRoundsLeftOut);
        rounds_to_leave_out = rounds_left_out;
      }
      lock.lock();
    }
  }
  ended = true;
  changed.notify_all();
}

void FaultBoard::Shared::round() {
  std::unique_lock lock(mutex);
  const bool is_waiting = waiting;
  const std::vector<int> awaited = waits_for;
  lock.unlock();
  const auto now = Clock::now();
  // Of a round that came late, because the store or the machine was slow, only the usual part counts.
  const double elapsed = std::min(Seconds(now - last_round).count(), 2 * period.load());
  last_round = now;
  if (moves.exchange(false)) {
    last_movement = std::to_string(options.rank) + ":" + std::to_string(++announced);
    set(key("moved", -1), last_movement);
  }
  if (Seconds(now - last_beat).count() >= beat_period) {
    last_beat = now;
    beat(awaited, is_waiting);
  }
  read_descriptions();
  if (is_waiting) listen(awaited, elapsed);
}

void FaultBoard::Shared::beat(const std::vector<int>& awaited, bool is_waiting) {
  FaultNote note;
  note.state = is_waiting ? FaultNote::State::waiting : FaultNote::State::busy;
  note.beat = ++beats;
  if (is_waiting) note.awaited = awaited;
  set(key("note/", options.rank), note.encode());
}

/// Reads whether bytes move anywhere, whether others have given up, and the beats of the awaited.
void FaultBoard::Shared::listen(const std::vector<int>& awaited, double elapsed) {
  const auto movement = get(key("moved", -1));
  const bool others_gave_up = get(key("culprit", -1)).has_value();
  std::vector<std::pair<int, std::string>> notes;
  for (const int rank : awaited) {
    // A rank whose board is not open yet has nothing to be silent about.
    if (auto text = get(key("note/", rank))) notes.emplace_back(rank, std::move(*text));
  }
  std::lock_guard lock(mutex);
  concluded = others_gave_up;
  if (movement && *movement != last_movement) {
    last_movement = *movement;
    ++movements;
  }
  for (auto& [rank, text] : notes) {
    Heard& one = heard[rank];
    if (one.last != text) {
      one.last = std::move(text);
      one.silence.heard();
    } else {
      one.silence.nothing_for(elapsed);
    }
  }
}

/// A few at a time, so that many ranks that start at once do not flood the store.
void FaultBoard::Shared::read_descriptions() {
  constexpr int kAtOnce = 4;
  if (options.description.empty()) return;
  if (!std::exchange(described, true)) set(key("links/", options.rank), options.description);
  for (int i = 0; i < kAtOnce && !unread.empty(); ++i) {
    const int rank = unread.front();
    unread.pop_front();
    if (auto text = get(key("links/", rank))) {
      std::lock_guard lock(mutex);
      descriptions.emplace_back(rank, std::move(*text));
    } else {
      unread.push_back(rank);
    }
  }
}

struct FaultBoard::Inquiry {
  std::atomic<bool> done{false};
  Verdict verdict;

  static Verdict unreachable(const Options& options) {
    if (options.store_host < 0) return {{}, "the rendezvous store does not answer"};
    if (options.store_host == options.rank) return {{}, "this rank's own rendezvous store does not answer"};
    return {{options.store_host}, "the rendezvous store that it hosts does not answer"};
  }

  static Verdict adopted(const std::string& known, const Options& options);
  static Verdict conclude(Shared& shared, const Verdict& own);
  static std::optional<Verdict> await_conclusion(Shared& shared, Seconds grace);
  static Verdict ask(Shared& shared, const std::vector<int>& awaited, Seconds grace);
  static void stay_as_host(Shared& shared, const std::vector<int>& culprits, Seconds grace, Seconds deadline);
};

/// Whoever concluded first has concluded for all, so that all name the same ranks.
Verdict FaultBoard::Inquiry::adopted(const std::string& known, const Options& options) {
  const bool alive = known.starts_with(kAlive);
  const std::vector<int> culprits = parse_ranks(alive ? known.substr(1) : known, options.size);
  const bool me = std::find(culprits.begin(), culprits.end(), options.rank) != culprits.end();
  std::string reason = "other ranks await it too and have heard nothing";
  if (me) {
    reason = "the others gave up on this rank: it was awaited and silent for too long";
    if (alive) reason = "the others gave up on this rank: it was awaited and did not come in time";
  } else if (alive) {
    reason = kAway;
  }
  return {culprits, reason, alive};
}

/// Another rank may conclude at this moment, and otherwise: the first one's word stands.
Verdict FaultBoard::Inquiry::conclude(Shared& shared, const Verdict& own) {
  const std::string text = (own.alive ? std::string(1, kAlive) : "") + join_ranks(own.culprits, ",");
  const std::string standing = shared.set_if_absent(shared.key("culprit", -1), text);
  return standing == text ? own : adopted(standing, shared.options);
}

/// In a large world the first rank that asks does so for all, and the others wait for what it concludes: each
/// asking all others would be as many requests as the square of the ranks. Nothing when it concludes nothing,
/// since it may be gone itself, or await other ranks than this one.
std::optional<Verdict> FaultBoard::Inquiry::await_conclusion(Shared& shared, Seconds grace) {
  constexpr int kFew = 64;
  const Options& options = shared.options;
  if (options.size <= kFew) return std::nullopt;
  const std::string own = std::to_string(options.rank);
  if (shared.set_if_absent(shared.key("asks", -1), own) == own) return std::nullopt;
  // An inquiry hardly ever takes longer.
  const auto end = Clock::now() + std::chrono::duration_cast<Clock::duration>(1.5 * grace);
  do {
    if (const auto known = shared.get(shared.key("culprit", -1))) return adopted(*known, options);
    std::this_thread::sleep_for(grace / 8);
  } while (Clock::now() < end);
  return std::nullopt;
}

Verdict FaultBoard::Inquiry::ask(Shared& shared, const std::vector<int>& awaited, Seconds grace) {
  const Options& options = shared.options;
  if (auto concluded = await_conclusion(shared, grace)) return std::move(*concluded);
  auto end = Clock::now() + std::chrono::duration_cast<Clock::duration>(grace);
  const auto latest = end + std::chrono::duration_cast<Clock::duration>(kExtensions * grace);
  std::map<int, std::string> first;  // what ranks said when they were asked first
  ChainEnds ends;
  for (bool last_round = false; !last_round;) {
    last_round = Clock::now() >= end;
    bool new_rank = false;
    if (const auto known = shared.get(shared.key("culprit", -1))) return adopted(*known, options);
    ends = follow_chain(options.rank, options.size, awaited, [&](int rank) -> std::optional<FaultNote> {
      const auto text = shared.get(shared.key("note/", rank));
      if (!text) return std::nullopt;
      auto note = FaultNote::parse(*text, options.size);
      const auto [before, is_new] = first.try_emplace(rank, *text);
      new_rank |= is_new;
      // The note of a frozen rank stands still; one that moved is from a live rank. One that was never read
      // before may still move.
      if (note && note->state != FaultNote::State::failed && !is_new && *text == before->second)
        return std::nullopt;
      return note;
    });
    // On a busy machine notes come late, and each may lead to another rank.
    if (last_round && new_rank && Clock::now() < latest) {
      end = Clock::now() + std::chrono::duration_cast<Clock::duration>(grace / 2);
      last_round = false;
    }
    if (!last_round) std::this_thread::sleep_for(grace / 8);
  }
  if (!ends.silent.empty()) {
    return conclude(shared, {ends.silent, "it said nothing for another " + seconds_text(grace)});
  }
  if (!ends.busy.empty()) return conclude(shared, {ends.busy, kAway, true});
  return {
      {},
      "every awaited rank is alive and waits itself: do all ranks make the same calls with the same sizes?"};
}

/// The store dies with its host, and ranks that still ask would blame the host. A rank that lives may ask as
/// late as its own wait ends; one whose note stands still does not live, or has failed and asks now.
void FaultBoard::Inquiry::stay_as_host(Shared& shared, const std::vector<int>& culprits, Seconds grace,
                                       Seconds deadline) {
  const auto duration = [](Seconds time) { return std::chrono::duration_cast<Clock::duration>(time); };
  const auto end = Clock::now() + duration(deadline + 2 * grace);
  struct Missing {
    int rank;
    std::optional<std::string> note{};
    Clock::time_point since = Clock::now();  // that its note stands still
  };
  std::vector<Missing> missing;
  for (int rank = 0; rank < shared.options.size; ++rank) {
    const bool blamed = std::find(culprits.begin(), culprits.end(), rank) != culprits.end();
    if (rank != shared.options.rank && !blamed) missing.push_back({.rank = rank});
  }
  for (;;) {
    std::erase_if(missing, [&](Missing& one) {
      if (shared.get(shared.key("done/", one.rank))) return true;
      auto note = shared.get(shared.key("note/", one.rank));
      if (note != one.note) {
        one.note = std::move(note);
        one.since = Clock::now();
      }
      return Clock::now() - one.since >= duration(2 * grace);
    });
    if (missing.empty() || Clock::now() >= end) return;
    std::this_thread::sleep_for(grace / 20);
  }
}

FaultBoard::FaultBoard(std::shared_ptr<Store> store, Options options)
    : shared_(std::make_shared<Shared>(std::move(store), std::move(options))),
      thread_([shared = shared_] { shared->run(); }) {}

FaultBoard::~FaultBoard() {
  std::unique_lock lock(shared_->mutex);
  shared_->stop = true;
  shared_->changed.notify_all();
  const bool ended = shared_->changed.wait_for(lock, kParting, [&] { return shared_->ended; });
  lock.unlock();
  if (ended) {
    thread_.join();
  } else {
    thread_.detach();
  }
}

void FaultBoard::post(std::function<void()> job) {
  std::lock_guard lock(shared_->mutex);
  shared_->jobs.push_back(std::move(job));
  shared_->changed.notify_all();
}

void FaultBoard::waits_for(const std::vector<int>& ranks, Seconds period) {
  std::lock_guard lock(shared_->mutex);
  shared_->waiting = true;
  shared_->waits_for = ranks;
  shared_->period = period.count();
  shared_->heard.clear();
}

void FaultBoard::waits_no_more() {
  std::lock_guard lock(shared_->mutex);
  shared_->waiting = false;
}

void FaultBoard::set_grace(Seconds grace) {
  // Three beats within it, also where a thousand ranks share a store.
  shared_->beat_period = grace.count() / 3;
}

void FaultBoard::announce_movement() {
  shared_->moves = true;
}

void FaultBoard::out_of_reach_for(double seconds) {
  std::lock_guard lock(shared_->mutex);
  for (auto& [rank, one] : shared_->heard) one.silence.out_of_reach_for(seconds);
}

FaultBoard::Hearing FaultBoard::hear(Seconds limit) const {
  Hearing hearing;
  hearing.store_answers = shared_->answers;
  hearing.asks_store = shared_->asks;
  std::lock_guard lock(shared_->mutex);
  hearing.movements = shared_->movements;
  hearing.concluded = shared_->concluded;
  for (const auto& [rank, one] : shared_->heard) {
    if (one.silence.seconds() >= limit.count()) hearing.silent.push_back(rank);
  }
  return hearing;
}

std::vector<std::pair<int, std::string>> FaultBoard::take_descriptions() {
  std::lock_guard lock(shared_->mutex);
  return std::exchange(shared_->descriptions, {});
}

void FaultBoard::report(std::vector<int> awaited, Seconds grace, Seconds deadline) {
  awaited_ = std::move(awaited);
  grace_ = grace;
  deadline_ = deadline;
  {
    std::lock_guard lock(shared_->mutex);
    shared_->failed = true;
  }
  post([shared = shared_,
        note = FaultNote{.state = FaultNote::State::failed, .awaited = awaited_, .beat = 0}] {
    try {
      shared->set(shared->key("note/", shared->options.rank), note.encode());
    } catch (const std::exception&) {
      // judge() meets the same store and says so.
    }
  });
}

/// Until done; false when the store answered nothing for `silence`, or after `in_all`.
bool FaultBoard::await_store(const std::atomic<bool>& done, Seconds silence, Seconds in_all) {
  const auto start = Clock::now();
  auto last_answer = start;
  for (std::uint64_t answers = shared_->answers; !done;) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    const auto now = Clock::now();
    if (const std::uint64_t current = shared_->answers; current != answers) {
      answers = current;
      last_answer = now;
    }
    if (now - last_answer > silence || now - start > in_all) return done;
  }
  return true;
}

Verdict FaultBoard::judge(const Verdict& evidence) {
  const auto inquiry = std::make_shared<Inquiry>();
  post([shared = shared_, inquiry, awaited = awaited_, grace = grace_, evidence] {
    try {
      inquiry->verdict = evidence.culprits.empty() ? Inquiry::ask(*shared, awaited, grace)
                                                   : Inquiry::conclude(*shared, evidence);
      shared->set(shared->key("done/", shared->options.rank), "1");
    } catch (const std::exception&) {
      inquiry->verdict = evidence.culprits.empty() ? Inquiry::unreachable(shared->options) : evidence;
    }
    inquiry->done = true;
  });
  const Seconds silence = evidence.culprits.empty() ? grace_ : std::min(grace_, kToTellOthers);
  if (!await_store(inquiry->done, silence, 4 * grace_)) {
    return evidence.culprits.empty() ? Inquiry::unreachable(shared_->options) : evidence;
  }
  if (shared_->options.store_host == shared_->options.rank) {
    const auto stayed = std::make_shared<std::atomic<bool>>(false);
    post([shared = shared_, stayed, culprits = inquiry->verdict.culprits, grace = grace_,
          deadline = deadline_] {
      try {
        Inquiry::stay_as_host(*shared, culprits, grace, deadline);
      } catch (const std::exception&) {
        // A store that is gone has nobody to stay for.
      }
      *stayed = true;
    });
    await_store(*stayed, grace_, deadline_ + 3 * grace_);
  }
  return inquiry->verdict;
}

void FaultBoard::leave(Seconds patience) {
  const auto left = std::make_shared<std::atomic<bool>>(false);
  post([shared = shared_, left, patience] {
    const auto end = Clock::now() + std::chrono::duration_cast<Clock::duration>(patience);
    try {
      shared->set(shared->key("left/", shared->options.rank), "1");
      for (int rank = 0; rank < shared->options.size; ++rank) {
        while (!shared->get(shared->key("left/", rank)) && Clock::now() < end) {
          std::this_thread::sleep_for(std::chrono::milliseconds(5));
        }
      }
    } catch (const std::exception&) {
      // The host has seen everyone leave and has gone first.
    }
    *left = true;
  });
  await_store(*left, patience, patience);
}

}  // namespace thinwire
