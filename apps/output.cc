#include "apps/output.h"

#include <fmt/core.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <system_error>

namespace thinwire::apps {

void require_writable(const std::string& file) {
  namespace fs = std::filesystem;
  if (file.empty() || file == "-") return;
  const fs::path path(file);
  const fs::path folder = path.has_parent_path() ? path.parent_path() : fs::path(".");
  std::error_code error;
  if (fs::is_directory(path, error)) {
    throw std::invalid_argument(fmt::format("{} is a folder: name a file", file));
  }
  if (!fs::is_directory(folder, error)) {
    throw std::runtime_error(
        fmt::format("{} cannot be written: there is no folder {}", file, folder.string()));
  }
  const bool there = fs::exists(path, error);
  // A pipe or a device is not opened before there is something to write.
  const bool regular = !there || fs::is_regular_file(path, error);
  const bool writable =
      regular ? static_cast<bool>(std::ofstream(path, std::ios::app)) : access(path.c_str(), W_OK) == 0;
  if (!writable) throw std::runtime_error(fmt::format("{} cannot be written: check the permissions", file));
  if (!there) fs::remove(path, error);  // no empty file if nothing comes of the run
}

void require_picture(const std::string& file) {
  std::error_code error;
  if (std::filesystem::exists(file, error) && !std::filesystem::is_directory(file, error) &&
      !std::filesystem::is_regular_file(file, error)) {
    throw std::invalid_argument(fmt::format("--plot {}: not a file", file));
  }
  require_writable(file);
}

std::string results_text(const nlohmann::ordered_json& runs) {
  std::string text = "[";
  for (const auto& run : runs) {
    text += text.size() == 1 ? "\n" : ",\n";
    text += run.dump();
  }
  return text + "\n]";
}

void write_results(const std::string& path, const std::string& text) {
  std::ofstream file(path);
  file << text << '\n';
  file.flush();
  if (!file) throw std::runtime_error("writing " + path + " failed: is the disk full?");
}

}  // namespace thinwire::apps
