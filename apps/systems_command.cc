// thinwire systems: what there is, with options and formulas.

#include <fmt/core.h>

#include <nlohmann/json.hpp>

#include "apps/commands.h"
#include "thinwire/registry.h"

namespace thinwire::apps {
namespace {

void print_json() {
  auto list = nlohmann::ordered_json::array();
  for (const auto& info : builtin_registry().systems()) {
    nlohmann::ordered_json entry;
    entry["system"] = info.name;
    entry["summary"] = info.summary;
    entry["paper"] = info.paper;
    entry["stage"] = info.stage;
    entry["lossless"] = info.lossless;
    entry["feedback"] = info.feedback_default;
    entry["formula"] = info.formula;
    entry["options"] = nlohmann::ordered_json::array();
    for (const auto& option : info.options) {
      entry["options"].push_back(
          {{"name", option.name}, {"default", option.default_value}, {"meaning", option.meaning}});
    }
    list.push_back(entry);
  }
  fmt::print("{}\n", list.dump(2));
}

void print_text() {
  fmt::print("W workers, d elements in a bucket, len elements of a rank's segment (about d/W).\n");
  for (const auto& info : builtin_registry().systems()) {
    fmt::print("\n{}{}\n  {}\n", info.name, info.stage ? " (stage: goes in front of a system with '+')" : "",
               info.summary);
    fmt::print("  paper     {}\n", info.paper);
    if (!info.stage) {
      fmt::print("  lossless  {}\n  feedback  {} by default\n", info.lossless ? "yes" : "no",
                 info.feedback_default ? "on" : "off");
    }
    fmt::print("  bytes     {} sent per rank and step\n", info.formula);
    for (const auto& option : info.options) {
      fmt::print("  {:<26}{}\n", option.name + "=" + option.default_value, option.meaning);
    }
  }
}

}  // namespace

void add_systems_command(CLI::App& app) {
  auto* command =
      app.add_subcommand("systems", "List every system and baseline with its options and formula of bytes");
  auto json = std::make_shared<bool>(false);
  command->add_flag("--json", *json, "Print JSON");
  command->callback([json] { *json ? print_json() : print_text(); });
}

}  // namespace thinwire::apps
