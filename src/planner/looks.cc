#include "planner/looks.h"

#include <algorithm>

namespace thinwire {

double least_inside(Span<const Seen> ranks) {
  double least = ranks[0].inside;
  for (const Seen& one : ranks) least = std::min(least, one.inside);
  return least;
}

void Patience::chosen(bool confirmed) {
  if (!confirmed || !tests_) needed_ = confirmed ? std::min(2 * needed_, kMost) : kFewest;
  to_test_ = confirmed ? std::min(2 * to_test_, kMostToTest) : kFewestToTest;
  tests_ = false;
  disturbed_ = calm_ = looks_ = 0;
}

void Patience::see_calm() {
  disturbed_ = 0;
  if (++calm_ < kCalm) return;
  calm_ = 0;
  needed_ = std::max(needed_ / 2, kFewest);
}

bool Patience::see_change(bool far) {
  calm_ = 0;
  return ++disturbed_ >= (far ? needed_when_far() : needed_);
}

double expected_seconds(double seconds, const StepAndInside& before, const StepAndInside& now) {
  if (before.inside <= 0) return seconds;
  const double rest_before = std::max(0.0, before.step - before.inside);
  const double rest_now = std::max(0.0, now.step - now.inside);
  return rest_now + now.inside / before.inside * std::max(0.0, seconds - rest_before);
}

double expected_over(double seconds, const StepAndInside& before, double factor) {
  const double rest = std::max(0.0, before.step - before.inside);
  return rest + factor * std::max(0.0, seconds - rest);
}

namespace {

/// More of the change than this is no chance.
constexpr double kFairShare = 0.2;

/// The rank whose exchange shows least of the change, how much that is, and what the one with most shows.
struct Growth {
  std::size_t rank = 0;
  double least = 0;
  double most = 0;
};

/// Nothing where it is not known.
std::optional<Growth> growth_of_exchange(Span<const Seen> ranks, double change) {
  Growth all;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (ranks[i].inside_before < 0) return {};
    const double one = (ranks[i].inside - ranks[i].inside_before) / change;
    if (i == 0 || one < all.least) {
      all.rank = i;
      all.least = one;
    }
    all.most = i == 0 ? one : std::max(all.most, one);
  }
  return all;
}

}  // namespace

bool is_computing_alone(Span<const Seen> ranks, double change) {
  const auto growth = growth_of_exchange(ranks, change);
  return growth && growth->most < kFairShare;
}

std::optional<std::size_t> rank_that_changed(Span<const Seen> ranks, double change) {
  const auto growth = growth_of_exchange(ranks, change);
  if (!growth || growth->most < 0.5 || growth->least > kFairShare) return {};
  return growth->rank;
}

}  // namespace thinwire
