#pragma once
// Files for results.

#include <string>

namespace thinwire::apps {

/// Opens for appending: what an earlier run left there stays until there is something to put in its place.
/// Throws std::runtime_error. An empty path and "-" are always writable.
void require_writable(const std::string& path);

/// Throws std::runtime_error when the disk is full.
void write_results(const std::string& path, const std::string& text);

}  // namespace thinwire::apps
