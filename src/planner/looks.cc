#include "planner/looks.h"

#include <algorithm>

namespace thinwire {

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
