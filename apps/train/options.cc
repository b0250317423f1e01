#include "apps/train/options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numbers>
#include <stdexcept>

#include "apps/train/data/batches.h"

namespace thinwire::train {

Defaults defaults_of(const std::string& model) {
  if (model == "lstm") {
    return {.data = "text", .epochs = 3, .batch = 8, .learning_rate = 8, .weight_decay = 0};
  }
  if (model == "deepfm") {
    return {.data = "adult", .epochs = 6, .batch = 32, .learning_rate = 0.4, .weight_decay = 0};
  }
  if (model == "transformer") {
    return {.data = "text",
            .epochs = 2,
            .batch = 8,
            .learning_rate = 2e-3,
            .weight_decay = 0.01,
            .optimizer = OptimizerKind::adamw,
            .clip = 1,
            .context = 64};
  }
  const Options options;
  return {.data = options.data,
          .epochs = options.epochs,
          .batch = options.batch,
          .learning_rate = options.learning_rate,
          .weight_decay = options.weight_decay};
}

std::string name_of(Schedule schedule) {
  switch (schedule) {
    case Schedule::cosine:
      return "cosine";
    case Schedule::linear:
      return "linear";
    case Schedule::constant:
      break;
  }
  return "constant";
}

Schedule schedule_named(const std::string& name) {
  for (const Schedule one : {Schedule::constant, Schedule::cosine, Schedule::linear}) {
    if (name == name_of(one)) return one;
  }
  throw std::invalid_argument(fmt::format("--lr-schedule {}: expected constant, cosine or linear", name));
}

std::string name_of(OptimizerKind optimizer) {
  return optimizer == OptimizerKind::adamw ? "adamw" : "sgd";
}

std::string trajectory(const Options& options, const std::string& spec, std::uint64_t parameters) {
  // A constant rate does not depend on how long one trains, so that such a run may be prolonged.
  const std::string epochs =
      options.schedule == Schedule::constant ? "any" : fmt::format("{}", options.epochs);
  // Not in what was written before there was such an option.
  const std::string hosts =
      options.ranks_per_host == 1 ? "" : fmt::format("ranks_per_host={}\n", options.ranks_per_host);
  const std::string drops =
      options.rate_drops.empty() ? "" : fmt::format("lr_drops={}\n", fmt::join(options.rate_drops, ","));
  return fmt::format(
      "spec={}\ndata={}\nmodel={}\nparameters={}\nworkers={}\nepochs={}\nbatch={}\nlr={}\nmomentum={}\n"
      "weight_decay={}\nlr_schedule={}\nseed={}\nlimit={}\nbucket_mb={}\nvocabulary={}\noptimizer={}\nclip={}"
      "\n"
      "warm_up_steps={}\nepoch_steps={}\ncontext={}\nlayers={}\nwidth={}\nheads={}\nlocal_steps={}\nouter_"
      "rate={}\n{}{}",
      spec, options.data, options.model, parameters, options.workers, epochs, options.batch,
      options.learning_rate, options.momentum, options.weight_decay, name_of(options.schedule), options.seed,
      options.limit, options.bucket_megabytes, options.vocabulary, name_of(options.optimizer), options.clip,
      options.warm_up_steps, options.epoch_steps, options.context, options.transformer.layers,
      options.transformer.width, options.transformer.heads, options.local_steps, options.outer_rate, hosts,
      drops);
}

namespace {

void require_drops(const std::vector<std::uint64_t>& drops, std::uint64_t steps) {
  if (drops.empty()) return;
  const std::string text = fmt::format("--lr-drops {}", fmt::join(drops, ","));
  // The first step is number 0: there would be nothing to fall from.
  if (drops.front() == 0 || std::ranges::adjacent_find(drops, std::greater_equal<>()) != drops.end()) {
    throw std::invalid_argument(text + ": give steps from 1 on, each later than the one before");
  }
  if (drops.back() >= steps) {
    throw std::invalid_argument(
        fmt::format("{}: the training has {} steps, numbered from 0, so step {} never comes: give earlier "
                    "ones, or train for longer",
                    text, steps, drops.back()));
  }
}

}  // namespace

void require_steps(const Options& options, std::size_t training_examples) {
  const std::uint64_t pass = steps_per_epoch(training_examples, options.workers, options.batch);
  if (pass == 0) {
    throw std::invalid_argument(fmt::format(
        "{} workers with --batch {} need {} training examples for one step, there are {}", options.workers,
        options.batch, std::int64_t{options.workers} * options.batch, training_examples));
  }
  const std::uint64_t steps =
      static_cast<std::uint64_t>(options.epochs) * (options.epoch_steps > 0 ? options.epoch_steps : pass);
  if (options.warm_up_steps > 0 && static_cast<std::uint64_t>(options.warm_up_steps) >= steps) {
    throw std::invalid_argument(
        fmt::format("--lr-warm-up {}: the training has {} steps, so the rate would never reach --lr: give "
                    "fewer",
                    options.warm_up_steps, steps));
  }
  require_drops(options.rate_drops, steps);
}

double learning_rate_at(const Options& options, std::uint64_t step, std::uint64_t total_steps) {
  const bool falls = options.schedule != Schedule::constant;
  const double at = static_cast<double>(step);
  const double total = static_cast<double>(total_steps);
  const double by_default = falls ? 0.05 * total : 0;
  const double warm_up = options.warm_up_steps < 0 ? by_default : static_cast<double>(options.warm_up_steps);
  double rate = options.learning_rate;
  for (const std::uint64_t drop : options.rate_drops) {
    if (step >= drop) rate /= 10;
  }
  if (at < warm_up) return rate * (at + 1) / (warm_up + 1);
  if (!falls) return rate;
  if (options.schedule == Schedule::linear) return rate * (total - at) / (total - warm_up);
  return rate * 0.5 * (1 + std::cos(std::numbers::pi * (at - warm_up) / (total - warm_up)));
}

}  // namespace thinwire::train
