#pragma once
// One function per subcommand: it declares the options and what the command does. A command throws
// std::invalid_argument for wrong usage (exit status 2) and any other exception for a failure (exit status
// 1). main prints what() as one line.

#include <CLI/CLI.hpp>

namespace thinwire::apps {

/// For options that count something: a message that a person can read.
inline CLI::Validator not_negative() {
  return {[](std::string& value) {
            return value.starts_with('-') ? value + " must not be negative" : std::string();
          },
          "", "not negative"};
}

/// For a share of something, in words that have the value as it was given. What is no number is told before.
inline CLI::Validator share() {
  return {[](std::string& value) {
            double number = 0;
            const bool fits = CLI::detail::lexical_cast(value, number) && number > 0 && number <= 1;
            return fits ? std::string() : value + " must be above 0 and at most 1";
          },
          "", "share"};
}

/// More ranks than anything here was made for: above, a typing error is likelier.
constexpr int kMostWorkers = 1 << 20;

void add_systems_command(CLI::App& app);
void add_bench_command(CLI::App& app);
constexpr const char* kTrainSummary =
    "Train a model on several workers and measure what synchronization costs";
/// Of two programs, see apps/program.h.
void add_train_command(CLI::App& app);
void add_simulate_command(CLI::App& app);
void add_plan_command(CLI::App& app);
void add_launch_command(CLI::App& app);

}  // namespace thinwire::apps
