#include "apps/train/worker.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <torch/nn/functional/loss.h>
#include <torch/optim/optimizer.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "apps/train/agreement.h"
#include "apps/train/checkpoint.h"
#include "apps/train/data/batches.h"
#include "apps/train/evaluation.h"
#include "apps/train/gradients.h"
#include "apps/train/model_state.h"
#include "apps/train/models/models.h"
#include "apps/train/optimizer/held_variance.h"
#include "apps/train/optimizer/local_updates.h"
#include "apps/train/optimizer/optimizer.h"
#include "apps/train/recorder.h"
#include "thinwire/known_losses.h"
#include "thinwire/registry.h"
#include "thinwire/session.h"

namespace thinwire::train {

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

/// For messages of one line.
std::string on_one_line(std::string text) {
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

/// What the steps of an epoch come to on this rank.
struct Tally {
  Costs costs;
  double loss_sum = 0;        // over steps that count
  std::uint64_t counted = 0;  // these steps
};

class Worker {
 public:
  Worker(const Job& job, Communicator& communicator, Progress* progress);
  RunResult run();

 private:
  void resume();
  void save(std::uint64_t epoch);
  /// False when training has diverged.
  bool train_epoch(std::uint64_t epoch);
  void check_replicas(std::uint64_t step);
  double forward_backward(Span<const std::uint32_t> indices, std::uint64_t pass);
  /// After forward_backward(), with the learning rate of the step: synchronizes the gradients and steps.
  void gradient_step(double rate, Tally& tally);
  /// After forward_backward(): one local step, and at the end of a round the synchronization.
  void local_step(double rate, bool last_of_epoch, Tally& tally);
  /// What was begun with the last synchronization has ended: one step, or a round of local ones.
  void end_round(bool counts, Tally& tally);
  std::string hopeless(std::uint64_t epoch) const;
  /// False when some rank's gradient was not finite; then no rank's parameters may change.
  /// frozen: whether Adam's variance has to stand still in this step.
  bool synchronize(Costs& costs, bool& frozen);
  void note_residuals();
  void note_idle_options();
  void note_known_loss();
  void finish(std::uint64_t epoch, const Tally& tally, Clock::time_point start);

  const Job& job_;
  const Options& options_;
  Communicator& communicator_;
  Progress* progress_;
  std::shared_ptr<Model> model_;
  std::string trajectory_;
  Session session_;
  Gradients gradients_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;  // of all but the tables
  HeldVariance held_variance_;
  std::optional<LocalUpdates> local_;     // with Options::local_steps
  std::uint64_t round_steps_ = 0;         // since the last synchronization
  double round_loss_ = 0;                 // their sum
  std::optional<std::uint64_t> checked_;  // step at which replicas were compared last, in this call
  Recorder recorder_;
  std::uint64_t pass_steps_;  // of one pass over the data
  std::uint64_t steps_;       // of an epoch
  Costs costs_;
  std::vector<double> step_seconds_;
  int hopeless_ = 0;  // synchronizations in a row without a finite gradient or update
  RunResult result_;
};

Worker::Worker(const Job& job, Communicator& communicator, Progress* progress)
    : job_(job),
      options_(job.options),
      communicator_(communicator),
      progress_(progress),
      model_(make_model(options_.model, job.dataset.shape(), options_.seed, options_.transformer)),
      trajectory_(trajectory(options_, builtin_registry().canonical(job.spec), count_parameters(*model_))),
      session_(job.spec, communicator,
               {.seed = options_.seed,
                .threads = options_.threads,
                .configuration = on_one_line(trajectory_),
                .ranks_per_host = options_.ranks_per_host}),
      gradients_(*model_, session_, static_cast<std::size_t>(options_.bucket_megabytes * (1 << 20))),
      optimizer_(make_optimizer(options_, gradients_.dense_parameters())),
      recorder_(options_.record_to, options_.record, options_.record_every, communicator),
      pass_steps_(steps_per_epoch(job.dataset.training_examples(), options_.workers, options_.batch)),
      steps_(options_.epoch_steps > 0 ? options_.epoch_steps : pass_steps_) {
  if (options_.local_steps > 0) local_.emplace(gradients_.dense_parameters(), model_->buffers(), *optimizer_);
  result_.label = job.spec;
  result_.seed = options_.seed;
  result_.system = system_name(job.spec);
  result_.spec = session_.spec();
  result_.parameters = count_parameters(*model_);
}

/// As where the stage whole names parameters that this model has not.
void Worker::note_idle_options() {
  if (!progress_) return;
  std::vector<std::string> names;
  for (const auto& parameter : model_->named_parameters()) names.push_back(parameter.key());
  for (const std::string& line : builtin_registry().idle_options(job_.spec, names)) progress_->note(line);
  const std::uint64_t all = static_cast<std::uint64_t>(options_.epochs) * steps_;
  // A round of local steps that an epoch's end cuts short is one synchronization.
  const auto local = static_cast<std::uint64_t>(options_.local_steps);
  const std::uint64_t synchronizations =
      local == 0 ? all : static_cast<std::uint64_t>(options_.epochs) * ((steps_ + local - 1) / local);
  for (const std::string& line : builtin_registry().never_begun(job_.spec, synchronizations)) {
    progress_->note(line);
  }
}

void Worker::note_known_loss() {
  const bool adam = options_.optimizer == OptimizerKind::adamw;
  // Local steps are another way to train.
  if (!progress_ || options_.local_steps > 0 || (!adam && options_.momentum == 0)) return;
  const std::string line = known_loss(job_.spec, adam ? TrainedWith::adam : TrainedWith::momentum);
  if (!line.empty()) progress_->note(line);
}

RunResult Worker::run() {
  session_.start();
  broadcast_model(*model_, communicator_);
  if (job_.resume) resume();
  const std::uint64_t first = result_.epochs.size();
  const auto all = static_cast<std::uint64_t>(options_.epochs);
  const std::uint64_t stop =
      options_.stop_after > 0 ? std::min(all, first + static_cast<std::uint64_t>(options_.stop_after)) : all;
  if (progress_) progress_->begin(title(job_.spec, options_), all, steps_, first * steps_);
  note_idle_options();
  note_known_loss();
  for (std::uint64_t epoch = first; epoch < stop; ++epoch) {
    if (!train_epoch(epoch)) break;
    if (!job_.checkpoint.empty()) save(epoch + 1);
  }
  if (!result_.failure.empty()) average_buffers(*model_, communicator_);  // it may have stopped in mid-epoch
  result_.model_hash = require_agreement(*model_, communicator_, job_.spec + " at the end");
  result_.ranks_agree = true;
  result_.costs = gather(communicator_, costs_);
  result_.explanation = session_.explain();
  if (progress_ && !result_.explanation.empty()) progress_->note(result_.explanation);
  if (!step_seconds_.empty()) {
    const std::vector<double> medians = gather(communicator_, median(step_seconds_));
    const std::vector<double> minima =
        gather(communicator_, *std::min_element(step_seconds_.begin(), step_seconds_.end()));
    result_.seconds_median = *std::max_element(medians.begin(), medians.end());
    result_.seconds_min = *std::max_element(minima.begin(), minima.end());
  }
  return std::move(result_);
}

bool Worker::train_epoch(std::uint64_t epoch) {
  const Clock::time_point start = Clock::now();
  std::vector<std::uint32_t> order;
  model_->train();
  Tally tally;
  for (std::uint64_t step = 0; step < steps_; ++step) {
    const std::uint64_t in_all = epoch * steps_ + step;
    const std::uint64_t pass = in_all / pass_steps_;
    const std::uint64_t in_pass = in_all % pass_steps_;
    if (order.empty() || in_pass == 0) {
      order = epoch_order(job_.dataset.training_examples(), options_.seed, pass);
    }
    const Clock::time_point step_start = Clock::now();
    // Within a round replicas differ on purpose.
    if (round_steps_ == 0) check_replicas(in_all);
    const double loss = forward_backward(
        rank_batch(order, in_pass, communicator_.rank(), communicator_.size(), options_.batch), pass);
    const double rate =
        learning_rate_at(options_, in_all, static_cast<std::uint64_t>(options_.epochs) * steps_);
    ++tally.costs.steps;
    ++round_steps_;
    round_loss_ += loss;
    if (local_) {
      local_step(rate, step + 1 == steps_, tally);
    } else {
      gradient_step(rate, tally);
    }
    if (hopeless_ >= kHopelessSteps) {
      costs_ += tally.costs;
      result_.failure = hopeless(epoch);
      return false;
    }
    step_seconds_.push_back(seconds_since(step_start));
    if (progress_) progress_->step(loss, costs_.bytes_sent + tally.costs.bytes_sent);
  }
  finish(epoch, tally, start);
  return result_.failure.empty();
}

void Worker::gradient_step(double rate, Tally& tally) {
  session_.set_learning_rate(rate);
  bool frozen = false;
  const bool counts = synchronize(tally.costs, frozen);
  if (counts) {
    const double factor = options_.clip > 0 ? gradients_.clip(options_.clip) : 1;
    optimizer_->param_groups()[0].options().set_lr(rate);
    held_variance_.step(*optimizer_, frozen);
    gradients_.apply_rows(factor * rate);
  }
  end_round(counts, tally);
}

/// A gradient that is not finite makes this rank's parameters so, and with them its update. So all ranks see
/// it at the end of the round, and the round is undone as a whole.
void Worker::local_step(double rate, bool last_of_epoch, Tally& tally) {
  if (round_steps_ == 1) local_->begin();
  if (options_.clip > 0) gradients_.clip(options_.clip);
  optimizer_->param_groups()[0].options().set_lr(rate);
  optimizer_->step();
  // An epoch ends with a round: what is measured and saved there is one model, the same on all ranks.
  if (round_steps_ < static_cast<std::uint64_t>(options_.local_steps) && !last_of_epoch) return;
  local_->take_updates();
  session_.set_learning_rate(options_.outer_rate);
  bool frozen = false;
  const bool counts = synchronize(tally.costs, frozen);
  if (counts) {
    local_->apply(options_.outer_rate);
  } else {
    local_->undo();
  }
  end_round(counts, tally);
}

void Worker::end_round(bool counts, Tally& tally) {
  if (counts) {
    tally.loss_sum += round_loss_;
    tally.counted += round_steps_;
    hopeless_ = 0;
  } else {
    result_.skipped_steps += round_steps_;
    ++hopeless_;
  }
  round_steps_ = 0;
  round_loss_ = 0;
}

std::string Worker::hopeless(std::uint64_t epoch) const {
  return fmt::format("diverged: {} {} in a row without a finite {}, in epoch {}", kHopelessSteps,
                     local_ ? "rounds of local steps" : "steps", local_ ? "update" : "gradient", epoch + 1);
}

double Worker::forward_backward(Span<const std::uint32_t> indices, std::uint64_t pass) {
  const Batch batch = job_.dataset.training_batch(indices, options_.seed, pass);
  gradients_.clear();
  const torch::Tensor loss =
      torch::nn::functional::cross_entropy(model_->forward(batch.inputs), batch.labels);
  loss.backward();
  return loss.item<double>();
}

/// Every so many steps of the whole training; at an epoch's end ranks agree about buffers, too.
void Worker::check_replicas(std::uint64_t step) {
  const auto every = static_cast<std::uint64_t>(options_.check_replicas_every);
  // The first step of this call, too: what was sent at the start may have been damaged on the way.
  if (every == 0 || (checked_ && step / every == *checked_ / every)) return;
  checked_ = step;
  require_same_parameters(*model_, step, communicator_);
}

bool Worker::synchronize(Costs& costs, bool& frozen) {
  frozen = session_.variance_is_frozen();
  recorder_.step(gradients_, session_.step());
  gradients_.synchronize();
  for (std::size_t i = 0; i < gradients_.buckets(); ++i) {
    const StepReport& report = gradients_.report(i);
    const bool rows = gradients_.row_sparse(i);
    const double elements = rows ? static_cast<double>(report.elements) : 0;
    costs += {.steps = 0,
              .bytes_sent = report.wire.sent_bytes,
              .bytes_received = report.wire.received_bytes,
              .messages_sent = report.wire.sent_messages,
              .formula_bytes = report.formula_bytes,
              .bytes_sent_rows = rows ? report.wire.sent_bytes : 0,
              .seconds_compress = report.seconds_compress,
              .seconds_communicate = report.seconds_communicate,
              .seconds_decompress = report.seconds_decompress,
              .row_elements = elements,
              .row_elements_in = elements * report.density_in,
              .row_elements_out = elements * report.density_out,
              .relative_errors = std::max(report.relative_error, 0.0),
              .measured = report.relative_error >= 0 ? 1u : 0u};
  }
  const bool counts = session_.next_step();
  note_residuals();
  return counts;
}

void Worker::note_residuals() {
  double norm_squared = 0;
  double deviation_squared = 0;
  bool any = false;
  for (std::size_t i = 0; i < gradients_.buckets(); ++i) {
    if (session_.residual(static_cast<BucketId>(i)).empty()) continue;
    const StepReport& report = gradients_.report(i);
    // -1 means "unknown", of one bucket as of all: NaN carries that through the sum.
    norm_squared += report.residual_norm < 0 ? NAN : report.residual_norm * report.residual_norm;
    deviation_squared +=
        report.residual_deviation < 0 ? NAN : report.residual_deviation * report.residual_deviation;
    any = true;
  }
  result_.residual_norm = !any || std::isnan(norm_squared) ? -1 : std::sqrt(norm_squared);
  result_.residual_deviation = !any || std::isnan(deviation_squared) ? -1 : std::sqrt(deviation_squared);
}

void Worker::finish(std::uint64_t epoch, const Tally& tally, Clock::time_point start) {
  const Costs& costs = tally.costs;
  average_buffers(*model_, communicator_);
  const Score score = evaluate(*model_, job_.dataset, communicator_);
  require_agreement(*model_, communicator_, fmt::format("{} after epoch {}", job_.spec, epoch + 1));
  costs_ += costs;
  double loss = 0;
  for (const double sum : gather(communicator_, tally.loss_sum)) loss += sum;
  loss /= static_cast<double>(tally.counted) * communicator_.size();  // 0 / 0 when all were skipped
  if (!std::isfinite(loss)) {
    result_.failure = fmt::format("diverged: the loss of epoch {} is not finite", epoch + 1);
  } else if (!std::isfinite(score.loss)) {
    result_.failure =
        fmt::format("diverged: after epoch {} the loss of the test data is not finite", epoch + 1);
  }
  const auto per_step = [&](std::uint64_t bytes) {
    return static_cast<double>(bytes) / static_cast<double>(costs.steps);
  };
  std::uint64_t sent = 0;
  std::uint64_t sent_rows = 0;
  std::uint64_t sent_dense = 0;
  std::uint64_t sent_so_far = 0;
  for (const Costs& rank : gather(communicator_, costs)) {
    sent = std::max(sent, rank.bytes_sent);
    sent_rows = std::max(sent_rows, rank.bytes_sent_rows);
    sent_dense = std::max(sent_dense, rank.bytes_sent - rank.bytes_sent_rows);
  }
  for (const Costs& rank : gather(communicator_, costs_))
    sent_so_far = std::max(sent_so_far, rank.bytes_sent);
  const std::vector<double> step_seconds(step_seconds_.end() - static_cast<std::ptrdiff_t>(costs.steps),
                                         step_seconds_.end());
  double step_median = 0;
  for (const double rank : gather(communicator_, median(step_seconds)))
    step_median = std::max(step_median, rank);
  const bool words = job_.dataset.shape().input == Input::words;
  result_.epochs.push_back({.epoch = epoch + 1,
                            .steps = costs.steps,
                            .loss = loss,
                            .test_accuracy = score.accuracy,
                            .test_loss = score.loss,
                            .perplexity = words ? std::exp(score.loss) : -1,
                            .seconds = seconds_since(start),
                            .seconds_step_median = step_median,
                            .wire_bytes = per_step(sent),
                            .wire_bytes_rows = per_step(sent_rows),
                            .wire_bytes_dense = per_step(sent_dense),
                            .wire_bytes_so_far = sent_so_far});
  if (progress_) progress_->epoch(result_.epochs.back());
}

void Worker::save(std::uint64_t epoch) {
  StateWriter shared;
  if (communicator_.rank() == 0) {
    shared.put("epoch", epoch);
    shared.put("trajectory", std::string_view(trajectory_));
    shared.put("skipped_steps", result_.skipped_steps);
    put_history(shared, result_.epochs);
    put_model(shared, *model_);
    if (!local_) put_optimizer(shared, *optimizer_);
    shared.put("frozen_variance_steps", held_variance_.frozen_steps());
  }
  StateWriter mine;
  mine.put("epoch", epoch);
  mine.put("rank", static_cast<std::uint64_t>(communicator_.rank()));
  mine.put("hopeless_steps", static_cast<std::uint64_t>(hopeless_));
  // With local steps every rank's optimizer has a state of its own.
  if (local_) put_optimizer(mine, *optimizer_);
  put_costs(mine, costs_);
  session_.save(mine);
  write_checkpoint(job_.checkpoint, epoch, shared, mine, communicator_);
}

void Worker::resume() {
  const Checkpoint found = read_newest_checkpoint(job_.checkpoint, communicator_);
  if (progress_ && !found.passed_over.empty()) {
    progress_->note(fmt::format("going on from epoch {}: {}", found.epoch, found.passed_over));
  }
  const StateReader& shared = found.shared;
  require_same_trajectory(shared.get_text("trajectory"), trajectory_, job_.checkpoint);
  get_model(shared, *model_);
  get_optimizer(local_ ? found.mine : shared, *optimizer_);
  const std::string_view frozen = "frozen_variance_steps";  // earlier versions had none
  held_variance_.set_frozen_steps(shared.contains(frozen) ? shared.get_integer(frozen) : 0);
  result_.epochs = get_history(shared);
  result_.skipped_steps = shared.get_integer("skipped_steps");
  const StateReader& mine = found.mine;
  hopeless_ = static_cast<int>(mine.get_integer("hopeless_steps"));
  costs_ = get_costs(mine);
  session_.load(mine);
  session_.start();  // once more: now with the step that each rank has loaded
}

}  // namespace

RunResult train_rank(const Job& job, Communicator& communicator, Progress* progress) {
  // Before the replica is built: its first operations already choose how many threads to use.
  at::set_num_threads(job.options.threads);
  return Worker(job, communicator, progress).run();
}

}  // namespace thinwire::train
