#pragma once
// What one call of `thinwire train` was asked to do.

#include <cstdint>
#include <string>
#include <vector>

#include "apps/train/models/transformer.h"

namespace thinwire::train {

enum class Schedule { constant, cosine, linear };
enum class OptimizerKind { sgd, adamw };

struct Options {
  std::string data = "fashion-mnist";
  std::string model = "cnn";
  std::vector<std::string> specs = {"dense"};  ///< Trained one after the other, each from the same start.
  std::string engine = "threads";
  int workers = 4;
  int epochs = 6;
  int batch = 16;  ///< Examples per worker and step.
  double learning_rate = 0.05;
  /// Of SGD. Momentum rings when gradients arrive late, and what a one-bit system keeps in its residual
  /// arrives tens of steps late. At a rate of 0.05 and momentum 0.9 Marsit with a full step in 100 ends at
  /// chance (docs/why_systems_lose.md), and with one in 2 as dense does (docs/loss.md).
  double momentum = 0;
  OptimizerKind optimizer = OptimizerKind::sgd;
  double weight_decay = 5e-4;
  /// Largest norm of the mean gradient, over all parameters; 0: any. With local steps, of a rank's own.
  double clip = 0;
  /// Steps that each rank takes alone between synchronizations (optimizer/local_updates.h); 0: gradients are
  /// synchronized in every step.
  int local_steps = 0;
  double outer_rate = 1;  ///< With local steps: what the mean update is multiplied by.
  Schedule schedule = Schedule::cosine;
  /// Steps in which the rate rises at the start; negative: none under `constant`, else a twentieth of all.
  std::int64_t warm_up_steps = -1;
  /// From each of these steps on the rate is a tenth of what it would be; ascending, from 1 on.
  std::vector<std::uint64_t> rate_drops;
  /// Steps that count as an epoch; 0: as many as the data have. Longer epochs go through the data again.
  std::uint64_t epoch_steps = 0;
  /// Every system is trained once with each.
  std::vector<std::uint64_t> seeds = {1};
  std::uint64_t seed = 1;        ///< Of the training at hand, one of `seeds`.
  std::uint64_t limit = 0;       ///< Use only so many training examples; 0: all.
  int threads = 1;               ///< CPU threads of one rank.
  double bucket_megabytes = 25;  ///< Of 2^20 bytes: longest bucket of several parameters; DDP's default.
  double deadline_seconds = 300;
  double step_limit_seconds = 0;  ///< 0: the communicator's default.
  int stop_after = 0;  ///< End after so many epochs of this call, as an interruption would; 0: do not.
  std::uint64_t vocabulary = 10'000;  ///< Most words of a text that are told apart.
  int context = 32;                   ///< Words of a text in one example.
  TransformerSizes transformer{};
  int record = 0;        ///< Write the gradients of so many steps, the first of this call, to record_to.
  int record_every = 1;  ///< Only every so many steps.
  std::string record_to = "gradients";
  int ranks_per_host = 1;           ///< See SessionOptions.
  bool checked_sums = false;        ///< See Communicator::set_checked_sums.
  int check_replicas_every = 1000;  ///< Steps between comparisons of the ranks' parameters; 0: never.
  std::string checkpoint;
  bool resume = false;
  std::string json;
  std::string plot;
};

/// What `model` trains well with under dense synchronization when nothing else is asked for; an unknown model
/// has those of cnn.
struct Defaults {
  std::string data;
  int epochs = 0;
  int batch = 0;
  double learning_rate = 0;
  double weight_decay = 0;
  OptimizerKind optimizer = OptimizerKind::sgd;
  double clip = 0;
  int context = 32;
};
Defaults defaults_of(const std::string& model);

/// "constant", "cosine", "linear".
std::string name_of(Schedule schedule);
/// The other way. Throws std::invalid_argument for any other name.
Schedule schedule_named(const std::string& name);
/// "sgd", "adamw".
std::string name_of(OptimizerKind optimizer);

/// Everything that decides what the parameters become, one "key=value" per line: what ranks compare at the
/// start and a checkpoint compares when it is resumed. `parameters` of them make up the model.
std::string trajectory(const Options& options, const std::string& spec, std::uint64_t parameters);

/// Throws std::invalid_argument where the training examples do not suffice for one step, where the rate would
/// rise for longer than the training lasts, and for rate_drops that do not ascend or come after its end.
void require_steps(const Options& options, std::size_t training_examples);

/// Learning rate of a step: a linear rise over Options::warm_up_steps, then half a cosine or a straight line
/// down to 0, or a constant; all of it divided by ten for each of rate_drops that is past. One-bit systems
/// take steps of fixed size, which only a falling rate brings to rest. The rise keeps the first, steepest
/// gradients from blowing up any system.
double learning_rate_at(const Options& options, std::uint64_t step, std::uint64_t total_steps);

}  // namespace thinwire::train
