// How `auto` tries candidates, chooses one, and notices that it has to try again.

#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <vector>

#include "exchange/collectives.h"
#include "planner/auto_parts.h"

namespace thinwire::planner {
namespace {

/// Times that are known worse than this get another round.
constexpr double kGoodError = 0.03;
/// The most by which a milder candidate may be behind for times that are not known better.
constexpr double kMostError = 0.05;

/// A candidate that takes so many times the fastest one's time after the first round has no second one.
constexpr double kHopeless = 1.5;

/// The share of what half takes more than the fastest that its exchange has to take more.
constexpr double kByExchange = 0.5;

std::string percent(double share) {
  return std::to_string(std::lround(100 * share)) + " %";
}

}  // namespace

Trial Auto::trial_of_members(TrialOptions options, std::optional<std::size_t> before) const {
  const auto left_out = static_cast<std::size_t>(std::ranges::count(left_out_, true));
  if (members_.size() - left_out < 3) options.first_is_late = false;
  Trial trial(options, before);
  for (std::size_t i = 0; i < candidates(); ++i) {
    if (i >= members_.size() || left_out_[i]) trial.drop(i);
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
    if (plan_.quarters == 0) plan_.earlier[i] = missing && before > 0;
    if (i == 0 && !missing) plan_.inferred = false;
    const double instead = before > 0 ? before : kUnknown;  // of one that is not tried again
    const Timing timing = missing ? Timing{instead, 0, instead}
                                  : timing_of(known.first(std::min(known.size(), Trial::kMostTimes)));
    own.seconds[i] = timing.seconds;
    own.error[i] = timing.error;
    own.middle[i] = timing.middle;
    own.inside[i] = plan_.trial.least_inside(i);
  }
  own.sums_in_type = sums_in_type_ ? 1 : 0;
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
  plan_.middle = {};
  double error = 0;
  bool known = true;
  for (const Measured& one : all) {
    for (std::size_t i = 0; i < seconds.size(); ++i) {
      if (!takes_part(i) || (waits && i == 0)) {
        seconds[i] = kUnknown;
        continue;
      }
      known = known && is_time(one.seconds[i]) && is_time(one.middle[i]) && is_time(one.inside[i]) &&
              one.error[i] >= 0 && std::isfinite(one.error[i]);
      seconds[i] += one.seconds[i] / world;
      plan_.middle[i] += one.middle[i] / world;
      error += plan_.trial.has(i) ? one.error[i] / world / timed : 0;
    }
  }
  const std::uint64_t sent = sizeof(Measured) * (all.size() - 1);
  const double fastest = *std::ranges::min_element(seconds);
  if (!known) {
    // Some candidate's steps did not count, or a clock told nonsense.
    plan_.quarters = 0;
    plan_.trial = trial_of_members(again(), plan_.use);
    return sent;
  }
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
  if (plan_.trial.is_over() && !(error > kGoodError && plan_.trial.extend())) end_trial(step, seconds, error);
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

/// Of candidates that take no part, seconds are more than any.
void Auto::end_trial(Step& step, const Seconds& seconds, double error) {
  const double allowed = rules_.within + std::min(error, kMostError);
  const double bound = (1 + allowed) * *std::ranges::min_element(seconds);
  if (plan_.quarters != 0) {
    const std::size_t mixed = with_dense(plan_.quarters);
    if (seconds[mixed] <= bound) return choose(step, seconds, mixed, allowed);
    if (try_with_dense(plan_.quarters - 1)) return;
    return choose(step, seconds, plan_.base, allowed);
  }
  const auto mildest = std::ranges::find_if(seconds, [&](double one) { return one <= bound; });
  const auto choice = static_cast<std::size_t>(mildest - seconds.begin());
  plan_.base = choice;
  plan_.seconds = seconds;
  if (!members_[choice].lossless) {
    // Its bytes alone take as long as the same share of all bytes with dense, about.
    std::size_t most = kQuarters - 1;
    while (most > 0 && static_cast<double>(most) / kQuarters * seconds[0] > bound) --most;
    if (try_with_dense(most)) return;
  }
  choose(step, seconds, choice, allowed);
}

/// Begins the trial of the base with dense for so many quarters, or for fewer where these give it no bucket
/// more. Returns false where there is nothing to try.
bool Auto::try_with_dense(std::size_t quarters) {
  const std::size_t before = plan_.quarters == 0 ? buckets_.size() : buckets_of_dense(plan_.quarters);
  while (quarters > 0 && buckets_of_dense(quarters) >= before) --quarters;
  if (quarters == 0 || buckets_of_dense(quarters) == 0) return false;
  plan_.quarters = quarters;
  plan_.trial = Trial(again(), plan_.use);
  for (std::size_t i = 0; i < candidates(); ++i) {
    if (!takes_part(i)) plan_.trial.drop(i);
  }
  plan_.coming = plan_.trial.coming();
  return true;
}

void Auto::choose(Step& step, const Seconds& seconds, std::size_t choice, double allowed) {
  const bool confirmed = plan_.tried && choice == plan_.choice;
  plan_.looks_to_retry = confirmed ? std::min(2 * plan_.looks_to_retry, kMostLooksToRetry) : kLooksToRetry;
  plan_.looks_to_try_again =
      confirmed ? std::min(2 * plan_.looks_to_try_again, kMostLooksToTryAgain) : kLooksToTryAgain;
  plan_.looks = 0;
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
  plan_.drifted = plan_.calm = 0;
  std::string all;
  for (std::size_t i = 0; i < candidates(); ++i) {
    const double one = seconds[i] < kUnknown ? seconds[i] : plan_.seconds[i];
    if (one >= kUnknown || one <= 0) continue;
    const bool inferred = i == 0 && plan_.inferred;
    all += (all.empty() ? "" : ", ") + std::string(inferred ? "at least " : "") + milliseconds(one) +
           " with " + name_of(i);
    if (inferred) all += " (not tried: it sends twice as much as " + name_of(1) + ")";
    if (plan_.earlier[i]) all += " (in an earlier trial)";
  }
  const std::string of_which = percent(allowed - rules_.within) == percent(0)
                                   ? ""
                                   : " (" + percent(rules_.within) + " are always allowed, and " +
                                         percent(allowed - rules_.within) +
                                         " is how far these times may be wrong)";
  const std::string where =
      rules_.link.empty() ? ". Undisturbed, a step takes " : ". Over " + rules_.link + " a step takes ";
  // Later steps are compared with the median: on a busy machine that is far from the times above.
  const std::string usual =
      rules_.link.empty() ? ". The median of the chosen one's steps is " + milliseconds(plan_.usual) : "";
  add_change(step, name_of(choice) + where + all + ". Of those that take at most " + percent(allowed) +
                       " more than the shortest, the one that changes gradients least is taken" + of_which +
                       usual);
}

void Auto::leave_out_what_failed(Step& step) {
  for (std::size_t i = 1; i < members_.size(); ++i) {
    const bool is_used = plan_.chosen          ? member_behind(plan_.choice) == i
                         : plan_.quarters == 0 ? plan_.trial.has(i)
                                               : plan_.base == i;
    if (!left_out_[i] || !is_used) continue;
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
  plan_.quarters = 0;
  plan_.trial = trial_of_members(again(), plan_.use);
  plan_.chosen = false;
  plan_.coming = plan_.trial.coming();
}

}  // namespace thinwire::planner
