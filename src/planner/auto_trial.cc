// How `auto` tries candidates, chooses one, and notices that it has to try again.

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include "exchange/collectives.h"
#include "planner/auto_parts.h"

namespace thinwire::planner {
namespace {

/// Where a milder candidate takes more than is allowed by up to so large a share of the fastest one's time,
/// few steps are no proof. It is as large as what times may be wrong, within these.
constexpr double kDoubtful = 0.05;
constexpr double kMostDoubtful = 0.2;

/// Where a candidate's own steps differ by less, a few of them are proof.
constexpr double kSteady = 0.01;

/// A candidate that takes so many times the fastest one's time after the first round has no second one.
constexpr double kHopeless = 1.5;

/// The share of what half takes more than the fastest that its exchange has to take more.
constexpr double kByExchange = 0.5;

std::string percent(double share) {
  return std::to_string(std::lround(100 * share)) + " %";
}

}  // namespace

Trial Auto::trial_of_members(TrialOptions options, std::optional<std::size_t> before) const {
  if (members_.size() - suspicion_.left_out() < 3) options.first_is_late = false;
  Trial trial(options, before);
  for (std::size_t i = 0; i < candidates(); ++i) {
    if (i >= members_.size() || suspicion_.leaves_out(i)) trial.drop(i);
  }
  return trial;
}

/// What the trial has seen so far.
Auto::Measured Auto::measured() {
  Measured own;
  for (std::size_t i = 0; i < candidates(); ++i) {
    const auto times = plan_.trial.times(i);
    // None where its steps did not count, or came before the run was resumed.
    const std::vector<double> estimates = estimate_ ? estimate_->seconds(i) : std::vector<double>();
    const auto known = estimate_ ? Span<const double>(estimates) : times;
    const bool missing = times.empty() || known.empty();
    const double before = i < members_.size() && !plan_.trial.has(i) ? plan_.seconds[i] : 0;
    if (plan_.quarters == 0 && !plan_.duels) plan_.earlier[i] = missing && before > 0;
    if (i == 0 && !missing) plan_.inferred = false;
    if (!missing) plan_.replaced[i] = {plan_.trial.replaced(i), plan_.trial.timed(i)};
    const double instead = before > 0 ? before : kUnknown;  // of one that is not tried again
    const Timing timing = missing ? Timing{instead, 0, instead}
                                  : timing_of(known.first(std::min(known.size(), Trial::kMostTimes)));
    own.seconds[i] = timing.seconds;
    own.error[i] = timing.error;
    own.middle[i] = timing.middle;
    own.inside[i] = plan_.trial.least_inside(i);
  }
  own.sums_in_type = sums_in_type_ ? 1 : 0;
  if (plan_.duels) {
    const auto [milder, faster] = duelists();
    own.pairs = pairs_of(plan_.trial.times(milder), plan_.trial.times(faster), 1 + rules_.within);
  }
  return own;
}

/// Every candidate has had one turn more.
std::uint64_t Auto::after_round(Step& step) {
  const bool waits = plan_.quarters == 0 && plan_.trial.first_is_to_come();
  Measured own = measured();
  const Span<Measured> all = gather(step, own);
  const auto world = static_cast<double>(all.size());
  const auto timed = static_cast<double>(plan_.trial.left() - (waits ? 1 : 0));
  Seconds seconds{};
  Seconds middle{};
  double error = 0;
  bool known = true;
  for (const Measured& one : all) {
    for (std::size_t i = 0; i < seconds.size(); ++i) {
      // What another trial measured is no longer true, else there would be none.
      if (!takes_part(i) || (waits && i == 0) || plan_.earlier[i]) {
        seconds[i] = kUnknown;
        continue;
      }
      known = known && is_time(one.seconds[i]) && is_time(one.middle[i]) && is_time(one.inside[i]) &&
              one.error[i] >= 0 && std::isfinite(one.error[i]) &&
              (!plan_.duels || (one.pairs.count > 0 && std::isfinite(one.pairs.ratio)));
      seconds[i] += one.seconds[i] / world;
      middle[i] += one.middle[i] / world;
      error += plan_.trial.has(i) ? one.error[i] / world / timed : 0;
    }
  }
  const std::uint64_t sent = sizeof(Measured) * (all.size() - 1);
  if (!known) {
    // Some candidate's steps did not count, or a clock told nonsense.
    begin_trial();
    return sent;
  }
  for (std::size_t i = 0; i < candidates(); ++i) {
    if (!plan_.duels || plan_.trial.has(i)) plan_.middle[i] = middle[i];
  }
  if (plan_.duels) {
    if (end_duel(all, seconds)) end_trial(step, seconds, error);
    return sent;
  }
  const double fastest = *std::ranges::min_element(seconds);
  for (std::size_t i = 0; i < candidates(); ++i) {
    if (seconds[i] > kHopeless * fastest && seconds[i] < kUnknown && plan_.trial.has(i)) plan_.trial.drop(i);
  }
  if (waits && dense_need_not_come(all, seconds)) {
    // Half sends half as much, and rounding costs less than what the fastest computes instead: so dense takes
    // at least as much more once again.
    seconds[0] = 2 * seconds[1] - fastest;
    plan_.inferred = true;
    plan_.trial.drop(0);
  }
  if (plan_.trial.is_over()) end_trial(step, seconds, error);
  return sent;
}

/// Dense waits for its turn. Whether half, which sends half as much, was tried and is far behind, by what its
/// exchange takes: in first steps it may be computing that takes longer. For another link nothing follows
/// from that, nor for gradients that dense sums in 16 bits.
bool Auto::dense_need_not_come(Span<const Measured> ranks, const Seconds& seconds) const {
  const auto fastest = static_cast<std::size_t>(std::ranges::min_element(seconds) - seconds.begin());
  if (!rules_.link.empty() || plan_.trial.has(1) || plan_.trial.times(1).empty() ||
      plan_.trial.times(fastest).empty()) {
    return false;
  }
  // Of the rank that spends least there. Others wait for the one that comes last.
  const auto inside = [&](std::size_t candidate) {
    double least = kUnknown;
    for (const Measured& one : ranks) least = std::min(least, one.inside[candidate]);
    return least;
  };
  return std::ranges::none_of(ranks, [](const Measured& one) { return one.sums_in_type != 0; }) &&
         inside(1) - inside(fastest) >= kByExchange * (seconds[1] - seconds[fastest]);
}

/// Of candidates that take no part, seconds are more than any. error: how well the others are known.
void Auto::end_trial(Step& step, const Seconds& seconds, double error) {
  const auto faster = static_cast<std::size_t>(std::ranges::min_element(seconds) - seconds.begin());
  const double bound = (1 + rules_.within) * seconds[faster];
  const double doubtful = bound + std::clamp(error, kDoubtful, kMostDoubtful) * seconds[faster];
  const auto may_do = [&](std::size_t i) {
    return seconds[i] <= bound || (seconds[i] <= doubtful && may_duel() && plan_.duel[i].pairs.count == 0);
  };
  std::size_t choice = 0;
  if (plan_.quarters == 0) {
    for (std::size_t i = 0; i < seconds.size(); ++i) {
      if (!plan_.earlier[i]) plan_.seconds[i] = seconds[i];
    }
    while (!may_do(choice)) ++choice;
  } else {
    choice = may_do(with_dense(plan_.quarters)) ? with_dense(plan_.quarters) : plan_.base;
  }
  if (seconds[choice] > bound) return begin_duel(choice, faster);
  if (const auto rival = rival_in_doubt(choice, seconds, error)) return begin_duel(choice, *rival);
  if (plan_.quarters != 0) {
    if (choice == plan_.base && try_with_dense(plan_.quarters - 1)) return;
    return choose(step, seconds, choice);
  }
  plan_.base = choice;
  if (!members_[choice].lossless) {
    // Its bytes alone take as long as the same share of all bytes with dense, about.
    std::size_t most = kQuarters - 1;
    while (most > 0 && static_cast<double>(most) / kQuarters * plan_.seconds[0] > bound) --most;
    if (try_with_dense(most)) return;
  }
  choose(step, seconds, choice);
}

/// The fastest of those that change more than the choice, where their steps vary so much that the choice may
/// seem fast by chance: its few steps may be those that nothing disturbed.
std::optional<std::size_t> Auto::rival_in_doubt(std::size_t choice, const Seconds& seconds,
                                                double error) const {
  if (plan_.quarters != 0 || !may_duel() || error < kSteady || plan_.duel[choice].pairs.count > 0) return {};
  std::optional<std::size_t> rival;
  for (std::size_t i = choice + 1; i < members_.size(); ++i) {
    if (takes_part(i) && !plan_.earlier[i] && (!rival || seconds[i] < seconds[*rival])) rival = i;
  }
  if (!rival || seconds[*rival] > (1 + std::min(error, kMostDoubtful)) * seconds[choice]) return {};
  return rival;
}

/// The two alone go on, by turns.
void Auto::begin_duel(std::size_t milder, std::size_t faster) {
  plan_.duels = true;
  plan_.trial = Trial(of_duel(), plan_.use);
  for (std::size_t i = 0; i < candidates(); ++i) {
    if (i != milder && i != faster) plan_.trial.drop(i);
  }
}

/// The milder one of the two, and the other one.
std::pair<std::size_t, std::size_t> Auto::duelists() const {
  std::size_t first = 0, last = candidates() - 1;
  while (!plan_.trial.has(first)) ++first;
  while (!plan_.trial.has(last)) --last;
  return plan_.quarters == 0 ? std::pair(first, last) : std::pair(last, first);
}

/// After a round of it. Where pairs of steps leave no doubt, or it was the last round, the milder one's
/// seconds become what they say. Returns whether.
bool Auto::end_duel(Span<const Measured> ranks, Seconds& seconds) {
  Pairs mean{.count = ranks[0].pairs.count};
  for (const Measured& one : ranks) {
    mean.count = std::min(mean.count, one.pairs.count);
    mean.ratio += one.pairs.ratio / static_cast<double>(ranks.size());
    mean.longer += one.pairs.longer / static_cast<double>(ranks.size());
  }
  if (!plan_.trial.is_over() && !mean.are_clear()) return false;
  const auto [milder, faster] = duelists();
  // Others are known by the trial alone, so the faster one is compared with them by that.
  if (plan_.quarters == 0) seconds[faster] = plan_.seconds[faster];
  seconds[milder] = mean.ratio * seconds[faster];
  plan_.duel[milder] = {mean, faster};
  plan_.duels = false;
  return true;
}

/// Begins the trial of the base with dense for so many quarters, or for fewer where these give it no bucket
/// more. Returns false where there is nothing to try.
bool Auto::try_with_dense(std::size_t quarters) {
  const std::size_t before = plan_.quarters == 0 ? buckets_.size() : buckets_of_dense(plan_.quarters);
  while (quarters > 0 && buckets_of_dense(quarters) >= before) --quarters;
  if (quarters == 0 || buckets_of_dense(quarters) == 0) return false;
  plan_.quarters = quarters;
  plan_.duel[with_dense(quarters)] = {};
  plan_.trial = Trial(again(), plan_.use);
  for (std::size_t i = 0; i < candidates(); ++i) {
    if (!takes_part(i)) plan_.trial.drop(i);
  }
  plan_.coming = plan_.trial.coming();
  return true;
}

void Auto::choose(Step& step, const Seconds& seconds, std::size_t choice) {
  const bool confirmed = plan_.tried && choice == plan_.choice;
  plan_.patience.chosen(confirmed);
  plan_.choice = plan_.coming = choice;
  plan_.chosen = plan_.tried = true;
  plan_.quarters = 0;
  plan_.ranks = step.communicator.size();
  plan_.usual = plan_.middle[choice];
  plan_.fresh = true;
  plan_.moved = plan_.unlike = false;  // what a guard did in the trial says nothing of later steps
  if (!confirmed) plan_.suspect = 0;
  plan_.usual_inside = -1;
  plan_.least_inside = 0;
  plan_.watch = {};
  plan_.looks_to_probe = 0;
  plan_.times = StepTimes();
  std::string all;
  for (std::size_t i = 0; i < candidates(); ++i) {
    const double one = seconds[i] < kUnknown ? seconds[i] : plan_.seconds[i];
    if (one >= kUnknown || one <= 0) continue;
    const bool inferred = i == 0 && plan_.inferred;
    all += (all.empty() ? "" : ", ") + std::string(inferred ? "at least " : "") + milliseconds(one) +
           " with " + name_of(i);
    if (inferred) all += " (not tried: it sends twice as much as " + name_of(1) + ")";
    all += told_of_times(i);
  }
  const std::string where =
      rules_.link.empty() ? ". Undisturbed, a step takes " : ". Over " + rules_.link + " a step takes ";
  // Later steps are compared with the median: on a busy machine that is far from the times above.
  const std::string usual =
      rules_.link.empty() ? ". The median of the chosen one's steps is " + milliseconds(plan_.usual) : "";
  add_change(step, name_of(choice) + where + all + ". Of those that take at most " + percent(rules_.within) +
                       " more than the shortest, the one that changes gradients least is taken" + usual);
}

/// What else is to be said of a candidate's time.
std::string Auto::told_of_times(std::size_t candidate) const {
  std::string all = plan_.earlier[candidate] ? " (in an earlier trial)" : "";
  const auto& [steps, timed] = plan_.replaced[candidate];
  if (steps > 0) {
    all += " (with " + stands_in_ + " in " + std::to_string(steps) + " of " + std::to_string(timed) +
           " steps" + (plan_.duel[candidate].pairs.count == 0 && steps < timed ? ", and by these)" : ")");
  }
  const auto& [pairs, faster] = plan_.duel[candidate];
  if (pairs.count == 0) return all;
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), " (by %.0f pairs of steps %.3f times those ", pairs.count,
                pairs.ratio);
  return all + text.data() + "with " + name_of(faster) + ")";
}

