#include "apps/train/run.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <unistd.h>

#include <torch/optim/adamw.h>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <limits>
#include <optional>
#include <stdexcept>
#include <tuple>

#include "apps/engine.h"
#include "apps/output.h"
#include "apps/plot_script.h"
#include "apps/train/checkpoint.h"
#include "apps/train/data/batches.h"
#include "apps/train/data/dataset.h"
#include "apps/train/models/models.h"
#include "apps/train/optimizer/held_variance.h"
#include "apps/train/over_seeds.h"
#include "apps/train/results.h"
#include "apps/train/worker.h"
#include "thinwire/registry.h"

namespace thinwire::train {

namespace {

namespace fs = std::filesystem;

void make_folder(const std::string& folder, const char* option) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error || !fs::is_directory(folder) || access(folder.c_str(), W_OK) != 0) {
    throw std::runtime_error(
        fmt::format("{} {}: the folder cannot be written, check the permissions", option, folder));
  }
}

/// One system with one seed.
struct Training {
  Options options;  // with this seed
  std::string spec;
  std::string checkpoint{};  // folder; empty: none are written
  bool resume = false;
};

/// Of one training; with several, each has a folder of its own.
std::string checkpoint_folder(const Options& options, const std::string& spec) {
  if (options.checkpoint.empty() || options.specs.size() * options.seeds.size() == 1)
    return options.checkpoint;
  std::string name = options.seeds.size() == 1 ? spec : fmt::format("{}_seed{}", spec, options.seed);
  std::replace_if(
      name.begin(), name.end(), [](char c) { return c == '/' || c == ':' || c == ','; }, '_');
  return (fs::path(options.checkpoint) / name).string();
}

/// Every system with every seed, and from which checkpoint each continues.
std::vector<Training> list_trainings(const Options& options) {
  std::vector<Training> trainings;
  for (const auto& spec : options.specs) {
    for (const std::uint64_t seed : options.seeds) {
      Training training{options, spec};
      training.options.seed = seed;
      training.checkpoint = checkpoint_folder(training.options, spec);
      const std::string& folder = training.checkpoint;
      const std::uint64_t epoch = folder.empty() ? 0 : latest_checkpoint(folder);
      training.resume = epoch > 0;
      if (epoch > 0 && !options.resume) {
        throw std::runtime_error(fmt::format(
            "{} already holds a checkpoint of epoch {}: give --resume to continue, or another folder", folder,
            epoch));
      }
      if (!folder.empty()) make_folder(folder, "--checkpoint");
      trainings.push_back(std::move(training));
    }
  }
  // With several trainings those that the interruption kept from a first checkpoint begin anew.
  if (options.resume && std::none_of(trainings.begin(), trainings.end(),
                                     [](const Training& training) { return training.resume; })) {
    throw std::runtime_error(fmt::format(
        "there is no checkpoint in {} to resume: leave --resume out to begin anew", options.checkpoint));
  }
  return trainings;
}

void check_optimizer(const Options& options) {
  if (options.optimizer == OptimizerKind::adamw && options.momentum != 0) {
    throw std::invalid_argument(
        fmt::format("--momentum {} is SGD's, AdamW has its own: leave it out, or give --optimizer sgd",
                    options.momentum));
  }
  if (options.optimizer == OptimizerKind::adamw && (options.model == "lstm" || options.model == "deepfm")) {
    throw std::invalid_argument(
        fmt::format("--optimizer adamw: gradients of the tables of '{}' are rows, which plain SGD steps; "
                    "give --optimizer "
                    "sgd, or --model transformer",
                    options.model));
  }
}

/// Systems that need a certain momentum in the optimizer would make another optimizer of it in silence.
void check_momentum(const Options& options) {
  if (options.local_steps > 0) return;  // each worker's optimizer is its own then
  const bool adam = options.optimizer == OptimizerKind::adamw;
  const double own = adam ? std::get<0>(torch::optim::AdamWOptions().betas()) : options.momentum;
  for (const auto& spec : options.specs) {
    // What is wrong with the spec itself comes first.
    const SpecPair pair = parse_spec_pair(spec);
    builtin_registry().make(pair.dense);
    builtin_registry().make(pair.rows);
    HeldVariance::require_variance(options.optimizer, spec);
    for (const MomentumNeed& need : builtin_registry().momentum_needs(spec)) {
      if (!need.option.empty() && std::abs(own - need.value) > 1e-6) {
        throw std::invalid_argument(
            fmt::format("--sync {}: {}:{}={} must be {}, which is {}; make them the same", spec, need.system,
                        need.option, need.value, adam ? "AdamW's beta1" : "--momentum", own));
      }
      if (need.option.empty() && own != 0) {
        throw std::invalid_argument(
            fmt::format("--sync {}: {} applies momentum itself, and {} {} would come on top: {}", spec,
                        need.system, adam ? "AdamW's beta1 of" : "--momentum", own,
                        adam ? "give --optimizer sgd" : "leave --momentum out"));
      }
    }
    if (options.clip == 0) continue;
    for (const std::string& system : builtin_registry().unclipped(spec)) {
      throw std::invalid_argument(fmt::format(
          "--sync {}: --clip {} would change the mean that {} delivers, which is to reach the optimizer as "
          "it is: give --clip 0; the stage clip in front of a spec clips before it",
          spec, options.clip, system));
    }
  }
}

