#pragma once
// Files for results.

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace thinwire::apps {

/// Before a run that may take long: what an earlier one left there stays until there is something to put in
/// its place. Throws std::invalid_argument for a folder and std::runtime_error, naming the remedy, for
/// whatever else cannot be written. An empty path and "-" are always writable.
void require_writable(const std::string& file);

/// The same for a picture, which replaces what is there: std::invalid_argument also for pipes and devices.
void require_picture(const std::string& file);

/// A list of runs as JSON, one run to a line.
std::string results_text(const nlohmann::ordered_json& runs);

/// Throws std::runtime_error when the disk is full.
void write_results(const std::string& path, const std::string& text);

}  // namespace thinwire::apps
