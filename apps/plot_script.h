#pragma once
// Hands results to a plotting script.

#include <string>

namespace thinwire::apps {

/// Runs a script of apps/plot, or of the installed share/thinwire, on the results in `json` to make `png`.
/// Throws std::runtime_error that says what to do if the script, Python or matplotlib is missing, or the
/// picture was not made.
void run_plot_script(const std::string& script, const std::string& json, const std::string& png);

}  // namespace thinwire::apps
