// thinwire and thinwire-torch: the command line.
// Exit status: 0 done, 1 failed, 2 wrong usage; one line on stderr says what and what to do.

#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <exception>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>

#include "apps/commands.h"
#include "apps/program.h"
#include "thinwire/version.h"

namespace {

void complain(std::string message) {
  for (char& c : message) {
    if (c == '\n') c = ' ';
  }
  std::fflush(stdout);
  std::fprintf(stderr, "thinwire: %s\n", message.c_str());
  std::fflush(stderr);
}

std::string joined(const std::vector<std::string>& words, const char* between) {
  std::string text;
  for (const auto& word : words) text += (text.empty() ? "" : between) + word;
  return text;
}

/// Names what was given, which CLI11 does backwards or not at all.
std::string unexpected(const CLI::App& app) {
  const std::vector<std::string> words = app.remaining(true);
  if (!app.get_subcommands().empty()) return "not expected: " + joined(words, " ");
  std::vector<std::string> commands;
  for (const auto* command : app.get_subcommands({})) commands.push_back(command->get_name());
  std::string problem = "no command";
  if (!words.empty()) {
    problem = words[0].starts_with('-') ? "not expected before a command: " + joined(words, " ")
                                        : "no such command: " + words[0];
  }
  return problem + "; commands are " + joined(commands, ", ");
}

}  // namespace

int main(int argc, char** argv) {
  std::signal(SIGXFSZ, SIG_IGN);  // a file that must not grow is an error that is reported, as a full disk
  CLI::App app{"Synchronizes gradients over thin wires: trains, measures, simulates and compares."};
  app.name("thinwire");
  app.set_version_flag("--version", thinwire::kVersion);
  app.require_subcommand(1);
  thinwire::apps::add_train_command(app);
  thinwire::apps::add_bench_command(app);
  thinwire::apps::add_simulate_command(app);
  thinwire::apps::add_plan_command(app);
  thinwire::apps::add_systems_command(app);
  thinwire::apps::add_launch_command(app);
  int status = 0;
  try {
    thinwire::apps::prepare_program(argc, argv);
    app.parse(argc, argv);
  } catch (const CLI::Success& success) {  // --help, --version
    status = app.exit(success);
  } catch (const CLI::RuntimeError& error) {  // a command's own exit status
    status = error.get_exit_code();
  } catch (const CLI::ParseError& error) {
    const bool stray = dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr;
    const std::string command =
        app.get_subcommands().empty() ? "" : " " + app.get_subcommands()[0]->get_name();
    complain((stray || command.empty() ? unexpected(app) : error.what()) + "; see thinwire" + command +
             " --help");
    status = 2;
  } catch (const std::invalid_argument& error) {
    complain(error.what());
    status = 2;
  } catch (const std::bad_alloc&) {
    complain("out of memory: use fewer elements, workers or a smaller batch");
    status = 1;
  } catch (const std::exception& error) {
    complain(error.what());
    status = 1;
  }
  std::fflush(stdout);
  // An engine whose peers are gone or differ may wait for them in its destructors: after a failure nothing
  // more is torn down.
  if (status != 0) _exit(status);
  return 0;
}
