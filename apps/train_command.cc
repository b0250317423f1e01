// `thinwire train`: its options, and what they mean together. Of `thinwire-torch`, the program with torch.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <stdexcept>
#include <string>

#include "apps/commands.h"
#include "apps/gloo_engine.h"
#include "apps/program.h"
#include "apps/train/options.h"
#include "apps/train/run.h"
#include "thinwire/registry.h"

namespace thinwire::apps {

void prepare_program(int, char**) {
  use_gloo_of_torch();
}

namespace {

/// What --sync and --compare name together, without repetitions; --sync alone counts when it was given or
/// there is nothing to compare.
std::vector<std::string> systems_to_train(const std::string& sync, bool sync_given,
                                          const std::string& compare) {
  std::vector<std::string> specs;
  const auto add = [&specs](const std::string& spec) {
    if (std::find(specs.begin(), specs.end(), spec) == specs.end()) specs.push_back(spec);
  };
  if (sync_given || compare.empty()) {
    for (const auto& spec : split_specs(sync)) add(spec);
  }
  if (!compare.empty()) {
    for (const auto& spec : split_specs(compare)) add(spec);
  }
  return specs;
}

/// A default that depends on the model, as --help shows it.
template <class Field>
std::string by_model(Field train::Defaults::*field) {
  return fmt::format("{}; lstm: {}; transformer: {}; deepfm: {}", train::defaults_of("cnn").*field,
                     train::defaults_of("lstm").*field, train::defaults_of("transformer").*field,
                     train::defaults_of("deepfm").*field);
}

/// Takes the model's default for whatever was not given.
template <class T>
void fall_back(const CLI::Option* option, T& value, const T& by_default) {
  if (option->count() == 0) value = by_default;
}

}  // namespace

void add_train_command(CLI::App& app) {
  struct Arguments {
    train::Options options;
    std::string sync = "dense";
    std::string compare;
    std::string schedule = train::name_of(train::Options{}.schedule);
    std::string optimizer = train::name_of(train::Options{}.optimizer);
  };
  const auto arguments = std::make_shared<Arguments>();
  train::Options& options = arguments->options;

  CLI::App* command = app.add_subcommand("train", kTrainSummary);
  command->option_defaults()->always_capture_default()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  using train::Defaults;
  CLI::Option* data = command
                          ->add_option("--data", options.data,
                                       "fashion-mnist[:DIR], cifar10:DIR, text[:FILE] (the King James Bible "
                                       "without a file) or adult:DIR")
                          ->default_str(by_model(&Defaults::data));
  command->add_option("--model", options.model,
                      "cnn, resnet20, resnet9, alexnet, lstm or transformer (words), or deepfm (categories)");
  CLI::Option* sync = command->add_option(
      "--sync", arguments->sync,
      "System that synchronizes the gradients; rows=SPEC,dense=SPEC: embeddings by another "
      "one than the rest");
  command->add_option("--compare", arguments->compare,
                      "Systems to train one after the other from the same start, separated by commas");
  command->add_option("--workers", options.workers, "Number of ranks");
  command->add_option("--engine", options.engine,
                      "threads, mpi (under mpirun) or gloo (as torchrun starts it)");
  CLI::Option* epochs = command->add_option("--epochs", options.epochs, "Passes over the training examples")
                            ->default_str(by_model(&Defaults::epochs));
  CLI::Option* batch =
      command
          ->add_option("--batch", options.batch,
                       "Examples per worker and step: images, windows of --context words, records")
          ->default_str(by_model(&Defaults::batch));
  CLI::Option* rate =
      command->add_option("--lr", options.learning_rate, "Learning rate, the largest of its schedule")
          ->default_str(by_model(&Defaults::learning_rate) +
                        "; with another optimizer adamw: 0.001, sgd: 0.05");
  command
      ->add_option("--lr-schedule", arguments->schedule,
                   "cosine or linear (after a short warm-up down to 0), or constant")
      ->check(CLI::IsMember({"cosine", "linear", "constant"}));
  command
      ->add_option("--lr-warm-up", options.warm_up_steps,
                   "Steps in which the rate rises from 0; -1: none under constant, else a twentieth of all")
      ->check(CLI::Range(std::int64_t{-1}, std::int64_t{1} << 40));
  command
      ->add_option("--lr-drops", options.rate_drops,
                   "Steps, separated by commas, from each of which on the rate is divided by ten")
      ->delimiter(',')
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->check(not_negative())
      ->default_str("");
  CLI::Option* optimizer = command->add_option("--optimizer", arguments->optimizer, "sgd or adamw")
                               ->check(CLI::IsMember({"sgd", "adamw"}))
                               ->default_str("sgd; transformer: adamw");
  command->add_option("--momentum", options.momentum, "Of SGD; tables of embeddings have none");
  command->add_option("--local-steps", options.local_steps,
                      "Steps that each worker takes with an optimizer of its own before parameters are "
                      "synchronized by how far they moved; 0: gradients are, in every step");
  command->add_option("--outer-rate", options.outer_rate,
                      "With --local-steps: what the mean of these moves is multiplied by");
  CLI::Option* decay = command
                           ->add_option("--weight-decay", options.weight_decay,
                                        "Of the optimizer; tables of embeddings have none")
                           ->default_str(by_model(&Defaults::weight_decay));
  CLI::Option* clip =
      command
          ->add_option("--clip", options.clip, "Largest norm of the mean gradient of all parameters; 0: any")
          ->default_str(by_model(&Defaults::clip));
  command
      ->add_option("--epoch-steps", options.epoch_steps,
                   "Steps that count as an epoch; 0: one pass over the training examples")
      ->check(not_negative());
  CLI::Option* seed = command
                          ->add_option("--seed", options.seed,
                                       "Of initial weights, order of examples and every random choice")
                          ->check(not_negative());
  CLI::Option* seeds =
      command
          ->add_option(
              "--seeds", options.seeds,
              "Seeds separated by commas: every system is trained with each, and the table shows mean "
              "and standard deviation")
          ->delimiter(',')
          ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
          ->check(not_negative())
          ->excludes(seed)
          ->default_str("");
  command->add_option("--limit", options.limit, "Use only the first N training examples; 0: all")
      ->check(not_negative());
  command
      ->add_option("--vocabulary", options.vocabulary,
                   "Most words of a text that are told apart; the rest is one unknown word")
      ->check(not_negative());
  CLI::Option* context = command->add_option("--context", options.context, "Words of a text in one example")
                             ->default_str(by_model(&Defaults::context));
  command->add_option("--layers", options.transformer.layers, "Of a transformer");
  command->add_option("--width", options.transformer.width, "Of a transformer: values for each word");
  command->add_option("--heads", options.transformer.heads,
                      "Of a transformer's attention; they divide the width");
  command->add_option("--threads", options.threads, "CPU threads of one rank");
  command->add_option(
      "--bucket-mb", options.bucket_megabytes,
      "Most MB (of 2^20 bytes) of gradients that are synchronized together; 0: each parameter alone");
  command->add_option("--deadline", options.deadline_seconds,
                      "Seconds after which a silent rank counts as lost");
  command->add_option("--step-limit", options.step_limit_seconds,
                      "Seconds that gloo waits in one step altogether, also while bytes move; 0: an hour, or "
                      "twice the deadline");
  command
      ->add_option("--ranks-per-host", options.ranks_per_host,
                   "So many ranks act as one worker: they add up first, then each synchronizes a part of the "
                   "mean with other hosts")
      ->check(CLI::Range(1, kMostWorkers));
  command->add_flag("--checked-sums", options.checked_sums,
                    "Over gloo: sums that it makes by itself go by a ring whose messages carry checksums");
  command
      ->add_option("--check-replicas-every", options.check_replicas_every,
                   "Compare the ranks' parameters every N steps; 0: only at the end of each epoch")
      ->check(not_negative());
  command->add_option("--checkpoint", options.checkpoint,
                      "Folder for a checkpoint after each epoch; made if it is not there");
  command->add_flag("--resume", options.resume, "Continue from the newest checkpoint");
  command
      ->add_option("--stop-after", options.stop_after, "End after N epochs, to be resumed later; 0: do not")
      ->check(not_negative());
  command
      ->add_option("--record", options.record,
                   "Write each rank's gradients of N steps to files for `thinwire simulate`")
      ->check(not_negative());
  command->add_option("--record-every", options.record_every,
                      "Record only steps whose number is a multiple of this one");
  command->add_option("--record-to", options.record_to, "Folder for --record: gradients-rank-R.twg");
  command->add_option("--json", options.json, "File for the results; - for standard output");
  command->add_option("--plot", options.plot, "PNG for accuracy or perplexity against epochs and bytes");
  command->callback([=] {
    train::Options& chosen = arguments->options;
    const Defaults defaults = train::defaults_of(chosen.model);
    fall_back(data, chosen.data, defaults.data);
    fall_back(epochs, chosen.epochs, defaults.epochs);
    fall_back(batch, chosen.batch, defaults.batch);
    fall_back(rate, chosen.learning_rate, defaults.learning_rate);
    fall_back(decay, chosen.weight_decay, defaults.weight_decay);
    fall_back(clip, chosen.clip, defaults.clip);
    fall_back(context, chosen.context, defaults.context);
    chosen.optimizer =
        arguments->optimizer == "adamw" ? train::OptimizerKind::adamw : train::OptimizerKind::sgd;
    fall_back(optimizer, chosen.optimizer, defaults.optimizer);
    // The rate of a model is that of its own optimizer.
    if (chosen.optimizer != defaults.optimizer) {
      fall_back(rate, chosen.learning_rate, chosen.optimizer == train::OptimizerKind::adamw ? 0.001 : 0.05);
    }
    if (seeds->count() == 0) chosen.seeds = {chosen.seed};
    chosen.schedule = train::schedule_named(arguments->schedule);
    chosen.specs = systems_to_train(arguments->sync, sync->count() > 0, arguments->compare);
    train::run(chosen);
  });
}

}  // namespace thinwire::apps
