#pragma once
// What somebody meant who misspelt a name.

#include <string>
#include <string_view>
#include <vector>

namespace thinwire {

/// The one of `known` that the fewest slips turn into `given`: letters left out, added, replaced, or two that
/// changed places. Case does not count. Empty where even that takes more than a third of its letters.
std::string closest_to(std::string_view given, const std::vector<std::string>& known);

/// " (did you mean 'NAME'?)" of that one; empty where there is none.
std::string did_you_mean(std::string_view given, const std::vector<std::string>& known);

}  // namespace thinwire
