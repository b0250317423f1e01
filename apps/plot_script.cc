#include "apps/plot_script.h"

#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <stdexcept>
#include <vector>

#ifndef THINWIRE_SHARE_DIR
#define THINWIRE_SHARE_DIR ""
#endif

namespace thinwire::apps {

namespace {

// Debian's own interpreter: python3-matplotlib belongs to it, another python3 on the PATH may not see it.
constexpr const char* kPython = "/usr/bin/python3";
constexpr int kNoMatplotlib = 3;  // a script's exit status when it cannot import it

std::string find_script(const std::string& script) {
  namespace fs = std::filesystem;
  std::vector<fs::path> folders;
  if (*THINWIRE_SHARE_DIR != '\0') folders.emplace_back(THINWIRE_SHARE_DIR);
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  if (!error) folders.push_back(program.parent_path().parent_path() / "share" / "thinwire");
  for (const auto& folder : folders) {
    if (fs::is_regular_file(folder / script, error)) return (folder / script).string();
  }
  throw std::runtime_error(
      fmt::format("{} was not found beside this program: install thinwire again", script));
}

}  // namespace

void run_plot_script(const std::string& script, const std::string& json, const std::string& png) {
  std::vector<std::string> words = {kPython, find_script(script), json, png};
  std::vector<char*> arguments;
  for (auto& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  pid_t child = 0;
  const int error = posix_spawn(&child, kPython, nullptr, nullptr, arguments.data(), environ);
  if (error != 0) {
    throw std::runtime_error(fmt::format("{} does not start ({}): install python3 and python3-matplotlib",
                                         kPython, std::strerror(error)));
  }
  int status = 0;
  while (waitpid(child, &status, 0) < 0) {
    if (errno != EINTR)
      throw std::runtime_error(fmt::format("waiting for {}: {}", script, std::strerror(errno)));
  }
  if (WIFEXITED(status) && WEXITSTATUS(status) == kNoMatplotlib) {
    throw std::runtime_error("matplotlib is missing: install Debian's python3-matplotlib");
  }
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
    throw std::runtime_error(fmt::format("{} could not make {}", script, png));
  }
}

}  // namespace thinwire::apps
