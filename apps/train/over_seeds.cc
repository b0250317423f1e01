#include "apps/train/over_seeds.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace thinwire::train {

namespace {

using Json = nlohmann::ordered_json;

/// Of the runs that did not fail: what `member` is after the last epoch, where it is known.
Spread at_the_end(const OverSeeds& system, double EpochResult::*member) {
  std::vector<double> values;
  for (const RunResult* run : system.runs) {
    if (!run->failure.empty() || run->epochs.empty()) continue;
    const double value = run->epochs.back().*member;
    if (std::isfinite(value) && value >= 0) values.push_back(value);
  }
  return spread_of(values);
}

std::size_t failures(const OverSeeds& system) {
  return static_cast<std::size_t>(std::count_if(system.runs.begin(), system.runs.end(),
                                                [](const RunResult* run) { return !run->failure.empty(); }));
}

}  // namespace

Spread spread_of(const std::vector<double>& values) {
  Spread spread{.count = values.size()};
  if (values.empty()) return spread;
  const auto count = static_cast<double>(values.size());
  double sum = 0;
  for (const double value : values) sum += value;
  spread.mean = sum / count;
  if (values.size() < 2) return spread;
  double squares = 0;
  for (const double value : values) squares += (value - spread.mean) * (value - spread.mean);
  spread.deviation = std::sqrt(squares / (count - 1));
  return spread;
}

std::vector<OverSeeds> over_seeds(const std::vector<RunResult>& results) {
  std::vector<OverSeeds> systems;
  for (const RunResult& result : results) {
    const auto same = std::find_if(systems.begin(), systems.end(), [&](const OverSeeds& system) {
      return system.runs[0]->label == result.label;
    });
    (same != systems.end() ? *same : systems.emplace_back()).runs.push_back(&result);
  }
  return systems;
}

std::string measure_of(const OverSeeds& system) {
  const std::size_t failed = failures(system);
  if (system.runs.size() == 1) return failed == 0 ? measure_of(*system.runs[0]) : "diverged";
  if (failed == system.runs.size()) return "diverged";
  if (failed > 0) return fmt::format("diverged ({} of {})", failed, system.runs.size());
  if (const Spread perplexity = at_the_end(system, &EpochResult::perplexity); perplexity.count > 0) {
    return fmt::format("{} +- {:.2f}", perplexity_text(perplexity.mean), std::max(0.0, perplexity.deviation));
  }
  const Spread accuracy = at_the_end(system, &EpochResult::test_accuracy);
  if (accuracy.count == 0) return "-";
  return fmt::format("{:.4f} +- {:.4f}", accuracy.mean, std::max(0.0, accuracy.deviation));
}

Json to_json(const OverSeeds& system) {
  Json seeds = Json::array();
  for (const RunResult* run : system.runs) seeds.push_back(run->seed);
  Json json{{"seeds", seeds}, {"finished", system.runs.size() - failures(system)}};
  const auto put = [&](const std::string& name, const Spread& spread) {
    json[name + "_mean"] = spread.count > 0 ? Json(spread.mean) : Json(nullptr);
    json[name + "_deviation"] = spread.count > 1 ? Json(spread.deviation) : Json(nullptr);
  };
  put("test_accuracy", at_the_end(system, &EpochResult::test_accuracy));
  put("perplexity", at_the_end(system, &EpochResult::perplexity));
  return json;
}

}  // namespace thinwire::train
