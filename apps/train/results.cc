#include "apps/train/results.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "apps/train/over_seeds.h"
#include "thinwire/registry.h"

namespace thinwire::train {

namespace {

using Json = nlohmann::ordered_json;

/// JSON has neither NaN nor "unknown".
Json number_or_null(double value) {
  return std::isfinite(value) && value >= 0 ? Json(value) : Json(nullptr);
}

double per_step(double sum, std::uint64_t steps) {
  return steps == 0 ? 0 : sum / static_cast<double>(steps);
}

/// Largest over ranks of a mean over steps.
template <class T>
double busiest(const std::vector<Costs>& costs, T Costs::*member) {
  double most = 0;
  for (const Costs& rank : costs) {
    most = std::max(most, per_step(static_cast<double>(rank.*member), rank.steps));
  }
  return most;
}

double mean_sent(const std::vector<Costs>& costs) {
  double sum = 0;
  for (const Costs& rank : costs) sum += per_step(static_cast<double>(rank.bytes_sent), rank.steps);
  return costs.empty() ? 0 : sum / static_cast<double>(costs.size());
}

double mean_density(const std::vector<Costs>& costs, double Costs::*part) {
  double elements = 0;
  double listed = 0;
  for (const Costs& rank : costs) {
    elements += rank.row_elements;
    listed += rank.*part;
  }
  return elements > 0 ? listed / elements : -1;
}

/// The same on all ranks; -1 where nothing was measured.
double mean_error(const std::vector<Costs>& costs) {
  if (costs.empty() || costs.front().measured == 0) return -1;
  return costs.front().relative_errors / static_cast<double>(costs.front().measured);
}

bool has_rows(const RunResult& result) {
  return std::any_of(result.costs.begin(), result.costs.end(),
                     [](const Costs& rank) { return rank.row_elements > 0; });
}

bool has_perplexity(const RunResult& result) {
  return !result.epochs.empty() && !(result.epochs.back().perplexity < 0);
}

/// Largest over ranks of the bytes sent per step for all but the embeddings.
double busiest_dense(std::vector<Costs> costs) {
  for (Costs& rank : costs) rank.bytes_sent -= rank.bytes_sent_rows;
  return busiest(costs, &Costs::bytes_sent);
}

double total_seconds(const RunResult& result) {
  double seconds = 0;
  for (const auto& epoch : result.epochs) seconds += epoch.seconds;
  return seconds;
}

/// 4765860 as "4,765,860".
std::string grouped(double value) {
  const std::string digits = fmt::format("{:.0f}", value);
  std::string text;
  for (std::size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % 3 == 0) text += ',';
    text += digits[i];
  }
  return text;
}

Json epochs_to_json(const std::vector<EpochResult>& epochs) {
  Json list = Json::array();
  for (const auto& epoch : epochs) {
    list.push_back({{"epoch", epoch.epoch},
                    {"steps", epoch.steps},
                    {"loss", number_or_null(epoch.loss)},
                    {"test_accuracy", epoch.test_accuracy},
                    {"test_loss", number_or_null(epoch.test_loss)},
                    {"perplexity", number_or_null(epoch.perplexity)},
                    {"seconds", epoch.seconds},
                    {"seconds_step_median", number_or_null(epoch.seconds_step_median)},
                    {"wire_bytes", epoch.wire_bytes},
                    {"wire_bytes_rows", epoch.wire_bytes_rows},
                    {"wire_bytes_dense", epoch.wire_bytes_dense},
                    {"wire_bytes_so_far", epoch.wire_bytes_so_far}});
  }
  return list;
}

}  // namespace

Costs& Costs::operator+=(const Costs& other) {
  for_each_member([&](const char*, auto member) { this->*member += other.*member; });
  return *this;
}

std::string system_name(const std::string& spec) {
  const SpecPair pair = parse_spec_pair(spec);
  if (pair.rows != pair.dense) {
    return fmt::format("rows={},dense={}", system_name(pair.rows), system_name(pair.dense));
  }
  std::string name;
  for (const auto& part : parse_spec(pair.dense)) name += (name.empty() ? "" : "+") + part.name;
  return name;
}

std::string perplexity_text(double perplexity) {
  return perplexity < 1e6 ? fmt::format("{:.2f}", perplexity) : fmt::format("{:.1e}", perplexity);
}

std::string measure_of(const RunResult& result) {
  if (result.epochs.empty()) return "-";
  const EpochResult& last = result.epochs.back();
  return has_perplexity(result) ? perplexity_text(last.perplexity)
                                : fmt::format("{:.4f}", last.test_accuracy);
}

std::string title(const std::string& spec, const Options& options) {
  return options.seeds.size() > 1 ? fmt::format("{} seed {}", spec, options.seed) : spec;
}

