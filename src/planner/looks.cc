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

/// What part of the change each rank's exchange shows. Empty where it is not known.
std::vector<double> growth_of_exchange(Span<const Seen> ranks, double change) {
  std::vector<double> growth;
  for (const Seen& one : ranks) {
    if (one.inside_before < 0) return {};
    growth.push_back((one.inside - one.inside_before) / change);
  }
  return growth;
}

}  // namespace

bool is_computing_alone(Span<const Seen> ranks, double change) {
  const auto growth = growth_of_exchange(ranks, change);
  return !growth.empty() && *std::ranges::max_element(growth) < kFairShare;
}

std::vector<std::size_t> ranks_that_changed(Span<const Seen> ranks, double change) {
  const auto growth = growth_of_exchange(ranks, change);
  std::vector<std::size_t> changed;
  if (growth.empty() || *std::ranges::max_element(growth) < 0.5) return changed;
  for (std::size_t i = 0; i < growth.size(); ++i) {
    if (growth[i] <= kFairShare) changed.push_back(i);
  }
  return changed;
}

}  // namespace thinwire
