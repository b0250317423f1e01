// thinwire and thinwire-torch: the command line.
// Exit status: 0 done, 1 failed, 2 wrong usage; one line on stderr says what and what to do.

#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <exception>
#include <new>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "apps/commands.h"
#include "apps/program.h"
#include "apps/wrong_number.h"
#include "core/closest.h"
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

std::vector<std::string> words_of(const std::string& option) {
  std::vector<std::string> words;
  std::istringstream stream(option);
  for (std::string word; std::getline(stream, word, '-');) words.push_back(word);
  return words;
}

/// What was meant by a word that no option of the command is; empty where it is none, or resembles none. An
/// option may also be meant by one of its words.
std::string option_meant(const CLI::App& command, const std::string& given) {
  if (!given.starts_with("--")) return "";
  const std::string name = given.substr(2, given.find('=') - 2);
  std::vector<std::string> names;
  std::vector<std::string> words;
  for (const CLI::Option* option : command.get_options()) {
    for (const std::string& known : option->get_lnames()) {
      names.push_back(known);
      for (const std::string& word : words_of(known)) words.push_back(word);
    }
  }
  std::vector<std::string> meant;
  if (const std::string known = thinwire::closest_to(name, names); !known.empty()) {
    meant = {"--" + known};
  } else if (const std::string word = thinwire::closest_to(name, words); !word.empty()) {
    for (const std::string& one : names) {
      if (std::ranges::count(words_of(one), word) != 0) meant.push_back("--" + one);
    }
  }
  return meant.empty() ? "" : " (did you mean " + joined(meant, " or ") + "?)";
}

/// Names what was given, which CLI11 does backwards or not at all.
std::string unexpected(const CLI::App& app) {
  const std::vector<std::string> words = app.remaining(true);
  if (!app.get_subcommands().empty()) {
    std::string problem = "not expected: " + joined(words, " ");
    for (const std::string& word : words) problem += option_meant(*app.get_subcommands()[0], word);
    return problem;
  }
  std::vector<std::string> commands;
  for (const auto* command : app.get_subcommands({})) commands.push_back(command->get_name());
  std::string problem = "no command";
  if (!words.empty()) {
    problem = words[0].starts_with('-')
                  ? "not expected before a command: " + joined(words, " ")
                  : "no such command: " + words[0] + thinwire::did_you_mean(words[0], commands);
  }
  return problem + "; commands are " + joined(commands, ", ");
}

/// One line about the command line.
std::string usage_problem(const CLI::App& app, const CLI::ParseError& error) {
  const bool stray = dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr;
  if (app.get_subcommands().empty()) return unexpected(app) + "; see thinwire --help";
  const CLI::App& command = *app.get_subcommands()[0];
  std::string problem = stray ? unexpected(app) : thinwire::apps::wrong_number(command, error);
  if (problem.empty()) problem = error.what();
  return problem + "; see thinwire " + command.get_name() + " --help";
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
    complain(usage_problem(app, error));
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