nlohmann::ordered_json to_json(const RunResult& result, const Options& options) {
  const bool done = result.failure.empty() && !result.epochs.empty();
  return {{"system", result.system},
          {"spec", result.spec},
          {"label", result.label},
          {"engine", options.engine},
          {"workers", options.workers},
          {"data", options.data},
          {"model", options.model},
          {"parameters", result.parameters},
          // One name for one thing wherever results are read: what training does not measure is null.
          {"elements", result.parameters},
          {"row_width", nullptr},
          // Of the embeddings' gradients, where the model has some.
          {"density_in", number_or_null(mean_density(result.costs, &Costs::row_elements_in))},
          {"density_out", number_or_null(mean_density(result.costs, &Costs::row_elements_out))},
          {"modelled_seconds", nullptr},
          {"relative_error", number_or_null(mean_error(result.costs))},
          {"conservation_error", nullptr},
          {"imbalance_push", nullptr},
          {"imbalance_pull", nullptr},
          {"perplexity", done ? number_or_null(result.epochs.back().perplexity) : Json(nullptr)},
          {"test_loss", done ? number_or_null(result.epochs.back().test_loss) : Json(nullptr)},
          {"batch", options.batch},
          {"optimizer", name_of(options.optimizer)},
          {"clip", options.clip},
          {"lr", options.learning_rate},
          {"lr_schedule", name_of(options.schedule)},
          {"lr_drops", options.rate_drops},
          {"momentum", options.momentum},
          {"weight_decay", options.weight_decay},
          {"local_steps", options.local_steps},
          {"outer_rate", options.outer_rate},
          {"seed", result.seed},
          {"steps", result.costs.empty() ? 0 : result.costs.front().steps},
          {"wire_bytes_sent_max", busiest(result.costs, &Costs::bytes_sent)},
          {"wire_bytes_rows", busiest(result.costs, &Costs::bytes_sent_rows)},
          {"wire_bytes_dense", busiest_dense(result.costs)},
          {"wire_bytes_sent_mean", mean_sent(result.costs)},
          {"wire_bytes_received_max", busiest(result.costs, &Costs::bytes_received)},
          {"wire_bytes_formula", busiest(result.costs, &Costs::formula_bytes)},
          {"messages_max", busiest(result.costs, &Costs::messages_sent)},
          {"seconds_median", number_or_null(result.seconds_median)},
          {"seconds_min", number_or_null(result.seconds_min)},
          {"seconds_compress", busiest(result.costs, &Costs::seconds_compress)},
          {"seconds_communicate", busiest(result.costs, &Costs::seconds_communicate)},
          {"seconds_decompress", busiest(result.costs, &Costs::seconds_decompress)},
          {"seconds_total", total_seconds(result)},
          {"skipped_steps", result.skipped_steps},
          {"residual_norm", number_or_null(result.residual_norm)},
          {"residual_deviation", number_or_null(result.residual_deviation)},
          {"ranks_agree", result.ranks_agree},
          {"model_hash", fmt::format("{:016x}", result.model_hash)},
          {"explanation", result.explanation.empty() ? Json(nullptr) : Json(result.explanation)},
          {"failure", result.failure.empty() ? Json(nullptr) : Json(result.failure)},
          {"epochs", epochs_to_json(result.epochs)},
          {"test_accuracy", done ? Json(result.epochs.back().test_accuracy) : Json(nullptr)}};
}

std::string table(const std::vector<RunResult>& results) {
  if (results.empty()) return "";
  const std::vector<OverSeeds> systems = over_seeds(results);
  const auto dense = std::find_if(systems.begin(), systems.end(),
                                  [](const OverSeeds& one) { return one.runs[0]->system == "dense"; });
  const auto mean_of = [](const OverSeeds& one, auto value) {
    std::vector<double> values;
    for (const RunResult* run : one.runs) values.push_back(value(*run));
    return spread_of(values).mean;
  };
  const auto sent = [](const RunResult& run) { return busiest(run.costs, &Costs::bytes_sent); };
  const double base_bytes = mean_of(dense != systems.end() ? *dense : systems.front(), sent);
  const bool rows = std::any_of(results.begin(), results.end(), has_rows);
  const bool perplexity = std::any_of(results.begin(), results.end(), has_perplexity);
  std::size_t width = 6;
  std::vector<std::string> measured;
  std::size_t widest = 13;
  for (const auto& system : systems) {
    width = std::max(width, system.runs[0]->label.size());
    measured.push_back(measure_of(system));
    widest = std::max(widest, measured.back().size());
  }
  // Of a system alone, a share of itself says nothing.
  const bool shares = systems.size() > 1;
  const auto line = [&](const std::string& label, const std::string& measure, const std::string& bytes,
                        const std::string& ratio, const std::string& row_bytes, const std::string& step,
                        const std::string& seconds) {
    return fmt::format("{:<{}}  {:>{}}  {:>21}  {}{}{:>7}  {:>7}\n", label, width, measure, widest, bytes,
                       shares ? fmt::format("{:>8}  ", ratio) : "",
                       rows ? fmt::format("{:>13}  ", row_bytes) : "", step, seconds);
  };
  std::string text =
      line("system", perplexity ? "perplexity" : "test accuracy", "bytes/worker and step",
           dense != systems.end() ? "of dense" : "of first", "of embeddings", "step ms", "seconds");
  for (std::size_t i = 0; i < systems.size(); ++i) {
    const double bytes = mean_of(systems[i], sent);
    const double row_bytes =
        mean_of(systems[i], [](const RunResult& run) { return busiest(run.costs, &Costs::bytes_sent_rows); });
    const double step = mean_of(systems[i], [](const RunResult& run) { return run.seconds_median; });
    const double seconds = mean_of(systems[i], [](const RunResult& run) { return total_seconds(run); });
    text += line(systems[i].runs[0]->label, measured[i], grouped(bytes),
                 base_bytes > 0 ? fmt::format("{:.2f} %", 100 * bytes / base_bytes) : "-", grouped(row_bytes),
                 step >= 0 ? fmt::format("{:.1f}", 1e3 * step) : "-", fmt::format("{:.1f}", seconds));
  }
  return text;
}

}  // namespace thinwire::train
