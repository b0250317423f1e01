// thinwire plan: what a step of training would cost with each candidate, and which one to take.

#include <fmt/core.h>

#include <algorithm>
#include <stdexcept>
#include <thread>

#include "apps/codec.h"
#include "apps/commands.h"
#include "apps/output.h"
#include "apps/plan_layout.h"
#include "planner/link_text.h"
#include "session/plan/plan.h"

namespace thinwire::apps {
namespace {

struct PlanOptions {
  PlanLayoutOptions layout;
  std::vector<int> workers = {4};
  std::string link;
  std::string sync;
  std::string codec = "measured";
  std::string json;
  double model_step = 0;
  double training_threads = 1;
  double cores = std::max(1u, std::thread::hardware_concurrency());
  double density = 1;
  double within = 0.02;
  int ranks_per_host = 1;
  std::size_t lanes = 2;
  bool lossless = false;
  bool simulate = false;
  bool reduce_in_host = false;
};

PlanRequest request_of(const PlanOptions& options, const PlanLayout& layout) {
  PlanRequest request{
      .buckets = layout.buckets,
      .compute = even_compute(layout.buckets, options.model_step, options.training_threads),
      .specs = options.sync.empty() ? candidates_of_auto(options.lossless) : split_specs(options.sync),
      .ranks_per_host = options.ranks_per_host,
      .reduce_in_host = options.reduce_in_host,
      .cores = options.cores,
      .lanes = options.lanes,
      .density = options.density,
      .within = options.within};
  const auto codecs = parse_codec(options.codec, request.specs.size());
  for (std::size_t i = 0; i < request.specs.size(); ++i) {
    const CodecModel& codec = codecs[codecs.size() == 1 ? 0 : i];
    request.codecs.push_back({.measured = codec.measured, .elements_per_second = codec.elements_per_second});
  }
  request.sockets = codecs[0].measured;
  if (options.simulate && options.reduce_in_host)
    throw std::invalid_argument("--simulate knows no hosts: leave out --reduce-in-host");
  if (options.simulate) {  // the virtual network has one lane and no turns, and its cores do nothing else
    request.lanes = 1;
    request.cores = 1e6;
    request.ranks_per_host = 1;
    request.sockets = false;
    request.turns = false;
  }
  return request;
}

void run_plan(const PlanOptions& options) {
  const VirtualLink link = parse_link(options.link);
  const PlanLayout layout = plan_layout(options.layout);
  require_writable(options.json);
  const bool quiet = options.json == "-";
  if (!quiet && !layout.assumed.empty()) fmt::print("{}\n", layout.assumed);
  if (!quiet && options.model_step == 0)
    fmt::print(
        "assumed: nothing is computed beside; give a step's time without synchronization by --model-step\n");
  StepPlanner planner(request_of(options, layout));
  std::string results;
  for (const int workers : options.workers) {
    Plan plan = planner.plan(workers, link);
    if (options.simulate) {
      for (std::size_t i = 0; i < plan.rows.size(); ++i)
        plan.rows[i].simulated_seconds = planner.simulate(i, workers, link);
    }
    const PlansElsewhere elsewhere = planner.plan_elsewhere(workers, link);
    results += (results.empty() ? "" : ",\n") + plan_json(planner.request(), plan, elsewhere);
    if (!quiet) fmt::print("\n{}", plan_table(planner.request(), plan, elsewhere));
    std::fflush(stdout);
  }
  results = "[\n" + results + "\n]";
  if (quiet) fmt::print("{}\n", results);
  if (!quiet && !options.json.empty()) write_results(options.json, results);
}

void add_model_options(CLI::App& command, PlanOptions& options) {
  PlanLayoutOptions& layout = options.layout;
  command.add_option("--elements", layout.elements, "Parameters of the model")->default_str("");
  command
      .add_option("--shapes", layout.shapes,
                  "Instead: shapes of its parameters in the model's order, separated by commas: "
                  "512x2048*24,512*48")
      ->delimiter(',')
      ->default_str("");
  command
      .add_option("--buckets", layout.buckets,
                  "Instead: elements of each bucket in the order in which backward makes them ready")
      ->delimiter(',')
      ->default_str("");
  command.add_option("--width", layout.width,
                     "Of the square matrices that are assumed where no shapes are given");
  command.add_option("--bucket-mb", layout.bucket_megabytes,
                     "DDP's bucket_cap_mb: the size of buckets but the first, which has 1 MB");
  command.add_option("--model-step", options.model_step,
                     "Seconds of a training step without synchronization");
  command.add_option("--training-threads", options.training_threads,
                     "Threads of a rank that compute this step; 0: a device does");
  command.add_option("--density", options.density, "Share of the gradient that is not zero")->check(share());
}

}  // namespace

void add_plan_command(CLI::App& app) {
  auto options = std::make_shared<PlanOptions>();
  auto* command = app.add_subcommand(
      "plan", "Predict what a training step costs with each candidate, and say which one to take");
  command->option_defaults()->always_capture_default();
  add_model_options(*command, *options);
  command->add_option("--workers", options->workers, "Numbers of workers, separated by commas")
      ->delimiter(',')
      ->check(CLI::Range(1, kMostWorkers));
  command->add_option("--link", options->link, "Each host's link, RATE:LATENCY")->required();
  command->add_option("--sync", options->sync,
                      "Candidates, the one that changes gradients least first; those of auto if not given");
  command->add_flag("--lossless", options->lossless, "Those of auto:lossless=on");
  command->add_option(
      "--codec", options->codec,
      "Computing: measured (by this machine's CPU time), off, or elements per second, as 300M; one "
      "per system: off:300M:1G");
  command->add_option("--cores", options->cores, "Cores of a host");
  command->add_option("--ranks-per-host", options->ranks_per_host, "Ranks that share a host's cores and link")
      ->check(CLI::Range(1, kMostWorkers));
  command->add_flag("--reduce-in-host", options->reduce_in_host,
                    "These add up first and act as one worker, as with register's ranks_per_host");
  command->add_option("--lanes", options->lanes, "Buckets that are under way at the same time")
      ->check(CLI::Range(1, 64));
  command->add_option("--within", options->within,
                      "How much longer than the fastest a milder candidate's step may take");
  command->add_flag(
      "--simulate", options->simulate,
      "Also run each candidate on the virtual network: with one lane, and cores that do nothing else");
  command->add_option("--json", options->json, "Write results to this file; - for standard output");
  command->callback([options] { run_plan(*options); });
}

}  // namespace thinwire::apps
