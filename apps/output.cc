#include "apps/output.h"

#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <system_error>

namespace thinwire::apps {

void require_writable(const std::string& path) {
  if (path.empty() || path == "-") return;
  std::error_code error;
  const bool there = std::filesystem::exists(path, error);
  if (!std::ofstream(path, std::ios::app))
    throw std::runtime_error("cannot write " + path + ": does its folder exist?");
  if (!there) std::filesystem::remove(path, error);  // no empty file if nothing comes of the run
}

void write_results(const std::string& path, const std::string& text) {
  std::ofstream file(path);
  file << text << '\n';
  file.flush();
  if (!file) throw std::runtime_error("writing " + path + " failed: is the disk full?");
}

}  // namespace thinwire::apps
