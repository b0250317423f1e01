#include "apps/output.h"

#include <fstream>
#include <stdexcept>

namespace thinwire::apps {

void require_writable(const std::string& path) {
  if (path.empty() || path == "-") return;
  if (!std::ofstream(path, std::ios::app))
    throw std::runtime_error("cannot write " + path + ": does its folder exist?");
}

void write_results(const std::string& path, const std::string& text) {
  std::ofstream file(path);
  file << text << '\n';
  file.flush();
  if (!file) throw std::runtime_error("writing " + path + " failed: is the disk full?");
}

}  // namespace thinwire::apps
