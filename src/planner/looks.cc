#include "planner/looks.h"

#include <algorithm>

namespace thinwire {

double least_inside(Span<const Seen> ranks) {
  double least = ranks[0].inside;
  for (const Seen& one : ranks) least = std::min(least, one.inside);
  return least;
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

std::optional<std::size_t> rank_that_changed(Span<const Seen> ranks, double change) {
  std::size_t least = 0;
  double least_growth = 0, most_growth = 0;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (ranks[i].inside_before < 0) return {};
    const double growth = (ranks[i].inside - ranks[i].inside_before) / change;
    if (i == 0 || growth < least_growth) {
      least = i;
      least_growth = growth;
    }
    most_growth = i == 0 ? growth : std::max(most_growth, growth);
  }
  if (most_growth < 0.5 || least_growth > 0.2) return {};
  return least;
}

}  // namespace thinwire
