// `thinwire`, the program without torch: what of the command line it leaves to `thinwire-torch`.

#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <stdexcept>
#include <string>

#include "apps/commands.h"
#include "apps/engine.h"
#include "apps/program.h"

namespace thinwire::apps {

#if THINWIRE_HAVE_TORCH

namespace {

char** arguments = nullptr;

[[noreturn]] void continue_with_torch() {
  const std::filesystem::path program =
      std::filesystem::read_symlink("/proc/self/exe").parent_path() / "thinwire-torch";
  execv(program.c_str(), arguments);
  throw std::runtime_error(fmt::format(
      "this command needs torch, and so the program {}, which cannot be started: {}; install thinwire again, "
      "or copy both programs into one folder",
      program.string(), std::strerror(errno)));
}

}  // namespace

void prepare_program(int argc, char** argv) {
  arguments = argv;
  if (argc > 1 && std::string(argv[1]) == "train") continue_with_torch();
#if THINWIRE_HAVE_GLOO
  // Asked for before anything is computed or printed.
  use_gloo({.world_size = []() -> int { continue_with_torch(); },
            .world = [](std::chrono::duration<double>) -> Communicator& { continue_with_torch(); }});
#endif
}

void add_train_command(CLI::App& app) {
  app.add_subcommand("train", kTrainSummary);
}

#else

void prepare_program(int, char**) {}

void add_train_command(CLI::App& app) {
  CLI::App* command = app.add_subcommand("train", kTrainSummary);
  command->allow_extras();
  command->callback([] {
    throw std::runtime_error(
        "train: this thinwire was built without libtorch; install Debian's libtorch-dev and build it again");
  });
}

#endif

}  // namespace thinwire::apps
