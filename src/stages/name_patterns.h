#pragma once
// Patterns of names: "embedding.*|*.bias". They choose parameters by name in specs, where commas, colons and
// plus signs have a meaning already.

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

namespace thinwire {

class NamePatterns {
 public:
  NamePatterns() = default;
  /// `text`: patterns separated by '|'. In each '*' stands for any text, all else for itself. Empty or "-":
  /// nothing matches.
  explicit NamePatterns(std::string_view text) {
    if (text == "-") return;
    while (!text.empty()) {
      const std::size_t end = std::min(text.find('|'), text.size());
      if (end > 0) patterns_.emplace_back(text.substr(0, end));
      text.remove_prefix(std::min(end + 1, text.size()));
    }
  }

  bool match(std::string_view name) const {
    return std::ranges::any_of(patterns_, [&](const std::string& pattern) { return matches(pattern, name); });
  }

  /// The patterns that none of these names fits.
  std::vector<std::string> unmatched(const std::vector<std::string>& names) const {
    std::vector<std::string> found;
    for (const std::string& pattern : patterns_) {
      const auto fits = [&](const std::string& name) { return matches(pattern, name); };
      if (std::ranges::none_of(names, fits)) found.push_back(pattern);
    }
    return found;
  }

 private:
  /// Greedy with one place to come back to, so in at most pattern * name steps.
  static bool matches(std::string_view pattern, std::string_view name) {
    std::size_t at = 0;
    std::size_t in_name = 0;
    std::size_t star = std::string_view::npos;
    std::size_t star_name = 0;
    while (in_name < name.size()) {
      if (at < pattern.size() && pattern[at] == '*') {
        star = at++;
        star_name = in_name;
      } else if (at < pattern.size() && pattern[at] == name[in_name]) {
        ++at;
        ++in_name;
      } else if (star != std::string_view::npos) {
        at = star + 1;
        in_name = ++star_name;
      } else {
        return false;
      }
    }
    return pattern.find_first_not_of('*', at) == std::string_view::npos;
  }

  std::vector<std::string> patterns_;
};

}  // namespace thinwire
