// thinwire simulate: how long a step's communication would take with many workers on a given link.

#include <fmt/core.h>
#include <unistd.h>
#if __has_include(<malloc.h>)
#include <malloc.h>
#endif

#include <cstdio>
#include <filesystem>

#include "apps/commands.h"
#include "apps/output.h"
#include "apps/plot_script.h"
#include "apps/sweep.h"

namespace thinwire::apps {
namespace {

using Json = nlohmann::ordered_json;

struct SimulateOptions {
  SweepOptions sweep;
  std::string json;
  std::string plot;
};

void print_head() {
  fmt::print("{:>7} {:>8} {:>6}  {:<28} {:>12} {:>10} {:>10} {:>9} {:>6} {:>6} {:>9}\n", "workers", "density",
             "gamma", "system", "bytes sent", "ms", "formula", "of dense", "push", "pull", "rel.err");
}

void print_row(const Json& r) {
  const auto number = [&](const char* key, const char* format) {
    return r[key].is_null() ? std::string("-") : fmt::format(fmt::runtime(format), r[key].get<double>());
  };
  std::string spec = r["spec"];
  if (spec.size() > 28) spec = spec.substr(0, 25) + "...";
  fmt::print("{:>7} {:>8.4g} {:>6.4g}  {:<28} {:>12.0f} {:>10.4f} {:>10.4f} {:>9} {:>6} {:>6} {:>9}\n",
             r["workers"].get<int>(), r["density_in"].get<double>(), r["gamma"].get<double>(), spec,
             r["wire_bytes_sent_max"].get<double>(), r["modelled_seconds"].get<double>() * 1e3,
             r["formula_seconds"].get<double>() * 1e3, number("time_vs_dense", "{:.4f}"),
             number("imbalance_push", "{:.3f}"), number("imbalance_pull", "{:.3f}"),
             number("relative_error", "{:.2g}"));
  std::fflush(stdout);  // a sweep may take minutes
}

void draw(const SimulateOptions& options, const std::string& results) {
  if (!options.json.empty() && options.json != "-") {
    return run_plot_script("plot_simulation.py", options.json, options.plot);
  }
  // Whether or not there is a picture, the numbers were printed.
  struct Temporary {
    std::string path =
        (std::filesystem::temp_directory_path() / fmt::format("thinwire-simulation-{}.json", getpid()))
            .string();
    ~Temporary() {
      std::error_code error;
      std::filesystem::remove(path, error);
    }
  } const json;
  write_results(json.path, results);
  run_plot_script("plot_simulation.py", json.path, options.plot);
}

/// Lists separated by commas into single files; a name that is there as it stands is taken as it stands.
std::vector<std::string> split_files(const std::vector<std::string>& names) {
  std::vector<std::string> files;
  for (const auto& name : names) {
    std::error_code error;
    if (std::filesystem::exists(name, error)) {
      files.push_back(name);
      continue;
    }
    for (const auto& file : CLI::detail::split(name, ',')) {
      if (!file.empty()) files.push_back(file);
    }
  }
  return files;
}

void run_simulate(SimulateOptions options) {
  options.sweep.gradient_files = split_files(options.sweep.gradient_files);
#ifdef M_MMAP_THRESHOLD
  // Hundreds of ranks in one process: what one of them frees goes back to the system at once.
  mallopt(M_MMAP_THRESHOLD, 256 * 1024);
#endif
  require_writable(options.json);
  require_picture(options.plot);
  const bool quiet = options.json == "-";
  bool first = true;
  const Json results = run_sweep(options.sweep, [&](const Json& result) {
    if (quiet) return;
    if (std::exchange(first, false)) print_head();
    print_row(result);
  });
  const std::string text = results_text(results);
  if (quiet) fmt::print("{}\n", text);
  if (!quiet && !options.json.empty()) write_results(options.json, text);
  if (!options.plot.empty()) draw(options, text);
  for (const auto& result : results) {
    if (!result["ranks_agree"])
      throw std::runtime_error(result["spec"].get<std::string>() + ": ranks disagree on the mean");
  }
}

/// Options of a gradient that is drawn and not `recorded`.
void add_synthetic(CLI::App& command, SweepOptions& sweep, CLI::Option* recorded) {
  const auto synthetic = [&](CLI::Option* option) { return option->excludes(recorded); };
  synthetic(command.add_option("--workers", sweep.workers, "Numbers of workers, separated by commas"))
      ->delimiter(',')
      ->check(CLI::Range(1, kMostWorkers));
  synthetic(command.add_option("--elements", sweep.gradient.elements, "Elements of the bucket"))
      ->default_val(std::uint64_t{1'000'000})
      ->check(CLI::Range(std::uint64_t{1}, std::uint64_t{0xFFFFFFFF}));
  synthetic(command.add_option("--density", sweep.densities,
                               "Shares of rows that are not zero, separated by commas"))
      ->delimiter(',')
      ->check(share());
  auto* zipf =
      synthetic(command.add_option("--zipf", sweep.gradient.zipf, "Skew of the rows' popularity; 0: even"));
  synthetic(command.add_option("--gamma", sweep.gammas,
                               "Instead of a skew: rows in the union of all workers over rows of one, "
                               "separated by commas"))
      ->delimiter(',')
      ->excludes(zipf)
      ->default_str("");
  synthetic(command.add_option("--row-width", sweep.gradient.row_width,
                               "Elements of a row; above 1 the bucket is row-sparse"));
  synthetic(command.add_flag("--contiguous", sweep.gradient.contiguous,
                             "Popular rows lie side by side instead of scattered"));
}

}  // namespace

void add_simulate_command(CLI::App& app) {
  auto options = std::make_shared<SimulateOptions>();
  SweepOptions& sweep = options->sweep;
  auto* command = app.add_subcommand(
      "simulate", "Compute how long systems take with many workers on a given link, beside dense");
  command->option_defaults()->always_capture_default();
  command->add_option("--sync", sweep.sync, "Systems, separated by commas; dense is added if absent");
  command->add_option("--link", sweep.link,
                      "Each worker's link, RATE:LATENCY; with --ranks-per-host a host's");
  command
      ->add_option("--ranks-per-host", sweep.ranks_per_host,
                   "So many workers are ranks of one host and share its link. They add up first, then each "
                   "synchronizes a part of the mean with other hosts")
      ->check(CLI::Range(1, kMostWorkers));
  command
      ->add_option("--inside", sweep.inside,
                   "With --ranks-per-host: each rank's link to others of its host, RATE:LATENCY")
      ->default_str("");
  command->add_option(
      "--codec", sweep.codec,
      "Computing: off, measured (this machine's CPU time), or elements of the bucket per second, "
      "as 300M, for all systems but dense; one per system: off:300M:1G");
  command->add_option("--scale", sweep.scale,
                      "Every byte and element counts so often: 1000000 elements stand for a larger bucket");
  command->add_option("--steps", sweep.steps, "Measured steps; their median counts")
      ->check(CLI::Range(1, 1'000'000));
  command->add_option("--warm-up", sweep.warm_up, "Steps before those: enough for systems that measure first")
      ->check(CLI::Range(0, 1'000'000));
  command->add_flag("--errors", sweep.errors,
                    "Also compare each measured step's mean with the exact one: its relative error and the "
                    "share of signs that agree (relative_errors, sign_agreements in the JSON)");
  command->add_option("--seed", sweep.gradient.seed, "Seed of gradients and systems")->check(not_negative());

  auto* recorded = command
                       ->add_option("--gradients", sweep.gradient_files,
                                    "Replay what `train --record` wrote: one file per worker, separated by "
                                    "spaces or commas")
                       ->default_str("");
  command
      ->add_option("--bucket-mb", sweep.bucket_megabytes,
                   "Most MB of recorded dense tensors that are synchronized together; 0: each alone")
      ->check(CLI::Range(0.0, 17'000.0));
  add_synthetic(*command, sweep, recorded);
  command->add_option("--json", options->json, "Write results to this file; - for standard output");
  command->add_option("--plot", options->plot, "PNG for time against workers, density or gamma");
  command->callback([options] { run_simulate(*options); });
}

}  // namespace thinwire::apps
