#include "core/closest.h"

#include <algorithm>
#include <cstddef>
#include <utility>

namespace thinwire {
namespace {

char lower(char c) {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
}

/// Damerau's distance in which no part of a text is changed twice.
std::size_t slips_between(std::string_view a, std::string_view b) {
  std::vector<std::size_t> before(b.size() + 1), above(b.size() + 1), row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) above[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const bool alike = lower(a[i - 1]) == lower(b[j - 1]);
      row[j] = std::min({above[j] + 1, row[j - 1] + 1, above[j - 1] + (alike ? 0 : 1)});
      const bool swapped =
          i > 1 && j > 1 && lower(a[i - 1]) == lower(b[j - 2]) && lower(a[i - 2]) == lower(b[j - 1]);
      if (swapped) row[j] = std::min(row[j], before[j - 2] + 1);
    }
    std::swap(before, above);
    std::swap(above, row);
  }
  return above[b.size()];
}

}  // namespace

std::string closest_to(std::string_view given, const std::vector<std::string>& known) {
  constexpr std::size_t kLongest = 64;  // no name is as long, and the table grows with the square
  if (given.size() > kLongest) return "";
  std::string best;
  std::size_t fewest = kLongest;
  for (const std::string& name : known) {
    const std::size_t slips = slips_between(given, name);
    if (slips > std::max<std::size_t>(name.size() > 3 ? 2 : 1, name.size() / 3) || 2 * slips > name.size())
      continue;
    if (slips >= fewest) continue;
    fewest = slips;
    best = name;
  }
  return best;
}

std::string did_you_mean(std::string_view given, const std::vector<std::string>& known) {
  const std::string name = closest_to(given, known);
  return name.empty() ? "" : " (did you mean '" + name + "'?)";
}

}  // namespace thinwire