void Auto::leave_out_what_failed(Step& step) {
  for (std::size_t i = 1; i < members_.size(); ++i) {
    const bool is_used = plan_.chosen          ? member_behind(plan_.choice) == i
                         : plan_.quarters == 0 ? plan_.trial.has(i)
                                               : plan_.base == i;
    if (!suspicion_.leaves_out(i) || !is_used) continue;
    try_again(step, names_[i] +
                        " is left out: its steps before and after one with dense did not count, and "
                        "that one did");
  }
}

void Auto::try_again_with(Step& step, const Members& rivals, const std::string& why) {
  try_again(step, why);
  for (std::size_t i = 0; i < members_.size(); ++i) {
    if (!rivals[i] && plan_.trial.has(i)) plan_.trial.drop(i);
  }
  plan_.coming = plan_.trial.coming();
}

void Auto::try_again(Step& step, const std::string& why) {
  add_change(step, why + ": the candidates are tried again");
  begin_trial();
}

/// Of all members.
void Auto::begin_trial() {
  plan_.quarters = 0;
  plan_.duels = false;
  plan_.duel = {};
  plan_.trial = trial_of_members(again(), plan_.use);
  plan_.chosen = false;
  plan_.coming = plan_.trial.coming();
}

}  // namespace thinwire::planner