void check_local_steps(const Options& options) {
  if (options.local_steps < 0) {
    throw std::invalid_argument(
        fmt::format("--local-steps must be at least 0, not {}: 0 synchronizes gradients in every step",
                    options.local_steps));
  }
  if (!(options.outer_rate > 0)) {
    throw std::invalid_argument(fmt::format("--outer-rate must be above 0, not {}", options.outer_rate));
  }
  if (options.local_steps == 0) {
    if (options.outer_rate == 1) return;
    throw std::invalid_argument(fmt::format(
        "--outer-rate {} multiplies the mean update of local steps: give --local-steps, or scale --lr",
        options.outer_rate));
  }
  if (options.model == "lstm" || options.model == "deepfm") {
    throw std::invalid_argument(
        fmt::format("--local-steps {}: gradients of the tables of '{}' are rows, and local steps move whole "
                    "parameters; give --model transformer, cnn, alexnet, resnet9 or resnet20",
                    options.local_steps, options.model));
  }
  for (const auto& spec : options.specs) {
    if (builtin_registry().freezes_variance(spec)) {
      throw std::invalid_argument(
          fmt::format("--sync {}: it freezes Adam's variance for means of gradients, and with --local-steps "
                      "{} ranks synchronize updates; leave --local-steps out",
                      spec, options.local_steps));
    }
    for (const std::string& system : builtin_registry().unclipped(spec)) {
      throw std::invalid_argument(fmt::format(
          "--sync {}: {} is for gradients, and with --local-steps {} ranks synchronize updates; leave "
          "one of them out",
          spec, system, options.local_steps));
    }
  }
}

void check_numbers(const Options& options) {
  const auto at_least_one = [](const char* name, int value) {
    if (value < 1) throw std::invalid_argument(fmt::format("{} must be at least 1, not {}", name, value));
  };
  if (options.engine == "virtual") {
    throw std::invalid_argument(
        "--engine virtual: train takes threads, mpi or gloo; `thinwire simulate` runs on the virtual "
        "network, "
        "also what `train --record` wrote");
  }
  at_least_one("--workers", options.workers);
  at_least_one("--epochs", options.epochs);
  at_least_one("--batch", options.batch);
  at_least_one("--threads", options.threads);
  const auto in_range = [](const char* name, double value, bool right, const char* wanted) {
    if (!right) throw std::invalid_argument(fmt::format("{} must be {}, not {}", name, wanted, value));
  };
  constexpr double kMost = std::numeric_limits<float>::max();
  in_range("--lr", options.learning_rate, options.learning_rate > 0 && options.learning_rate <= kMost,
           "above 0 and a float");
  in_range("--momentum", options.momentum, options.momentum >= 0 && options.momentum < 1, "in [0, 1)");
  in_range("--weight-decay", options.weight_decay, options.weight_decay >= 0 && options.weight_decay <= kMost,
           "at least 0 and a float");
  in_range("--clip", options.clip, options.clip >= 0 && options.clip <= kMost, "at least 0 and a float");
  at_least_one("--context", options.context);
  check_optimizer(options);
  check_momentum(options);
  check_local_steps(options);
  in_range("--bucket-mb", options.bucket_megabytes,
           options.bucket_megabytes >= 0 && options.bucket_megabytes <= 4096, "in [0, 4096]");
  in_range("--deadline", options.deadline_seconds, options.deadline_seconds > 0, "above 0");
  in_range("--step-limit", options.step_limit_seconds, options.step_limit_seconds >= 0, "at least 0");
  if (options.vocabulary < 2 || options.vocabulary > std::numeric_limits<std::int32_t>::max()) {
    throw std::invalid_argument(
        fmt::format("--vocabulary must be in [2, 2^31), not {}: one number is for all unknown words",
                    options.vocabulary));
  }
  at_least_one("--record-every", options.record_every);
  if (const std::size_t trainings = options.specs.size() * options.seeds.size();
      options.record > 0 && trainings > 1) {
    throw std::invalid_argument(
        fmt::format("--record writes the gradients of one training, {} are asked for: name one system with "
                    "--sync and one "
                    "seed",
                    trainings));
  }
  for (auto seed = options.seeds.begin(); seed != options.seeds.end(); ++seed) {
    if (std::find(options.seeds.begin(), seed, *seed) == seed) continue;
    throw std::invalid_argument(
        fmt::format("--seeds names {} twice: the same training would count as two", *seed));
  }
  if (options.resume && options.checkpoint.empty()) {
    throw std::invalid_argument("--resume needs --checkpoint DIR: the folder to continue from");
  }
}

