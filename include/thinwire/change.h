#pragma once
// What a system changes by itself, such as which other system it uses.

#include <cstdint>
#include <string>
#include <vector>

namespace thinwire {

struct Change {
  std::uint64_t step = 0;  ///< In which the reason was found.
  std::string reason;      ///< One line.

  bool operator==(const Change&) const = default;
};

/// Both with ascending steps: puts `more` among `all`, of one step behind.
void add_changes(std::vector<Change>& all, const std::vector<Change>& more);

/// "step N: REASON", a line for each.
std::string to_text(const std::vector<Change>& changes);

}  // namespace thinwire
