#pragma once
// Hands results to the plotting script.

#include <string>

namespace thinwire::train {

/// Runs the plotting script on the results in `json` to make `png`. Throws std::runtime_error that says what
/// to do if the script, Python or matplotlib is missing, or the picture was not made.
void plot_results(const std::string& json, const std::string& png);

}  // namespace thinwire::train
