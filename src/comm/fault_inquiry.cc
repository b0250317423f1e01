// After a rank has given up: who is awaited and silent, told alike by all ranks that ask.

#include <algorithm>
#include <chrono>
#include <map>
#include <numeric>
#include <thread>
#include <utility>

#include "comm/fault_board_parts.h"

namespace thinwire {
namespace {

using Clock = std::chrono::steady_clock;

/// Graces by which an inquiry is longer at most where it hears of more and more ranks.
constexpr double kExtensions = 1.5;

/// In a world of so many ranks each may ask for all others.
constexpr int kFew = 64;

constexpr const char* kLeft =
    "it has left: its handle is closed, or its script has ended; let all ranks make the same number of steps";

constexpr const char* kLeftWithinStep = "an error ended its step, and its own output says which";

}  // namespace

/// Another rank may conclude at this moment, and otherwise: the first one's word stands.
Verdict FaultBoard::Inquiry::conclude(Shared& shared, const Verdict& own) {
  const std::string text = encode_verdict(own);
  const std::string standing = shared.set_if_absent(shared.key("culprit", -1), text);
  return standing == text ? own : adopted_verdict(standing, shared.options.rank, shared.options.size);
}

/// In a large world the first rank that asks does so for all, and the others wait for what it concludes: each
/// asking all others would be as many requests as the square of the ranks. Nothing when it concludes nothing,
/// since it may be gone itself, or await other ranks than this one.
std::optional<Verdict> FaultBoard::Inquiry::await_conclusion(Shared& shared, Seconds grace) {
  const Options& options = shared.options;
  if (options.size <= kFew) return std::nullopt;
  const std::string own = std::to_string(options.rank);
  if (shared.set_if_absent(shared.key("asks", -1), own) == own) return std::nullopt;
  // An inquiry hardly ever takes longer.
  const auto end = Clock::now() + std::chrono::duration_cast<Clock::duration>(1.5 * grace);
  do {
    shared.beat_failed();
    if (const auto known = shared.get(shared.key("culprit", -1)))
      return adopted_verdict(*known, options.rank, options.size);
    std::this_thread::sleep_for(grace / 8);
  } while (Clock::now() < end);
  return std::nullopt;
}

std::map<int, std::string> FaultBoard::Inquiry::notes_of_all(Shared& shared) {
  std::map<int, std::string> notes;
  for (int rank = 0; shared.options.size <= kFew && rank < shared.options.size; ++rank) {
    if (rank == shared.options.rank) continue;
    notes.emplace(rank, shared.get(shared.key("note/", rank)).value_or(""));
  }
  return notes;
}

bool FaultBoard::Inquiry::has_its_verdict(Shared& shared, int rank, const FaultNote& note) {
  return note.state == FaultNote::State::failed && shared.get(shared.key("done/", rank)).has_value();
}

/// Whose notes stand still although they have no verdict, and those that have not come to write one.
std::vector<int> FaultBoard::Inquiry::silent_since(Shared& shared, const std::map<int, std::string>& before) {
  std::vector<int> silent;
  for (const auto& [rank, text] : before) {
    const auto note = FaultNote::parse(text, shared.options.size);
    if (note && has_its_verdict(shared, rank, *note)) continue;
    if (shared.get(shared.key("note/", rank)).value_or("") == text) silent.push_back(rank);
  }
  return without_left(shared, silent);
}

std::vector<int> FaultBoard::Inquiry::without_left(Shared& shared, const std::vector<int>& ranks) {
  std::vector<int> others;
  for (const int rank : ranks) {
    if (!shared.get(shared.key("left/", rank))) others.push_back(rank);
  }
  return others;
}

std::string FaultBoard::Inquiry::why_left(Shared& shared, const std::vector<int>& ranks) {
  const bool within_step = std::ranges::any_of(
      ranks, [&](int rank) { return shared.get(shared.key("left/", rank)) == std::string(kWithinStep); });
  return within_step ? kLeftWithinStep : kLeft;
}

Verdict FaultBoard::Inquiry::ask(Shared& shared, const std::vector<int>& awaited, Seconds grace,
                                 bool blames_left) {
  const Options& options = shared.options;
  if (auto concluded = await_conclusion(shared, grace)) return std::move(*concluded);
  const std::map<int, std::string> at_first = notes_of_all(shared);
  auto end = Clock::now() + std::chrono::duration_cast<Clock::duration>(grace);
  const auto latest = end + std::chrono::duration_cast<Clock::duration>(kExtensions * grace);
  std::map<int, std::string> first;  // what ranks said when they were asked first
  ChainEnds ends;
  for (bool last_round = false; !last_round;) {
    shared.beat_failed();
    last_round = Clock::now() >= end;
    bool new_rank = false;
    bool store_paused = false;
    if (const auto known = shared.get(shared.key("culprit", -1)))
      return adopted_verdict(*known, options.rank, options.size);
    ends = follow_chain(options.rank, options.size, awaited, [&](int rank) -> std::optional<FaultNote> {
      const auto asked = Clock::now();
      const auto text = shared.get(shared.key("note/", rank));
      store_paused |= Seconds(Clock::now() - asked) > grace / 4;
      if (!text) return std::nullopt;
      auto note = FaultNote::parse(*text, options.size);
      const auto [before, is_new] = first.try_emplace(rank, *text);
      new_rank |= is_new;
      // The note of a rank that is frozen or gone stands still; one that moved is from a live rank. One that
      // was never read before may still move. One that has failed and has its verdict needs no beats.
      if (note && !is_new && *text == before->second && !has_its_verdict(shared, rank, *note))
        return std::nullopt;
      return note;
    });
    // On a busy machine notes come late, and each may lead to another rank. While the store paused, no rank's
    // note could move.
    if (((last_round && new_rank) || store_paused) && Clock::now() < latest) {
      end = std::max(end, Clock::now() + std::chrono::duration_cast<Clock::duration>(grace / 2));
      last_round = false;
    }
    if (!last_round) std::this_thread::sleep_for(grace / 8);
  }
  if (const auto lost = without_left(shared, ends.silent); !lost.empty()) {
    return conclude(shared, {lost, "it said nothing for another " + seconds_text(grace)});
  }
  if (!ends.silent.empty()) {
    return blames_left ? conclude(shared, {ends.silent, why_left(shared, ends.silent), true}) : Verdict{};
  }
  if (ends.busy.empty()) {
    return {{},
            "every awaited rank is alive and waits itself: do all ranks make the same calls with the same "
            "sizes?"};
  }
  // It may wait in an operation that the board knows nothing of, for one that is gone.
  if (const auto lost = silent_since(shared, at_first); !lost.empty()) {
    return conclude(shared,
                    {lost, "it said nothing for another " + seconds_text(grace) + ", and rank " +
                               join_ranks(ends.busy, ", ") + ", which this one awaits, may wait for it"});
  }
  return conclude(shared, {ends.busy, kAway, true});
}

/// At an orderly end of the store's host. Another rank may have failed meanwhile, or wait for one that is
/// gone: without the store it would blame the host.
void FaultBoard::Inquiry::stay_for_those_who_ask(Shared& shared, Seconds grace, Seconds deadline) {
  const Seconds inquiry = 4 * grace;  // it takes no longer
  const Options& options = shared.options;
  std::map<int, std::pair<std::string, Clock::time_point>> since;  // each note, and when it came
  const auto is_over = [&](int rank) {
    return rank == options.rank || shared.get(shared.key("done/", rank)) ||
           shared.get(shared.key("left/", rank));
  };
  const auto is_asking = [&](int rank) {
    const auto text = shared.get(shared.key("note/", rank));
    const auto note = text ? FaultNote::parse(*text, options.size) : std::nullopt;
    if (!note || note->state == FaultNote::State::busy) return false;
    auto& [before, came] = since.try_emplace(rank, "", Clock::now()).first->second;
    if (std::exchange(before, *text) != *text) came = Clock::now();
    // The note of one that waits moves, as long as its process lives.
    const bool has_failed = note->state == FaultNote::State::failed;
    return Clock::now() - came < (has_failed ? inquiry : 2 * grace);
  };
  const auto end = Clock::now() + std::chrono::duration_cast<Clock::duration>(deadline + inquiry);
  std::vector<int> others(static_cast<std::size_t>(options.size));
  std::iota(others.begin(), others.end(), 0);
  for (;;) {
    // What is over stays so. One that is busy by itself may wait yet, while there are others that ask.
    std::erase_if(others, is_over);
    if (std::ranges::none_of(others, is_asking) || Clock::now() >= end) return;
    std::this_thread::sleep_for(grace / 20);
  }
}

/// The store dies with its host, and ranks that still ask would blame the host. A rank that lives may ask as
/// late as its own wait ends; one whose note stands still does not live, or has failed and asks now.
void FaultBoard::Inquiry::stay_as_host(Shared& shared, const std::vector<int>& culprits, Seconds grace,
                                       Seconds most) {
  const auto duration = [](Seconds time) { return std::chrono::duration_cast<Clock::duration>(time); };
  const auto end = Clock::now() + duration(most);
  struct Missing {
    int rank;
    std::optional<std::string> note{};
    Clock::time_point since = Clock::now();  // that its note stands still
  };
  std::vector<Missing> missing;
  for (int rank = 0; rank < shared.options.size; ++rank) {
    const bool blamed = std::ranges::find(culprits, rank) != culprits.end();
    if (rank != shared.options.rank && !blamed) missing.push_back({.rank = rank});
  }
  for (;;) {
    std::erase_if(missing, [&](Missing& one) {
      if (shared.get(shared.key("done/", one.rank)) || shared.get(shared.key("left/", one.rank))) return true;
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

}  // namespace thinwire
