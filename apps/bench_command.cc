// thinwire bench: times each system on one bucket of synthetic gradient, and
// shows bytes beside their formula.

#include <fmt/core.h>

#include <algorithm>

#include "apps/bench_run.h"
#include "apps/commands.h"
#include "apps/engine.h"
#include "apps/gradients/synthetic.h"
#include "apps/output.h"
#include "apps/simulation.h"
#include "core/srun.h"
#include "planner/link_text.h"
#include "thinwire/registry.h"

namespace thinwire::apps {
namespace {

using Json = nlohmann::ordered_json;

struct BenchOptions {
  std::string sync = "dense,marsit";
  SyntheticGradient gradient{.elements = 1'000'000};
  EngineOptions engine;
  bool workers_given = false;
  int warm_up = kWarmUpSteps;
  int steps = 10;
  int threads = 1;
  std::string link;
  std::string json;
};

std::string milliseconds(const Json& seconds) {
  return seconds.is_null() ? "-" : fmt::format("{:.3f}", seconds.get<double>() * 1e3);
}

void print_table(const Json& results) {
  fmt::print("{:<28} {:>12} {:>12} {:>9} {:>9} {:>9} {:>9} {:>9} {:>6}\n", "system", "bytes sent", "formula",
             "median ms", "compress", "wait", "apply", "rel.err", "agree");
  for (const auto& r : results) {
    std::string spec = r["spec"];
    if (spec.size() > 28) spec = spec.substr(0, 25) + "...";
    fmt::print("{:<28} {:>12.0f} {:>12.0f} {:>9} {:>9} {:>9} {:>9} {:>9.3g} {:>6}\n", spec,
               r["wire_bytes_sent_max"].get<double>(), r["wire_bytes_formula"].get<double>(),
               milliseconds(r["seconds_median"]), milliseconds(r["seconds_compress"]),
               milliseconds(r["seconds_wait"]), milliseconds(r["seconds_decompress"]),
               r["relative_error"].get<double>(), r["ranks_agree"].get<bool>() ? "yes" : "NO");
  }
}

void show(const BenchOptions& options, const Json& results) {
  if (options.json == "-") {
    fmt::print("{}\n", results_text(results));
  } else {
    print_table(results);
    if (!options.json.empty()) write_results(options.json, results_text(results));
  }
  for (const auto& result : results) {
    if (!result["ranks_agree"])
      throw std::runtime_error(result["spec"].get<std::string>() + ": ranks disagree on the mean");
  }
}

/// The slowest rank's messages and bytes, one after the other.
double modelled_seconds(const Measurement& measured, const VirtualLink& link) {
  double messages = 0;
  double bytes = 0;
  for (const auto& rank : measured.ranks) {
    messages = std::max(messages, rank.messages);
    bytes = std::max({bytes, rank.wire_bytes_sent, rank.wire_bytes_received});
  }
  return messages * link.latency_seconds + bytes / link.bytes_per_second;
}

void bench_on_virtual(const BenchOptions& options, const std::vector<std::string>& specs) {
  const SyntheticSource source(options.gradient, options.engine.workers);
  auto results = Json::array();
  for (const auto& spec : specs) {
    results.push_back(to_json(simulate(spec, source,
                                       {.workers = options.engine.workers,
                                        .link = options.engine.link,
                                        .warm_up = options.warm_up,
                                        .steps = options.steps,
                                        .seed = options.gradient.seed})));
  }
  show(options, results);
}

void bench_on_engine(const BenchOptions& options, const std::vector<std::string>& specs) {
  const auto& gradient = options.gradient;
  const BenchRunOptions run{
      .warm_up = options.warm_up,
      .steps = options.steps,
      .threads = options.threads,
      .seed = gradient.seed,
      .configuration = fmt::format("bench elements={} density={} zipf={} gamma={} contiguous={} row_width={} "
                                   "tails={} warm_up={} steps={}",
                                   gradient.elements, gradient.density, gradient.zipf,
                                   gradient.gamma.value_or(0), gradient.contiguous, gradient.row_width,
                                   gradient.tails, options.warm_up, options.steps)};
  const SyntheticSource source(gradient, options.engine.workers);
  run_on_engine(options.engine, [&](Communicator& communicator) {
    auto results = Json::array();
    for (const auto& spec : specs) {
      Measurement one = bench_run(spec, source, communicator, run);
      if (!options.link.empty()) one.modelled_seconds = modelled_seconds(one, options.engine.link);
      if (communicator.rank() == 0) results.push_back(to_json(one));
    }
    if (communicator.rank() == 0) show(options, results);
  });
}

/// Of `thinwire launch`, torchrun and srun: each process of theirs would be a job of its own.
void warn_of_lonely_processes(const BenchOptions& options) {
  if (options.engine.engine != "threads") return;
  // Ranks as threads need none of these variables, so what is missing or wrong among them is no error here.
  const auto value = [](const char* name, const char* of_srun) {
    return process_variable(name).value_or(process_variable(of_srun).value_or(""));
  };
  const std::string world = value("WORLD_SIZE", "SLURM_STEP_NUM_TASKS");
  if (value("RANK", "SLURM_PROCID") != "0" || world.empty() || world == "1") return;
  fmt::print(stderr,
             "thinwire: {} processes were started, and each runs {} ranks as threads of its own: --engine "
             "gloo makes them one job\n",
             world, options.engine.workers);
}

void run_bench(BenchOptions options) {
  const auto specs = split_specs(options.sync);
  for (const auto& spec : specs) builtin_registry().canonical(spec);  // refuses any before the first runs
  if (!options.link.empty()) options.engine.link = parse_link(options.link);
  require_writable(options.json);
  warn_of_lonely_processes(options);
  if (!options.workers_given) options.engine.workers = started_ranks(options.engine);
  options.engine.engine == "virtual" ? bench_on_virtual(options, specs) : bench_on_engine(options, specs);
}

}  // namespace

void add_bench_command(CLI::App& app) {
  auto options = std::make_shared<BenchOptions>();
  auto* command = app.add_subcommand("bench", "Time systems on one bucket of synthetic gradient");
  command->option_defaults()->always_capture_default();
  command->add_option("--sync", options->sync, "Systems to run, separated by commas");
  command->add_option("--elements", options->gradient.elements, "Elements of the bucket")
      ->check(CLI::Range(std::uint64_t{1}, std::uint64_t{0xFFFFFFFF}));
  command->add_option("--density", options->gradient.density, "Share of rows that are not zero")
      ->check(share());
  auto* zipf = command->add_option("--zipf", options->gradient.zipf, "Skew of the rows' popularity; 0: even");
  command
      ->add_option("--gamma", options->gradient.gamma,
                   "Instead of a skew: rows in the union of all workers over rows of one")
      ->excludes(zipf);
  command->add_option("--row-width", options->gradient.row_width,
                      "Elements of a row; above 1 the bucket is row-sparse");
  command->add_flag("--contiguous", options->gradient.contiguous,
                    "Popular rows lie side by side instead of scattered");
  command->add_option("--tails", options->gradient.tails,
                      "Every value is normal times exp(tails * another normal number); 0: normal");
  auto* workers = command
                      ->add_option("--workers", options->engine.workers,
                                   "Number of ranks; those of mpi and gloo are as many as were started")
                      ->check(CLI::Range(1, kMostWorkers));
  command->add_option("--engine", options->engine.engine,
                      "threads, virtual (the clock is the link's), mpi or gloo");
  command->add_option("--deadline", options->engine.deadline_seconds,
                      "Seconds that a blocking call waits while nothing moves");
  command->add_flag("--checked-sums", options->engine.checked_sums,
                    "Over gloo: sums that it makes by itself go by a ring whose messages carry checksums");
  command->add_option("--step-limit", options->engine.step_limit_seconds,
                      "Seconds that gloo waits in one step altogether, also while bytes move; 0: an hour, or "
                      "twice the deadline");
  command->add_option("--steps", options->steps, "Measured steps")->check(CLI::Range(1, 1'000'000));
  command
      ->add_option("--warm-up", options->warm_up, "Steps before those: enough for systems that measure first")
      ->check(CLI::Range(0, 1'000'000));
  command->add_option("--threads", options->threads, "CPU threads per rank")->check(CLI::Range(1, 1024));
  command->add_option("--seed", options->gradient.seed, "Seed of gradients and systems")
      ->check(not_negative());
  command->add_option("--link", options->link,
                      "The virtual engine's links, 25Gbit:20us if not given; else also model this link, as "
                      "messages * latency + bytes / rate");
  command->add_option("--json", options->json, "Write results to this file; - for standard output");
  command->callback([options, workers] {
    options->workers_given = workers->count() != 0;
    run_bench(*options);
  });
}

}  // namespace thinwire::apps