/// OpenBLAS has threads of its own, which torch does not know about; ranks that share a machine would fight
/// over them. Another BLAS has no such function, then nothing happens.
void limit_blas_threads(int threads) {
  using SetThreads = void (*)(int);
  if (const auto set = reinterpret_cast<SetThreads>(dlsym(RTLD_DEFAULT, "openblas_set_num_threads")))
    set(threads);
}

std::string json_text(const std::vector<RunResult>& results, const Options& options) {
  nlohmann::ordered_json all = nlohmann::ordered_json::array();
  for (const OverSeeds& system : over_seeds(results)) {
    for (const RunResult* run : system.runs) {
      all.push_back(to_json(*run, options));
      all.back()["over_seeds"] = to_json(system);
    }
  }
  return apps::results_text(all);
}

bool to_file(const Options& options) {
  return !options.json.empty() && options.json != "-";
}

/// Written beside its place and renamed: whoever reads the file finds all of it.
void write_json(const std::vector<RunResult>& results, const Options& options, const std::string& path) {
  // A pipe or a device (/dev/stdout) is written to, not replaced.
  std::error_code error;
  const bool replace = !fs::exists(path, error) || fs::is_regular_file(path, error);
  const std::string partial = replace ? path + ".partial" : path;
  std::ofstream stream(partial);
  stream << json_text(results, options) << '\n';
  stream.close();
  if (stream && replace) fs::rename(partial, path, error);
  if (!stream || error)
    throw std::runtime_error(fmt::format("{} cannot be written: is the disk full?", path));
}

void write_plot(const std::vector<RunResult>& results, const Options& options) {
  if (to_file(options)) return apps::run_plot_script("plot_training.py", options.json, options.plot);
  // The numbers outlive a plot that fails.
  const std::string json = options.plot + ".json";
  write_json(results, options, json);
  try {
    apps::run_plot_script("plot_training.py", json, options.plot);
  } catch (const std::runtime_error& error) {
    throw std::runtime_error(fmt::format("{}; the results are kept in {}", error.what(), json));
  }
  fs::remove(json);
}

}  // namespace

void run(const Options& options) {
  check_numbers(options);
  for (const auto& spec : options.specs) builtin_registry().canonical(spec);
  input_of(options.model);  // says which ones are known
  apps::require_writable(options.json);
  apps::require_picture(options.plot);
  const std::unique_ptr<Dataset> dataset =
      load_dataset(options.data, options.vocabulary, static_cast<std::size_t>(options.context));
  require_input(options.model, dataset->shape());
  dataset->limit_training(options.limit);
  require_steps(options, dataset->training_examples());
  if (options.record > 0) make_folder(options.record_to, "--record-to");
  const std::vector<Training> trainings = list_trainings(options);
  limit_blas_threads(options.threads);

  std::vector<RunResult> results;  // stays empty in processes without rank 0
  const apps::EngineOptions engine{
      options.engine,      options.workers, options.deadline_seconds, options.step_limit_seconds, {},
      options.checked_sums};
  apps::run_on_engine(engine, [&](Communicator& communicator) {
    std::optional<Progress> progress;
    if (communicator.rank() == 0) progress.emplace(stderr);
    for (const Training& training : trainings) {
      const Job job{training.options, *dataset, training.spec, training.checkpoint, training.resume};
      RunResult result = train_rank(job, communicator, progress ? &*progress : nullptr);
      if (!progress) continue;
      // A single training's failure becomes this call's own error below.
      if (!result.failure.empty() && trainings.size() > 1) {
        progress->note(fmt::format("{} {}", title(training.spec, training.options), result.failure));
      }
      results.push_back(std::move(result));
      // After each training, so that a failure of a later one costs nothing but its own numbers.
      if (to_file(options)) write_json(results, options, options.json);
    }
  });
  if (results.empty()) return;
  if (options.json == "-") {
    fmt::print("{}\n", json_text(results, options));
  } else {
    fmt::print("{}", table(results));
  }
  std::fflush(stdout);
  if (!options.plot.empty()) write_plot(results, options);
  const bool all_failed = std::all_of(results.begin(), results.end(),
                                      [](const RunResult& result) { return !result.failure.empty(); });
  if (all_failed) {
    throw std::runtime_error(
        fmt::format("{} {}: try a smaller --lr", results.front().label, results.front().failure));
  }
}

}  // namespace thinwire::train
