#include "comm/fault_board.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

namespace thinwire {
namespace {

using Clock = std::chrono::steady_clock;

/// How long the end of a board waits for a store operation under way before it leaves it to its thread.
constexpr auto kParting = std::chrono::milliseconds(200);

}  // namespace

/// What outlives the board when its thread is stuck in the store.
struct FaultBoard::Shared {
  Shared(std::shared_ptr<Store> the_store, Options the_options)
      : store(std::move(the_store)), options(std::move(the_options)) {}

  std::string key(const char* kind, int rank) const {
    return options.prefix + kind + (rank < 0 ? "" : std::to_string(rank));
  }
  void set(const std::string& key, const std::string& value) {
    store->set(key, value);
    ++answers;
  }
  std::optional<std::string> get(const std::string& key) {
    auto value = store->get(key);
    ++answers;
    return value;
  }
  std::string set_if_absent(const std::string& key, const std::string& value) {
    auto standing = store->set_if_absent(key, value);
    ++answers;
    return standing;
  }

  void run();
  void beat();

  const std::shared_ptr<Store> store;
  const Options options;
  std::atomic<std::uint64_t> answers{0};      ///< Store operations that came back.
  std::atomic<std::uint64_t> wait_number{0};  ///< Odd while the rank is blocked.
  std::atomic<int> wait_peer{-1};
  std::atomic<double> grace_seconds{1.0};
  std::uint64_t seen_wait = 0;  ///< Of the board's thread alone, like beats.
  std::uint64_t beats = 0;

  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::function<void()>> jobs;
  bool stop = false;
  bool ended = false;
  bool failed = false;  ///< This rank's note is final: no more beats.
};

void FaultBoard::Shared::run() {
  std::unique_lock lock(mutex);
  while (!stop) {
    const Seconds period{grace_seconds.load() / 3};
    if (changed.wait_for(lock, period, [&] { return stop || !jobs.empty(); })) {
      if (stop) break;
      const auto job = std::move(jobs.front());
      jobs.pop_front();
      lock.unlock();
      job();
      lock.lock();
    } else if (!failed) {
      lock.unlock();
      beat();
      lock.lock();
    }
  }
  ended = true;
  changed.notify_all();
}

/// Says that this rank is alive and whom it awaits, once the same wait has been seen twice.
void FaultBoard::Shared::beat() {
  const std::uint64_t number = wait_number.load();
  if (number % 2 == 1 && number == seen_wait) {
    FaultNote note{.failed = false, .awaited = {}, .beat = ++beats};
    if (const int peer = wait_peer.load(); peer >= 0) note.awaited.push_back(peer);
    try {
      set(key("note/", options.rank), note.encode());
    } catch (const std::exception&) {
      // The wait itself will end in an error, and the inquiry will find the store gone.
    }
  }
  seen_wait = number;
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
  static Verdict ask(Shared& shared, const std::vector<int>& awaited, Seconds grace);
  static void stay_as_host(Shared& shared, const std::vector<int>& culprits, Seconds patience);
};

/// Whoever concluded first has concluded for all, so that all name the same ranks.
Verdict FaultBoard::Inquiry::adopted(const std::string& known, const Options& options) {
  const std::vector<int> culprits = parse_ranks(known, options.size);
  const bool me = std::find(culprits.begin(), culprits.end(), options.rank) != culprits.end();
  return {culprits, me ? "the others gave up on this rank: it was awaited and silent for too long"
                       : "other ranks await it too and have heard nothing"};
}

Verdict FaultBoard::Inquiry::ask(Shared& shared, const std::vector<int>& awaited, Seconds grace) {
  const Options& options = shared.options;
  const auto world = static_cast<std::size_t>(options.size);
  const std::string culprit_key = shared.key("culprit", -1);
  const auto end = Clock::now() + std::chrono::duration_cast<Clock::duration>(grace);
  std::vector<std::optional<std::string>> first(world);
  std::vector<std::optional<FaultNote>> notes(world);
  for (bool first_round = true;; first_round = false) {
    if (const auto known = shared.get(culprit_key)) return adopted(*known, options);
    const bool last_round = Clock::now() >= end;
    for (int rank = 0; rank < options.size; ++rank) {
      if (rank == options.rank) continue;
      const auto index = static_cast<std::size_t>(rank);
      const auto text = shared.get(shared.key("note/", rank));
      if (first_round) first[index] = text;
      if (!text) continue;
      auto note = FaultNote::parse(*text, options.size);
      // The note of a waiting rank that was frozen later stands still; one that moved is from a live rank.
      if (note && (note->failed || text != first[index])) notes[index] = std::move(note);
    }
    if (last_round) break;
    std::this_thread::sleep_for(grace / 20);
  }
  Verdict verdict{silent_ranks(options.rank, awaited, notes), {}};
  if (verdict.culprits.empty()) {
    verdict.reason =
        "every awaited rank is alive and waits itself: do all ranks make the same calls with the same sizes?";
  } else {
    verdict.reason = "it said nothing for another " + seconds_text(grace);
    // Another rank may conclude at this moment, and otherwise.
    const std::string own = join_ranks(verdict.culprits, ",");
    const std::string standing = shared.set_if_absent(culprit_key, own);
    if (standing != own) return adopted(standing, options);
  }
  return verdict;
}

/// The store dies with its host, and ranks that still ask would blame the host.
void FaultBoard::Inquiry::stay_as_host(Shared& shared, const std::vector<int>& culprits, Seconds patience) {
  const auto end = Clock::now() + std::chrono::duration_cast<Clock::duration>(patience);
  for (int rank = 0; rank < shared.options.size; ++rank) {
    if (rank == shared.options.rank || std::find(culprits.begin(), culprits.end(), rank) != culprits.end())
      continue;
    while (!shared.get(shared.key("done/", rank)) && Clock::now() < end)
      std::this_thread::sleep_for(patience / 40);
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

void FaultBoard::wait_begins(int peer, Seconds grace) noexcept {
  shared_->wait_peer = peer;
  shared_->grace_seconds = grace.count();
  ++shared_->wait_number;
}

void FaultBoard::wait_ends() noexcept {
  ++shared_->wait_number;
}

void FaultBoard::report(std::vector<int> awaited, Seconds grace) {
  awaited_ = std::move(awaited);
  grace_ = grace;
  {
    std::lock_guard lock(shared_->mutex);
    shared_->failed = true;
  }
  post([shared = shared_, note = FaultNote{.failed = true, .awaited = awaited_, .beat = 0}] {
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

Verdict FaultBoard::judge() {
  const auto inquiry = std::make_shared<Inquiry>();
  post([shared = shared_, inquiry, awaited = awaited_, grace = grace_] {
    try {
      inquiry->verdict = Inquiry::ask(*shared, awaited, grace);
      shared->set(shared->key("done/", shared->options.rank), "1");
    } catch (const std::exception&) {
      inquiry->verdict = Inquiry::unreachable(shared->options);
    }
    inquiry->done = true;
  });
  if (!await_store(inquiry->done, grace_, 4 * grace_)) return Inquiry::unreachable(shared_->options);
  if (shared_->options.store_host == shared_->options.rank) {
    const auto stayed = std::make_shared<std::atomic<bool>>(false);
    post([shared = shared_, stayed, culprits = inquiry->verdict.culprits, patience = 2 * grace_] {
      try {
        Inquiry::stay_as_host(*shared, culprits, patience);
      } catch (const std::exception&) {
        // A store that is gone has nobody to stay for.
      }
      *stayed = true;
    });
    await_store(*stayed, grace_, 3 * grace_);
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
