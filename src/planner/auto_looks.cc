// Whether the time that a choice of `auto` rests on is still true: looks, and messages that show the link.

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <utility>

#include "comm/link_probe.h"
#include "exchange/collectives.h"
#include "planner/auto_parts.h"

namespace thinwire::planner {
namespace {

/// One that would take so many times what a step takes now is not tried again.
constexpr double kFarBehind = 3;

/// The same in the first tests of a choice, which come soon after it.
constexpr double kBehind = 1.3;

/// Where the exchange takes less than it did, a milder candidate is tried again if it would take at most so
/// many times what a step takes now. That is an upper bound: a codec's time does not become less.
constexpr double kWorthATrial = 2;

}  // namespace

std::uint64_t Auto::look(Step& step) {
  Seen own;
  own.step = median({plan_.times.steps.data(), plan_.times.count});
  own.inside = median({plan_.times.inside.data(), plan_.times.count});
  own.inside_before = plan_.usual_inside;
  plan_.times.count = 0;
  const Span<Seen> all = gather(step, own);
  const std::uint64_t sent = sizeof(Seen) * (all.size() - 1);
  double now = 0;
  if (std::ranges::all_of(all, [](const Seen& one) {
        return is_time(one.step) && is_time(one.inside) && std::abs(one.inside_before) < kMostSeconds;
      })) {
    for (const Seen& one : all) now += one.step / static_cast<double>(all.size());
    judge(step, all, now);
    // What a rank spends in the exchange is known from the first calm look on.
    if (plan_.chosen && plan_.usual_inside < 0 && !plan_.patience.is_disturbed()) {
      plan_.usual_inside = own.inside;
      // A resumed run knows this one: the network may have become another one meanwhile.
      if (plan_.least_inside == 0) plan_.least_inside = least_inside(all);
    }
  }
  return sent + (plan_.chosen ? watch_link(step, now) : 0);
}

/// Where the chosen system sends too little to show how fast the link is: sends a message that does, now and
/// then. Where it takes less than half of what it took, milder candidates may do.
std::uint64_t Auto::watch_link(Step& step, double now) {
  if (plan_.choice < kShowTheLink || plan_.choice >= members_.size()) return 0;
  const bool in_doubt = !plan_.watch.is_known() || plan_.watch.shorter > 0;
  if (--plan_.looks_to_probe > 0 && !in_doubt) return 0;
  probe_.resize(2 * kProbeBytes);
  const Span<double> all = gather(step, message_seconds(step.communicator, probe_, kProbeBytes));
  const std::uint64_t sent = kProbeBytes + sizeof(double) * (all.size() - 1);
  if (!std::ranges::all_of(all, is_time)) return sent;
  // Other work delays a message, and nothing makes it arrive earlier than the link can.
  const double least = *std::ranges::min_element(all);
  plan_.watch.add(least);
  const double looks = least / (kShareOfProbe * std::max(now, 1e-6) * static_cast<double>(rules_.interval));
  plan_.looks_to_probe = static_cast<int>(std::clamp(std::ceil(looks), double{kLooksToProbe}, 1000.0));
  // Patience is for steps, which other work makes longer and then shorter again.
  if (plan_.watch.shorter < Patience::kFewest) return sent;
  const double before = plan_.watch.usual;
  const Seconds seconds = expected(now, [&](double one) {
    return expected_over(one, {plan_.usual, plan_.least_inside}, least / before);
  });
  if (!milder_may_do(seconds, now)) {
    plan_.watch = {};  // what it takes now is usual from now on
    return sent;
  }
  try_again_with(step, near(seconds, now, kFarBehind),
                 "a message of " + std::to_string(kProbeBytes / 1024) + " KiB takes " + milliseconds(least) +
                     " and took " + milliseconds(before));
  return sent;
}

/// now: what a step takes, as a mean over ranks.
void Auto::judge(Step& step, Span<const Seen> ranks, double now) {
  if (std::exchange(plan_.unlike, false)) return take_time(step, now);
  // A trial knows its times by few steps, all of them soon after another candidate's. Where a time has led to
  // another trial, and that to the same choice, it is no news any more.
  const bool is_known = plan_.suspect > 0 && !has_drifted(plan_.suspect, now);
  if (plan_.usual == 0 || (plan_.fresh && (is_known || !has_drifted_far(plan_.usual, now))))
    plan_.usual = now;
  plan_.fresh = false;
  const StepAndInside seen{now, least_inside(ranks)};
  const Seconds seconds = expected(now, [&](double one) {
    return expected_seconds(one, {plan_.usual, plan_.least_inside}, seen);
  });
  const Members rivals = near(seconds, now, kFarBehind);
  const bool drifted = has_drifted(plan_.usual, now);
  if (plan_.patience.is_test_due() && !drifted) {
    const bool tests_all = plan_.patience.tests_all();
    const Members close = near(seconds, now, tests_all ? kFarBehind : kBehind);
    // A trial of dense for a share of the buckets is long.
    if (has_rivals(close) && (tests_all || plan_.choice < members_.size())) {
      plan_.patience.test_begins();
      const auto looks = static_cast<std::size_t>(plan_.patience.to_test());
      return try_again_with(
          step, close,
          name_of(plan_.choice) + " was chosen " + std::to_string(looks * rules_.interval) + " steps ago");
    }
    plan_.patience.was_tested();
  }
  const bool milder = !drifted && exchange_is_shorter(seen.inside) && milder_may_do(seconds, now);
  if (!drifted && !milder) return plan_.patience.see_calm();
  if (!plan_.patience.see_change(has_drifted_far(plan_.usual, now))) return;
  if (milder) {
    return try_again_with(step, rivals,
                          "the exchange takes " + milliseconds(seen.inside) + " of a step and took " +
                              milliseconds(plan_.least_inside));
  }
  act_on_another_time(step, ranks, now, seconds);
}

/// Steps take another time for long, `now`, and each member's is expected to take so many seconds.
void Auto::act_on_another_time(Step& step, Span<const Seen> ranks, double now, const Seconds& seconds) {
  const Members rivals = near(seconds, now, kFarBehind);
  const std::string what = "the median of " + std::to_string(rules_.interval) + " steps is " +
                           milliseconds(now) + " and was " + milliseconds(plan_.usual);
  if (const auto changed = ranks_that_changed(ranks, now - plan_.usual); !changed.empty()) {
    std::string who = changed.size() == 1 ? "rank" : "ranks";
    for (const std::size_t rank : changed) who += (rank == changed[0] ? " " : ", ") + std::to_string(rank);
    add_change(step, what + ", by " + who + " alone" +
                         (now <= plan_.usual ? "" : ", for which the others wait") + ": " +
                         name_of(plan_.choice) + " stays");
    return take_as_usual(now);
  }
  if (!has_rivals(rivals)) {
    add_change(step, what + ", and no other candidate is near: " + name_of(plan_.choice) + " stays");
    return take_as_usual(now);
  }
  if (is_computing_alone(ranks, now - plan_.usual) && !would_choose_another(seconds)) {
    add_change(step, what + ": computing takes " + milliseconds(std::abs(now - plan_.usual)) +
                         (now > plan_.usual ? " longer" : " less") + " than it did, the exchange does not. " +
                         name_of(plan_.choice) + " stays");
    return take_as_usual(now);
  }
  try_again_with(step, rivals, what);
  plan_.suspect = now;
}

/// What a step of each member would take now, by what it took. As long as one does now where that is unknown.
Auto::Seconds Auto::expected(double now, const std::function<double(double)>& from_before) const {
  Seconds all{};
  for (std::size_t i = 0; i < members_.size(); ++i) {
    const double before = plan_.seconds[i];
    all[i] = before > 0 && before < kUnknown ? from_before(before) : now;
  }
  return all;
}

/// The members that may take at most `most` times as long as what runs, and what runs.
Auto::Members Auto::near(const Seconds& expected, double now, double most) const {
  Members all{};
  for (std::size_t i = 0; i < members_.size(); ++i) {
    all[i] = !suspicion_.leaves_out(i) && (i == member_behind(plan_.choice) || expected[i] <= most * now);
  }
  return all;
}

/// Whether a milder member than the chosen one is worth a trial.
bool Auto::milder_may_do(const Seconds& expected, double now) const {
  for (std::size_t i = 0; i < member_behind(plan_.choice); ++i) {
    if (!suspicion_.leaves_out(i) && expected[i] <= kWorthATrial * now) return true;
  }
  return false;
}

/// Whether the choice among members would be another one if steps took as long as expected.
bool Auto::would_choose_another(const Seconds& expected) const {
  double fastest = kUnknown;
  for (std::size_t i = 0; i < members_.size(); ++i) {
    if (!suspicion_.leaves_out(i)) fastest = std::min(fastest, expected[i]);
  }
  std::size_t mildest = 0;
  while (suspicion_.leaves_out(mildest) || expected[mildest] > (1 + rules_.within) * fastest) ++mildest;
  return mildest != member_behind(plan_.choice);
}

/// Whether there is anything to compare. With a choice of which dense has a part, that part is.
bool Auto::has_rivals(const Members& rivals) const {
  return plan_.choice >= members_.size() || std::ranges::count(rivals, true) > 1;
}

/// Whether the exchange has become much shorter. The time of a step need not show it: where a step is mostly
/// computing, the link can become ten times as fast unseen.
bool Auto::exchange_is_shorter(double inside) const {
  const double before = plan_.least_inside;
  return before > 0 && inside <= before && has_drifted_far(before, inside);
}

/// A step takes so long now, and that is no reason to try anything.
void Auto::take_as_usual(double seconds) {
  plan_.usual = seconds;
  plan_.usual_inside = -1;
  plan_.least_inside = 0;
  plan_.patience.forget_changes();
}

/// After the guard changed what buckets do, which says nothing about the network: the time of a step is
/// another one. The candidates are tried again where a milder one took less.
void Auto::take_time(Step& step, double now) {
  const std::string what = "a step takes " + milliseconds(now) + " since the guard changed what buckets do";
  take_as_usual(now);
  plan_.fresh = false;
  plan_.patience.forget_calm();
  for (std::size_t i = 0; i < member_behind(plan_.choice); ++i) {
    if (plan_.seconds[i] > 0 && plan_.seconds[i] < now && has_drifted(plan_.seconds[i], now)) {
      return try_again(step, what + ", and took " + milliseconds(plan_.seconds[i]) + " with " + name_of(i));
    }
  }
}

}  // namespace thinwire::planner
