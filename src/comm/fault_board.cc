#include "comm/fault_board.h"

#include <algorithm>
#include <cmath>
#include <exception>
#include <thread>
#include <utility>

#include "comm/fault_board_parts.h"
#include "comm/tcp_links.h"

namespace thinwire {
namespace {

using Clock = std::chrono::steady_clock;

/// How long the end of a board waits for a store operation under way before it leaves it to its thread.
constexpr auto kParting = std::chrono::milliseconds(200);

/// How long a silent store is waited for by a rank that knows whom to blame.
constexpr FaultBoard::Seconds kToTellOthers{1.0};

/// After rounds that failed, twice as many are left out each time, up to so many: the store ends before some
/// ranks do, but it may also have been out of reach for a while only.
constexpr int kMostRoundsLeftOut = 32;

}  // namespace

void FaultBoard::Shared::run() {
  std::unique_lock lock(mutex);
  while (!stop || !jobs.empty()) {
    const Seconds pause(std::min(period.load(), beat_period.load()));
    if (changed.wait_for(lock, pause, [&] { return stop || !jobs.empty(); })) {
      if (jobs.empty()) break;
      const auto job = std::move(jobs.front());
      jobs.pop_front();
      lock.unlock();
      job();
      lock.lock();
    } else if (rounds_to_leave_out > 0) {
      --rounds_to_leave_out;
    } else if (!failed || failed_note) {
      const bool has_failed = failed;
      lock.unlock();
      try {
        has_failed ? beat_failed() : round();
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
    // On a slow network a question takes long, and a rank that waits has more urgent ones.
    if (is_waiting) {
      forget_next();
    } else {
      // This rank may wait elsewhere, for ranks that end by what another one has concluded.
      if (!others_ended && says_an_end(read_conclusion())) others_ended = true;
      if (!others_ended && patience_with_next > 0 && options.size > 1) look_at_next();
    }
  }
  share_links();
  if (is_waiting) listen(awaited, elapsed);
}

/// What another rank has concluded; kept, since the store may be gone when this rank asks for it.
std::optional<std::string> FaultBoard::Shared::read_conclusion() {
  auto text = get(key("culprit", -1));
  const std::lock_guard lock(mutex);
  if (text) concluded = text;
  return text;
}

bool FaultBoard::Shared::says_an_end(const std::optional<std::string>& verdict) {
  return verdict && (blames_the_gone(*verdict, options.size) || get(key("ending", -1)));
}

/// While this rank waits itself, its WaitWatch knows more.
void FaultBoard::Shared::forget_next() {
  next = {};
  const std::lock_guard lock(mutex);
  *signs = Clock::now().time_since_epoch().count();
}

/// After an outage of the network, beats may come as late as it was long: whoever sets the patience doubles
/// what an outage may last.
/// Beats come late behind large messages on a slow link, so what moves anywhere is a sign of life.
void FaultBoard::Shared::look_at_next() {
  const int rank = (options.rank + 1) % options.size;
  const auto now = Clock::now();
  const double usual = std::max(beat_period.load(), period.load());
  const double elapsed = std::min(Seconds(now - last_look_at_next).count(), 2 * usual);
  last_look_at_next = now;
  const auto text = get(key("note/", rank));
  std::string movement = get(key("moved", -1)).value_or("");
  std::unique_lock lock(mutex);
  const auto all_signs = signs;
  lock.unlock();
  // One that has not even a first note may not have come so far: it has nothing to be silent about.
  if (!text || *text != next.last || movement != movement_at_last_look) {
    next.last = text.value_or("");
    movement_at_last_look = std::move(movement);
    next.silence.heard();
    *all_signs = now.time_since_epoch().count();
    return;
  }
  next.silence.nothing_for(elapsed);
  const Clock::time_point last_sign{Clock::duration(all_signs->load())};
  if (next.silence.seconds() < patience_with_next || Seconds(now - last_sign).count() < patience_with_next)
    return;
  const auto note = FaultNote::parse(*text, options.size);
  const bool has_failed = note && note->state == FaultNote::State::failed;
  if (has_failed || get(key("left/", rank))) return;
  const Verdict standing =
      Inquiry::conclude(*this, {{rank}, "it said nothing for " + seconds_text(Seconds(patience_with_next))});
  // Another rank's own error may stand there, which a script may have caught.
  if (!standing.failed && !standing.alive) others_ended = true;
}

void FaultBoard::Shared::beat(const std::vector<int>& awaited, bool is_waiting) {
  FaultNote note;
  note.state = is_waiting ? FaultNote::State::waiting : FaultNote::State::busy;
  note.beat = ++beats;
  if (is_waiting) note.awaited = awaited;
  set(key("note/", options.rank), note.encode());
}

void FaultBoard::Shared::beat_failed() {
  const auto now = Clock::now();
  if (!failed_note || Seconds(now - last_beat).count() < beat_period) return;
  last_beat = now;
  failed_note->beat = ++beats;
  set(key("note/", options.rank), failed_note->encode());
}

/// Reads whether bytes move anywhere, whether others have given up, and the beats of the awaited.
void FaultBoard::Shared::listen(const std::vector<int>& awaited, double elapsed) {
  const auto movement = get(key("moved", -1));
  if (const auto text = read_conclusion(); !others_ended && says_an_end(text)) others_ended = true;
  std::vector<std::pair<int, std::string>> notes;
  for (const int rank : awaited) {
    // As in look_at_next().
    if (auto text = get(key("note/", rank))) notes.emplace_back(rank, std::move(*text));
  }
  std::unique_lock lock(mutex);
  const std::vector<int> doubtful = may_have_left;
  lock.unlock();
  const std::vector<int> missing = Inquiry::without_left(*this, doubtful);
  lock.lock();
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
  for (const int rank : doubtful) {
    if (std::ranges::find(missing, rank) == missing.end()) heard[rank].has_left = true;
  }
}

/// Rank 0 finds out for all whose their connections are: each rank writes one key and reads one, however many
/// there are.
void FaultBoard::Shared::share_links() {
  if (options.links.empty() || (knows_owners && owners.empty())) return;
  if (!described) {
    set(key("links/", options.rank), options.links);
    described = true;
  }
  if (options.rank == 0) match_everyones_links();
  if (knows_owners) return;
  auto text = get(key("owners/", options.rank));
  if (!text) return;
  knows_owners = true;
  std::lock_guard lock(mutex);
  link_owners = std::move(text);
}

/// A part of it in each round, so that beats go on.
void FaultBoard::Shared::match_everyones_links() {
  constexpr std::size_t kAtOnce = 64;
  const auto size = static_cast<std::size_t>(options.size);
  for (std::size_t i = 0; i < kAtOnce && owners.empty() && lists.size() < size; ++i) {
    auto text = get(key("links/", static_cast<int>(lists.size())));
    if (!text) return;
    lists.push_back(std::move(*text));
  }
  if (lists.size() == size) owners = link_owners_of(std::exchange(lists, {}));
  for (std::size_t i = 0; i < kAtOnce && told < owners.size(); ++i, ++told) {
    set(key("owners/", static_cast<int>(told)), owners[told]);
  }
  if (!owners.empty() && told == owners.size()) owners.clear();
}

FaultBoard::FaultBoard(std::shared_ptr<Store> store, Options options)
    : shared_(std::make_shared<Shared>(std::move(store), std::move(options))),
      thread_([shared = shared_] { shared->run(); }) {}

void FaultBoard::write_first_note(Store& store, const Options& options) {
  store.set(key_of(options, "note/", options.rank),
            FaultNote{.state = FaultNote::State::busy, .awaited = {}, .beat = 0}.encode());
}

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
  shared_->may_have_left.clear();
}

void FaultBoard::may_have_left(std::vector<int> ranks) {
  std::lock_guard lock(shared_->mutex);
  std::erase_if(ranks, [&](int rank) {
    const auto known = shared_->heard.find(rank);
    return known != shared_->heard.end() && known->second.has_left;
  });
  shared_->may_have_left = std::move(ranks);
}

void FaultBoard::waits_no_more() {
  std::lock_guard lock(shared_->mutex);
  shared_->waiting = false;
}

void FaultBoard::set_grace(Seconds grace) {
  // Three beats within it, also where a thousand ranks share a store.
  shared_->beat_period = grace.count() / 3;
}

void FaultBoard::watch_next(Seconds patience) {
  shared_->patience_with_next = patience.count();
}

void FaultBoard::share_signs(std::shared_ptr<Signs> signs) {
  const std::lock_guard lock(shared_->mutex);
  shared_->signs = std::move(signs);
}

void FaultBoard::announce_movement() {
  shared_->moves = true;
}

void FaultBoard::out_of_reach_for(double seconds) {
  std::lock_guard lock(shared_->mutex);
  shared_->store_silence.out_of_reach_for(seconds);
  for (auto& [rank, one] : shared_->heard) one.silence.out_of_reach_for(seconds);
}

void FaultBoard::time_passes(Seconds time, Seconds awake, Seconds deadline) {
  Shared& shared = *shared_;
  const Options& options = shared.options;
  const std::uint64_t answers = shared.answers;
  std::lock_guard lock(shared.mutex);
  const bool has_answered = std::exchange(shared.answers_before, answers) != answers || !shared.asks;
  const bool was_away = time - awake >= deadline;
  if (has_answered || was_away) {
    shared.store_silence.heard();
  } else {
    shared.store_silence.nothing_for(awake.count());
  }
  const double silence = shared.store_silence.seconds();
  if (was_away) {
    shared.absence = {options.rank, time.count(), Clock::now()};
  } else if (options.store_host >= 0 && options.store_host != options.rank && silence >= deadline.count()) {
    shared.absence = {options.store_host, silence, Clock::now()};
    // Twice, as with the next rank: see look_at_next().
    if (silence >= 2 * deadline.count()) shared.others_ended = true;
  }
  ++shared.ticks;
}

/// Whoever was away within the last deadline; else it says nothing.
Verdict FaultBoard::Shared::away_lately(Seconds deadline) const {
  std::lock_guard lock(mutex);
  if (!absence || Seconds(Clock::now() - absence->until) > deadline) return {};
  const std::string time = seconds_text(Seconds(std::round(10 * absence->seconds) / 10));
  if (absence->rank == options.rank) return {{absence->rank}, "this process itself was stopped for " + time};
  return {{absence->rank}, "the store that it serves did not answer for " + time + ": its process was away"};
}

FaultBoard::Hearing FaultBoard::hear(Seconds limit) const {
  Hearing hearing;
  hearing.store_answers = shared_->answers;
  hearing.asks_store = shared_->asks;
  std::lock_guard lock(shared_->mutex);
  hearing.movements = shared_->movements;
  hearing.concluded = shared_->concluded.has_value();
  for (const auto& [rank, one] : shared_->heard) {
    if (one.has_left) {
      hearing.left.push_back(rank);
    } else if (one.silence.seconds() >= limit.count()) {
      hearing.silent.push_back(rank);
    }
  }
  return hearing;
}

std::optional<std::string> FaultBoard::take_link_owners() {
  std::lock_guard lock(shared_->mutex);
  return std::exchange(shared_->link_owners, std::nullopt);
}

void FaultBoard::report(std::vector<int> awaited, Seconds grace, Seconds deadline) {
  awaited_ = std::move(awaited);
  grace_ = grace;
  deadline_ = deadline;
  {
    std::lock_guard lock(shared_->mutex);
    shared_->failed = true;
  }
  post([shared = shared_, awaited = awaited_] {
    try {
      shared->failed_note = FaultNote{.state = FaultNote::State::failed, .awaited = awaited, .beat = 0};
      shared->last_beat = {};
      shared->beat_failed();
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

bool FaultBoard::others_have_ended() const {
  return shared_->others_ended;
}

Verdict FaultBoard::judge(const Verdict& evidence) {
  Verdict verdict = inquire(evidence, true);
  if (shared_->options.store_host == shared_->options.rank && shared_->answers_last_inquiry) {
    const auto stayed = begin_stay(verdict.culprits, grace_, deadline_ + 2 * grace_);
    await_store(*stayed, grace_, deadline_ + 3 * grace_);
  }
  return verdict;
}

Verdict FaultBoard::judge_lost() {
  return inquire({}, false);
}

Verdict FaultBoard::inquire(const Verdict& evidence, bool blames_left) {
  const auto inquiry = std::make_shared<Inquiry>();
  post([shared = shared_, inquiry, awaited = awaited_, grace = grace_, deadline = deadline_, evidence,
        blames_left] {
    try {
      // A silent store has come back by now, if it does at all.
      const Verdict own = evidence.says_something() ? evidence : shared->away_lately(deadline);
      inquiry->verdict = own.says_something() ? Inquiry::conclude(*shared, own)
                                              : Inquiry::ask(*shared, awaited, grace, blames_left);
      shared->set(shared->key("done/", shared->options.rank), "1");
    } catch (const std::exception&) {
      inquiry->store_failed = true;
    }
    shared->failed_note.reset();
    inquiry->done = true;
  });
  const Seconds silence = evidence.says_something() ? std::min(grace_, kToTellOthers) : grace_;
  const bool answered = await_store(inquiry->done, silence, 4 * grace_) && !inquiry->store_failed;
  shared_->answers_last_inquiry = answered;
  if (answered) return inquiry->verdict;
  {
    const std::lock_guard lock(shared_->mutex);
    if (shared_->concluded)
      return adopted_verdict(*shared_->concluded, shared_->options.rank, shared_->options.size);
  }
  return evidence.says_something() ? evidence : without_store();
}

/// The store's host is gone; unless this process was away itself, and the others have ended meanwhile.
/// Then the next call of time_passes() says so.
Verdict FaultBoard::without_store() const {
  constexpr auto kAtMost = std::chrono::milliseconds(1500);  // a call comes every second
  const auto end = Clock::now() + kAtMost;
  const std::uint64_t ticks = shared_->ticks;
  while (shared_->ticks == ticks && Clock::now() < end)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  Verdict away = shared_->away_lately(deadline_);
  if (away.culprits == std::vector<int>{shared_->options.rank}) return away;
  return Inquiry::unreachable(shared_->options);
}

void FaultBoard::tell(const Verdict& verdict) {
  blamed_ = verdict.culprits;
  post([shared = shared_, verdict] {
    try {
      Inquiry::conclude(*shared, verdict);
      // This rank knows whom to blame: the store's host need not stay for it.
      shared->set(shared->key("done/", shared->options.rank), "1");
    } catch (const std::exception&) {
      // Ranks that ask find the store gone, too.
    }
  });
}

void FaultBoard::tell_end() {
  post([shared = shared_] {
    try {
      shared->set(shared->key("ending", -1), "1");
    } catch (const std::exception&) {
      // Ranks that look find the store gone.
    }
  });
}

/// The flag is set when all have read, or when `patience` is over.
std::shared_ptr<std::atomic<bool>> FaultBoard::begin_stay(std::vector<int> culprits, Seconds grace,
                                                          Seconds patience) {
  auto stayed = std::make_shared<std::atomic<bool>>(false);
  post([shared = shared_, stayed, culprits = std::move(culprits), grace, patience] {
    try {
      Inquiry::stay_as_host(*shared, culprits, grace, patience);
    } catch (const std::exception&) {
      // A store that is gone has nobody to stay for.
    }
    *stayed = true;
  });
  return stayed;
}

void FaultBoard::stay(Seconds grace, Seconds patience, std::atomic<bool>& enough) {
  if (shared_->options.store_host != shared_->options.rank) return;
  const auto stayed = begin_stay(blamed_, grace, patience);
  const auto end = Clock::now() + std::chrono::duration_cast<Clock::duration>(patience);
  while (!*stayed && !enough && Clock::now() < end) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  if (*stayed) enough = true;
}

void FaultBoard::leave(Seconds patience) {
  const auto left = std::make_shared<std::atomic<bool>>(false);
  post([shared = shared_, left, patience] {
    const auto end = Clock::now() + std::chrono::duration_cast<Clock::duration>(patience);
    try {
      shared->set(shared->key("left/", shared->options.rank), "1");
      // As many ranks ask one store at the same time.
      const auto pause = std::chrono::milliseconds(5 + shared->options.size / 16);
      const std::string key = shared->key("left", -1);
      for (auto left_so_far = shared->add(key, 1); left_so_far < shared->options.size && Clock::now() < end;
           left_so_far = shared->add(key, 0)) {
        std::this_thread::sleep_for(pause);
      }
    } catch (const std::exception&) {
      // The host has seen everyone leave and has gone first.
    }
    *left = true;
  });
  await_store(*left, patience, 2 * patience);
}

void FaultBoard::stay_for_those_who_ask(Seconds grace, Seconds deadline) {
  if (shared_->options.store_host != shared_->options.rank) return;
  const auto stayed = std::make_shared<std::atomic<bool>>(false);
  post([shared = shared_, stayed, grace, deadline] {
    try {
      if (shared->add(shared->key("left", -1), 0) < shared->options.size)
        Inquiry::stay_for_those_who_ask(*shared, grace, deadline);
    } catch (const std::exception&) {
      // A store that is gone has nobody to stay for.
    }
    *stayed = true;
  });
  await_store(*stayed, grace, deadline + 4 * grace);
}

void FaultBoard::leave_alone() {
  post([shared = shared_] {
    try {
      shared->set(shared->key("left/", shared->options.rank), Inquiry::kWithinStep);
    } catch (const std::exception&) {
      // Ranks that look find the store gone.
    }
  });
}

}  // namespace thinwire
