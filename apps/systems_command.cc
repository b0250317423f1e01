// thinwire systems: what there is, with options and formulas.

#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "apps/commands.h"
#include "thinwire/registry.h"

namespace thinwire::apps {
namespace {

/// Of these names, in the registry's order; all where there are none. Throws what Registry::find throws.
std::vector<SystemInfo> named(const std::vector<std::string>& names) {
  std::vector<SystemInfo> chosen = builtin_registry().systems();
  if (names.empty()) return chosen;
  for (const std::string& name : names) builtin_registry().find(name);
  std::erase_if(chosen, [&](const SystemInfo& info) { return std::ranges::count(names, info.name) == 0; });
  return chosen;
}

void print_json(const std::vector<SystemInfo>& systems) {
  auto list = nlohmann::ordered_json::array();
  for (const auto& info : systems) {
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

void print_text(const std::vector<SystemInfo>& systems) {
  fmt::print(
      "W workers, d elements in a bucket, len elements of a rank's segment (about d/W).\n"
      "bytes: what a rank sends in a step.\n");
  for (const auto& info : systems) {
    fmt::print("\n{}{}\n  {}\n", info.name, info.stage ? " (stage: goes in front of a system with '+')" : "",
               info.summary);
    fmt::print("  paper     {}\n", info.paper);
    if (!info.stage) {
      fmt::print("  lossless  {}\n  feedback  {} by default\n", info.lossless ? "yes" : "no",
                 info.feedback_default ? "on" : "off");
    }
    fmt::print("  bytes     {}\n", info.formula);
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
  auto names = std::make_shared<std::vector<std::string>>();
  command->add_flag("--json", *json, "Print JSON");
  command->add_option("names", *names, "These alone; all where none is given");
  command->callback([json, names] { *json ? print_json(named(*names)) : print_text(named(*names)); });
}

}  // namespace thinwire::apps
