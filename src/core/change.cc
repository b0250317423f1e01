#include "thinwire/change.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace thinwire {

void add_changes(std::vector<Change>& all, const std::vector<Change>& more) {
  std::vector<Change> merged;
  merged.reserve(all.size() + more.size());
  std::merge(all.begin(), all.end(), more.begin(), more.end(), std::back_inserter(merged),
             [](const Change& a, const Change& b) { return a.step < b.step; });
  all = std::move(merged);
}

std::string to_text(const std::vector<Change>& changes) {
  std::string text;
  for (const Change& change : changes) {
    text += (text.empty() ? "step " : "\nstep ") + std::to_string(change.step) + ": " + change.reason;
  }
  return text;
}

}  // namespace thinwire
