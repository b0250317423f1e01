#include "thinwire/change.h"

#include <algorithm>

namespace thinwire {

void add_changes(std::vector<Change>& all, const std::vector<Change>& more) {
  const auto before = static_cast<std::ptrdiff_t>(all.size());
  all.insert(all.end(), more.begin(), more.end());
  std::inplace_merge(all.begin(), all.begin() + before, all.end(),
                     [](const Change& a, const Change& b) { return a.step < b.step; });
}

std::string to_text(const std::vector<Change>& changes) {
  std::string text;
  for (const Change& change : changes) {
    text += (text.empty() ? "step " : "\nstep ") + std::to_string(change.step) + ": " + change.reason;
  }
  return text;
}

}  // namespace thinwire
