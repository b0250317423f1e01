#include "comm/wait_watch.h"

#include <algorithm>
#include <utility>

namespace thinwire {
namespace {

/// How many ranks' idle connections are asked within a second.
constexpr int kProbesPerSecond = 64;

/// For so many deadlines bytes on connections count before it is known who shares them.
constexpr double kSettling = 5;

/// The longest that one more retransmission is waited for after the deadline. TCP's pause between two is
/// about as long as the outage, so a deadline that is longer than this has the limit, and a shorter one
/// itself.
constexpr double kLongestPause = 4;

/// Between two looks while the other end of a connection does not answer.
constexpr WaitWatch::Seconds kTroublePeriod{0.25};

bool is_unknown(const LinkState& link) {
  return link.rank < 0;
}

std::string without_movement(const std::vector<int>& ranks, WaitWatch::Seconds time) {
  const std::string whose = ranks.empty()       ? "one of this rank's connections"
                            : ranks.size() == 1 ? "the connection from " + name_ranks(ranks)
                                                : "the connections from " + name_ranks(ranks);
  return "nothing has moved on " + whose + " for " + seconds_text(time);
}

}  // namespace

WaitWatch::LongWait::LongWait() = default;

WaitWatch::WaitWatch(FaultBoard& board, std::unique_ptr<Links> links, Options options)
    : board_(board),
      links_(std::move(links)),
      options_(options),
      thread_([this](const std::stop_token& stop) { run(stop); }) {}

WaitWatch::Seconds WaitWatch::look_period(Seconds deadline) {
  return std::clamp(deadline / 10, Seconds(0.05), Seconds(1));
}

std::vector<int> WaitWatch::neighbours() const {
  const int next = (options_.rank + 1) % options_.size;
  const int previous = (options_.rank + options_.size - 1) % options_.size;
  if (next == options_.rank) return {};
  return next == previous ? std::vector<int>{next} : std::vector<int>{previous, next};
}

void WaitWatch::begins(int peer, const Limits& limits, std::uint64_t step, Call* call) noexcept {
  std::lock_guard lock(mutex_);
  ++number_;
  peer_ = peer;
  limits_ = limits;
  call_ = call;
  began_ = Clock::now();
  if (std::exchange(step_, step) != step) waited_ = Seconds(0);
}

std::optional<Ending> WaitWatch::ends() {
  std::lock_guard lock(mutex_);
  ++number_;
  call_ = nullptr;
  waited_ += Clock::now() - began_;
  return std::exchange(ending_, std::nullopt);
}

bool WaitWatch::ended() const {
  std::lock_guard lock(mutex_);
  return ending_.has_value();
}

void WaitWatch::run(const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  std::uint64_t seen = 0;
  for (auto last = Clock::now();;) {
    const bool in_trouble = long_wait_ && long_wait_->in_trouble;
    const Seconds usual = look_period(limits_.deadline);
    const Seconds period = in_trouble ? std::min(usual, kTroublePeriod) : usual;
    end_.wait_for(lock, stop, period, [] { return false; });
    if (stop.stop_requested()) return;
    const auto now = Clock::now();
    // When this process was frozen itself, that time says nothing about the others.
    const double elapsed = std::min(Seconds(now - last), 2 * period).count();
    board_.time_passes(now - last, Seconds(elapsed), limits_.deadline);
    last = now;
    const std::uint64_t number = number_;
    if (number > 0 && !std::exchange(probing_, true)) probe();
    const bool is_waiting = number % 2 == 1 && !ending_;
    if (!is_waiting || number != seen) {
      seen = number;
      const Seconds grace = std::min(fault_grace(limits_.deadline), limits_.silence);
      const Limits limits = limits_;
      lock.unlock();
      board_.set_grace(grace);
      board_.watch_next(2 * limits.deadline);
      forget();
      lock.lock();
      continue;
    }
    if (!long_wait_) {
      long_wait_.emplace();
      long_wait_->peers = peer_ >= 0 ? std::vector<int>{peer_} : neighbours();
      const double since = std::min(Seconds(now - began_).count(), 2 * elapsed);
      long_wait_->progress.nothing_for(since - elapsed);
    }
    long_wait_->limits = limits_;
    long_wait_->waited = Seconds(waited_ + (now - began_)).count();
    lock.unlock();
    look(elapsed);
    auto ending = judge();
    lock.lock();
    if (ending && number_ == number) {
      ending_ = std::move(ending);
      if (call_ != nullptr) call_->end();
    }
  }
}

/// From the first wait on, however short: when a connection has been idle for long before an outage, a long
/// wait is too late to begin.
void WaitWatch::probe() {
  if (!links_) return;
  const auto deadline = std::chrono::ceil<std::chrono::seconds>(limits_.deadline);
  links_->probe(std::chrono::seconds(1 + options_.size / kProbesPerSecond),
                3 * deadline + std::chrono::seconds(10));
}

void WaitWatch::forget() {
  if (long_wait_) board_.waits_no_more();
  long_wait_.reset();
  overdue_.clear();
  moved_.reset();
}

void WaitWatch::look(double elapsed) {
  LongWait& wait = *long_wait_;
  if (!moved_) board_.waits_for(wait.peers, look_period(wait.limits.deadline));
  const auto links = look_at_links(elapsed);
  const auto heard = board_.hear(wait.limits.silence);
  if (std::exchange(wait.movements, heard.movements) != heard.movements && !wait.in_trouble)
    something_moves();
  if (std::exchange(wait.store_answers, heard.store_answers) != heard.store_answers || !heard.asks_store) {
    wait.store.heard();
    wait.store_unanswered = 0;
  } else {
    wait.store.nothing_for(elapsed);
    wait.store_unanswered += elapsed;
  }
  wait.others_gave_up = heard.concluded;
  note_lost_peers(heard.left, elapsed);
  // Before one of them would be named.
  auto doubtful = board_.hear(wait.limits.silence / 2).silent;
  doubtful.insert(doubtful.end(), wait.lost.begin(), wait.lost.end());
  board_.may_have_left(std::move(doubtful));
  note_dead_links(links, elapsed);
}

/// Beats are small packets behind large ones: on a slow link they come late, or are lost and sent again.
void WaitWatch::something_moves() {
  long_wait_->progress.heard();
  long_wait_->store.out_of_reach_for(0);
  board_.out_of_reach_for(0);
}

/// What moves on this rank's own connections, and whether their other ends answer.
std::vector<LinkState> WaitWatch::look_at_links(double elapsed) {
  LongWait& wait = *long_wait_;
  std::vector<LinkState> states;
  double out_of_reach = 0;
  if (links_) {
    if (const auto owners = board_.take_link_owners()) links_->identify(*owners, options_.size);
    states = links_->look();
  }
  // Bytes on those that no rank shares are somebody else's: the store's server has connections that came at
  // the same time. At the start of a run over a slow link it takes a while until that is known of any.
  settled_ = settled_ || !std::ranges::all_of(states, is_unknown) ||
             wait.waited >= kSettling * wait.limits.deadline.count();
  for (const LinkState& link : states) {
    if (link.unanswered) out_of_reach = std::max(out_of_reach, link.since_answer);
  }
  const bool moves = has_moved(states);
  wait.in_trouble = out_of_reach > 0;
  wait.unmoved = moves ? 0 : wait.unmoved + elapsed;
  if (moves) {
    something_moves();
  } else {
    wait.progress.nothing_for(elapsed);
  }
  if (wait.in_trouble) {
    wait.progress.out_of_reach_for(out_of_reach);
    wait.store.out_of_reach_for(out_of_reach);
    board_.out_of_reach_for(out_of_reach);
  }
  // Others shall not end a wait that this rank still has hope for.
  if (moves || wait.in_trouble) board_.announce_movement();
  return states;
}

/// Gloo ends no receive of which a part has come when the other end closes its connection.
/// A neighbour that has left in good order has done its part of a sum, and the other one may still pause.
void WaitWatch::note_lost_peers(const std::vector<int>& left, double elapsed) {
  LongWait& wait = *long_wait_;
  const bool others_may_come = left.size() < wait.peers.size();
  const bool moves = wait.unmoved == 0;
  const auto is_in = [](const std::vector<int>& ranks, int rank) {
    return std::ranges::find(ranks, rank) != ranks.end();
  };
  wait.lost = links_ ? links_->lost() : std::vector<int>();
  std::erase_if(wait.lost,
                [&](int rank) { return !is_in(wait.peers, rank) || (others_may_come && is_in(left, rank)); });
  wait.lost_for = wait.lost.empty() || moves || wait.in_trouble ? 0 : wait.lost_for + elapsed;
}

/// Whether bytes had moved at the look before, on a connection that is still there. A rank that gives up
/// sends a last few before it closes its connections, and those are no sign of life.
bool WaitWatch::has_moved(const std::vector<LinkState>& links) {
  LongWait& wait = *long_wait_;
  std::map<std::string, std::uint64_t> moved;
  for (const LinkState& link : links) {
    if (!settled_ || !is_unknown(link)) moved.emplace(link.remote, link.moved);
  }
  const bool lasts =
      std::ranges::any_of(wait.moving, [&](const std::string& remote) { return moved.contains(remote); });
  wait.moving.clear();
  for (const auto& [remote, bytes] : moved) {
    if (!moved_) break;
    const auto before = moved_->find(remote);
    if (before != moved_->end() && bytes > before->second) wait.moving.push_back(remote);
  }
  moved_ = std::move(moved);
  return lasts;
}

/// A connection is given up when its other end has not answered for the deadline, nor one retransmission
/// more: the last one before may have been lost just before the end of an outage.
void WaitWatch::note_dead_links(const std::vector<LinkState>& links, double elapsed) {
  LongWait& wait = *long_wait_;
  wait.dead.clear();
  const double deadline = wait.limits.deadline.count();
  const double latest = deadline + std::min(deadline, kLongestPause);
  std::vector<Overdue> overdue;
  bool may_follow = false;  // another connection, whose silence began a little later
  for (const LinkState& link : links) {
    may_follow = may_follow || (link.unanswered && link.since_answer < deadline);
    if (!link.unanswered || link.since_answer < deadline) continue;
    const auto known = std::ranges::find(overdue_, link.remote, &Overdue::remote);
    Overdue one = known != overdue_.end() ? *known : Overdue{link.remote, link.tries};
    const bool had_time = one.since_retry >= look_period(wait.limits.deadline).count();
    if (had_time || link.since_answer >= latest) wait.dead.push_back(link);
    if (link.tries != one.tries) one.since_retry += elapsed;
    overdue.push_back(std::move(one));
  }
  overdue_ = std::move(overdue);
  // Whose network is interrupted shows only in all connections together.
  wait.all_dead = !wait.dead.empty() && overdue_.size() == links.size();
  const bool is_latest =
      std::ranges::any_of(wait.dead, [&](const LinkState& link) { return link.since_answer >= latest; });
  if (may_follow && !is_latest) wait.dead.clear();
}

/// Nothing where the other connections may still bring what is awaited.
std::optional<Ending> WaitWatch::dead_links_ending() const {
  const LongWait& wait = *long_wait_;
  const Seconds deadline = wait.limits.deadline;
  if (wait.all_dead && overdue_.size() > 1) {
    return Ending{"nothing has moved on any of this rank's connections for " + seconds_text(deadline) +
                      ": its own network is interrupted",
                  {},
                  true};
  }
  std::vector<int> ranks;
  for (const LinkState& link : wait.dead) {
    if (!is_unknown(link)) ranks.push_back(link.rank);
  }
  if (!ranks.empty()) {
    // One of two ranks cannot know whose network it is.
    const char* why = options_.size > 2
                          ? "its machine does not answer"
                          : "its machine does not answer, or this rank's network is interrupted";
    return Ending{without_movement(ranks, deadline), {ranks, why}};
  }
  // Ranks learn from the store who shares a connection.
  if (wait.store_unanswered >= deadline.count() / 2) {
    Ending ending{without_movement({}, deadline) + ", and the rendezvous store does not answer", {}};
    ending.is_certain = options_.store_host < 0 || options_.store_host == options_.rank;
    if (!ending.is_certain) {
      ending.evidence = {{options_.store_host}, "it serves the store, and its machine does not answer"};
    }
    return ending;
  }
  if (wait.unmoved >= deadline.count()) return Ending{without_movement({}, deadline), {}};
  return std::nullopt;
}

std::optional<Ending> WaitWatch::judge() {
  const LongWait& wait = *long_wait_;
  const Limits& limits = wait.limits;
  if (wait.waited >= limits.step.count()) {
    const std::string what = "this step has waited for more than " + seconds_text(limits.step) +
                             " in all, lately for " + name_ranks(wait.peers) +
                             (wait.unmoved < 2 ? ", though bytes still move" : "") +
                             "; a longer step limit lets it go on";
    return Ending{what, {{}, "on " + name_ranks({options_.rank}) + " " + what}, true};
  }
  if (!wait.dead.empty()) {
    if (auto ending = dead_links_ending()) return ending;
  }
  if (wait.others_gave_up) return Ending{"another rank has given up", {}};
  // What has just moved counts at the next look.
  if (wait.in_trouble || !wait.moving.empty()) return std::nullopt;
  if (!wait.lost.empty() && wait.lost_for >= std::min(fault_grace(limits.deadline), limits.silence).count())
    return Ending{"the connection to " + name_ranks(wait.lost) + " is closed", {}};
  const auto heard = board_.hear(limits.silence);
  const std::string silence = seconds_text(limits.silence);
  const bool is_elsewhere = options_.store_host >= 0 && options_.store_host != options_.rank;
  if (is_elsewhere && wait.store.seconds() >= limits.silence.count()) {
    return Ending{
        "the rendezvous store has not answered for " + silence,
        {{options_.store_host}, "it serves the store, and its machine answers while its process does not"}};
  }
  if (!heard.silent.empty()) {
    return Ending{"no sign of life for " + silence,
                  {heard.silent, "its machine answers and its process does not: it is stopped or stuck"}};
  }
  if (wait.progress.seconds() >= limits.deadline.count()) {
    return Ending{"nothing arrived within " + seconds_text(limits.deadline), {}};
  }
  return std::nullopt;
}

}  // namespace thinwire
