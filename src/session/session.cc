#include "thinwire/session.h"

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <utility>

#include "exchange/collectives.h"
#include "exchange/host_groups.h"
#include "exchange/rows.h"
#include "kernels/dense/dense.h"
#include "session/configuration.h"
#include "session/session_parts.h"
#include "thinwire/cuda.h"
#include "thinwire/errors.h"
#include "thinwire/state_changes.h"

namespace thinwire {

namespace {

void require_reduce_scatter(const std::vector<Pipeline>& pipelines, const Registry& registry) {
  for (const Pipeline& pipeline : pipelines) {
    if (pipeline.reduce_scatters) continue;
    std::string able;
    for (const SystemInfo& info : registry.systems()) {
      if (!info.reduce_scatters) continue;
      able += (able.empty() ? "" : ", ") + info.name + (info.stage ? "+SYSTEM" : "");
    }
    throw std::invalid_argument("'" + registry.readable(pipeline.spec) +
                                "' gives every rank the whole mean, and cannot leave each rank its part "
                                "alone, as a reduce-scatter does; systems that can: " +
                                able);
  }
}

/// Of ranks that see a part of their host's mean.
void require_parts_of_gradients(const SessionOptions& options, const SpecPair& pair) {
  const std::string ranks = "ranks_per_host=" + std::to_string(options.ranks_per_host);
  if (options.reduce_scatter) {
    throw std::invalid_argument(ranks + " with reduce_scatter: a reduce-scatter has its own parts, one for " +
                                "each rank; leave out one of both");
  }
  if (options.shards != nullptr) {
    throw std::invalid_argument(ranks +
                                " with shards: the host's ranks are the shards; leave out one of both");
  }
  for (const std::string& spec : {pair.dense, pair.rows}) {
    for (const SpecPart& part : parse_spec(spec)) {
      const SystemInfo& info = options.registry->find(part.name);
      const bool by_option = std::ranges::any_of(part.options, [&](const auto& option) {
        return option.first == info.clip_option && option.second.find_first_not_of("0.") != std::string::npos;
      });
      if (!info.clips && !by_option) continue;
      std::string text = "'";
      text.append(spec).append("' with ").append(ranks);
      text +=
          ": clipping needs the norm of a worker's whole gradient, and a rank has a part of its host's mean; "
          "leave clip out and clip the mean, or leave out ranks_per_host";
      throw std::invalid_argument(text);
    }
  }
}

}  // namespace

Session::Session(std::string_view spec, Communicator& communicator, SessionOptions options)
    : hosts_(options.ranks_per_host == 1
                 ? nullptr
                 : std::make_unique<HostGroups>(communicator, options.ranks_per_host)),
      communicator_(hosts_ ? hosts_->across() : communicator),
      options_(std::move(options)),
      executor_(options_.cuda_device ? make_cuda_executor(*options_.cuda_device, options_.threads)
                                     : make_cpu_executor(options_.threads)),
      host_executor_(options_.cuda_device ? make_cpu_executor(options_.threads) : nullptr),
      undelivered_(std::make_unique<Undelivered>()) {
  if (options_.registry == nullptr) options_.registry = &builtin_registry();
  const SpecPair pair = parse_spec_pair(spec);
  pipelines_.push_back(options_.registry->make(pair.dense));
  if (pair.rows != pair.dense) pipelines_.push_back(options_.registry->make(pair.rows));
  undelivered_->saved.resize(pipelines_.size());
  if (options_.reduce_scatter) require_reduce_scatter(pipelines_, *options_.registry);
  if (hosts_) require_parts_of_gradients(options_, pair);
}

Session::~Session() {
  undelivered_->keeper.wait();
}

BucketId Session::add(BucketLayout parameters, std::size_t width, std::size_t pipeline, bool row_sparse) {
  finish_keeping();
  if (started_) throw std::invalid_argument("buckets are added before start(): declare every bucket first");
  std::size_t elements = 0;
  for (const auto& parameter : parameters) {
    if (!parameters_.insert(parameter.name).second) {
      throw std::invalid_argument("two parameters are called '" + parameter.name +
                                  "': checkpoints need unique names");
    }
    if (parameter.rows != 0 && parameter.elements % parameter.rows != 0) {
      throw std::invalid_argument("parameter '" + parameter.name + "' of " +
                                  std::to_string(parameter.elements) + " elements has " +
                                  std::to_string(parameter.rows) +
                                  " rows: the leading dimension divides the elements, 0 if it is not known");
    }
    elements += parameter.elements;
  }
  require_parts(elements, row_sparse);
  if (elements / width > std::numeric_limits<std::uint32_t>::max()) {
    throw std::invalid_argument("a bucket of " + std::to_string(elements / width) +
                                (width == 1 ? " elements" : " rows") +
                                ": indices are 32 bits, split it into buckets below 2^32");
  }
  const auto id = static_cast<BucketId>(buckets_.size());
  buckets_.push_back(std::make_unique<Bucket>(executor_of(row_sparse)));
  Bucket& bucket = *buckets_.back();
  bucket.whole_rows = bucket.rows = elements / width;
  bucket.width = width;
  bucket.pipeline = pipeline;
  bucket.row_sparse = row_sparse;
  bucket.names = hash_of_names(parameters);
  if (hosts_) parameters = take_part(bucket, std::move(parameters));
  std::size_t end = 0;
  for (const auto& parameter : parameters) {
    bucket.parameter_ends.push_back(end += parameter.elements);
    bucket.parameter_rows.push_back(parameter.rows);
    bucket.parameter_names.push_back(parameter.name);
  }
  layouts_.push_back(std::move(parameters));
  if (pipelines_[pipeline].feedback) undelivered_->residuals.open(bucket.executor, id, bucket.elements());
  return id;
}

/// In a reduce-scatter a bucket is parts of the same length, one for each rank.
void Session::require_parts(std::size_t elements, bool row_sparse) const {
  const auto world = static_cast<std::size_t>(communicator_.size());
  if (!options_.reduce_scatter) return;
  if (row_sparse) {
    throw std::invalid_argument(
        "a bucket of rows in a session that leaves each rank its part of the mean: "
        "leave out reduce_scatter, or give the rows a session of their own");
  }
  if (elements % world == 0) return;
  throw std::invalid_argument("a bucket of " + std::to_string(elements) + " elements has no " +
                              std::to_string(world) +
                              " equal parts, one for each rank: fill it up with zeros");
}

BucketId Session::add_bucket(BucketLayout parameters) {
  return add(std::move(parameters), 1, 0, false);
}

BucketId Session::add_rows(std::string parameter, std::size_t rows, std::size_t width) {
  if (width == 0) throw std::invalid_argument("rows of width 0 in '" + parameter + "': a row needs values");
  return add({{std::move(parameter), rows * width, rows}}, width, pipelines_.size() - 1, true);
}

void Session::start() {
  refuse_after_failure();
  for (const auto& pipeline : pipelines_) pipeline.synchronizer->require_world(communicator_.size());
  try {
    const std::string hosts =
        hosts_ ? " ranks_per_host=" + std::to_string(options_.ranks_per_host) : std::string();
    compare_configurations(all_ranks(), {.spec = spec(),
                                         .seed = options_.seed,
                                         .step = step_,
                                         .buckets = hosts_ ? whole_ : layouts_,
                                         .other = options_.configuration + hosts,
                                         .occasion = options_.occasion,
                                         .shown_spec = [this](const std::string& spec) {
                                           return options_.registry->readable(spec);
                                         }});
    if (options_.shards != nullptr) compare_shards();
  } catch (const CommError& error) {
    failure_ = {std::string("at the start: ") + error.what(), true};
    throw;
  } catch (const CorruptFrame& error) {
    failure_ = {std::string("at the start: ") + error.what(), true};
    throw;
  }
  started_ = true;
}

Session::Bucket& Session::open(BucketId bucket, bool rows) {
  finish_keeping();
  refuse_after_failure();
  if (!started_) start();
  if (bucket >= buckets_.size()) {
    throw std::invalid_argument("bucket " + std::to_string(bucket) + ": " + std::to_string(buckets_.size()) +
                                " were added");
  }
  Bucket& own = *buckets_[bucket];
  if (own.row_sparse != rows) {
    throw std::invalid_argument("bucket " + std::to_string(bucket) +
                                (rows ? " was added by add_bucket: synchronize it as a dense span"
                                      : " was added by add_rows: use synchronize_rows"));
  }
  return own;
}

namespace {

/// Sending and waiting are charged to a step's clock; at its end all of its time has been charged.
class ClockOf {
 public:
  ClockOf(Communicator& communicator, StepClock& clock) : communicator_(communicator), clock_(clock) {
    communicator_.set_clock(&clock_);
  }
  ~ClockOf() {
    communicator_.set_clock(nullptr);
    clock_.enter(Phase::exchange);
  }
  ClockOf(const ClockOf&) = delete;
  ClockOf& operator=(const ClockOf&) = delete;

 private:
  Communicator& communicator_;
  StepClock& clock_;
};

/// Of a bucket without elements nothing is exchanged.
template <class Body>
void within_exchange(Communicator& communicator, const ExchangeCall& call, Body&& body) {
  if (call.elements == 0) return body();
  Exchange exchange(communicator, call);
  body();
  exchange.finish();
}

}  // namespace

/// Of an exchange, as other ranks are told.
std::string Session::kind_of(const Bucket& bucket, std::string_view type) const {
  if (bucket.row_sparse) return "rows";
  if (options_.reduce_scatter) return "reduce-scatter";
  return "dense" + (type.empty() ? "" : " " + std::string(type));
}

/// A bucket's step, of which nothing has been done.
Step Session::begin(Bucket& own, BucketId bucket, Span<float> residual) {
  own.workspace.reset();
  own.scratch.reset();
  own.host_workspace.reset();
  Step step{.communicator = communicator_,
            .executor = own.executor,
            .workspace = own.workspace,
            .index = step_,
            .seed = options_.seed,
            .learning_rate = learning_rate_,
            .loss_scale = loss_scale_,
            .waited_seconds = waited_,
            .reduce_scatter = options_.reduce_scatter,
            .sharing = options_.sharing,
            .parameter_ends = own.parameter_ends,
            .parameter_rows = own.parameter_rows,
            .parameter_names = own.parameter_names,
            .scratch = own.executor.memory() == Memory::host ? own.workspace : own.scratch};
  const auto& begins = own.parts.begins;
  const bool all_have = std::ranges::adjacent_find(begins) == begins.end();
  if (hosts_ && all_have) step.shards = &hosts_->inside();
  if (own.shards_have) step.shards = options_.shards;
  if (turns(own)) step.turn = {residual, undelivered_->residuals.next(bucket)};
  step.report.bucket = bucket;
  step.report.step = step_;
  step.report.elements = own.elements();
  step.report.raw_bytes = own.elements() * sizeof(float);
  step.report.formula_bytes = StepReport::kUnknown;
  return step;
}

/// type: of the gradient, empty for float32. run(own, residual, pending, step): what differs between dense
/// buckets and rows. residual: for a system with feedback. pending: what a system without has to deliver
/// besides its gradient; empty where there is nothing.
template <class Run>
void Session::run(BucketId bucket, std::string_view type, Run&& run) {
  Bucket& own = *buckets_[bucket];
  const bool feedback = pipelines_[own.pipeline].feedback;
  const Span<const float> pending = feedback ? Span<const float>() : undelivered_->residuals.find(bucket);
  const auto residual =
      feedback ? undelivered_->residuals.open(own.executor, bucket, own.elements()) : Span<float>();
  const Traffic before = communicator_.traffic();
  const std::uint64_t beside_before = bytes_beside();
  const std::uint64_t guards_before = communicator_.guard_bytes();
  const std::uint64_t expected_bytes = payload_bytes(bucket);
  Step step = begin(own, bucket, residual);
  try {
    const ClockOf clocked(communicator_, step.clock);
    own.ran = true;
    const std::string kind = kind_of(own, type);
    const auto call = [&](const BucketLayout& layout, std::size_t elements) {
      return ExchangeCall{.bucket = bucket,
                          .step = step_,
                          .elements = elements,
                          .kind = kind,
                          .names = own.names,
                          .first_name = layout.empty() ? std::string_view() : layout.front().name};
    };
    if (hosts_) {
      const ClockOf clocked_inside(hosts_->inside(), step.clock);
      const ClockOf clocked_all(hosts_->all(), step.clock);
      within_exchange(hosts_->all(), call(whole_[bucket], own.whole_elements()), [&] {
        const HostGroups::Joined joined(*hosts_, bucket, step_);
        run(own, residual, pending, step);
      });
    } else {
      within_exchange(communicator_, call(layouts_[bucket], own.elements()), [&] {
        if (step.shards == nullptr) return run(own, residual, pending, step);
        // Their shards may be of other lengths.
        const ClockOf clocked_shards(*step.shards, step.clock);
        within_exchange(*step.shards, call(layouts_[bucket], 1), [&] { run(own, residual, pending, step); });
      });
    }
  } catch (...) {
    fail(bucket, std::current_exception());
    throw;
  }
  if (step.turn.written()) undelivered_->residuals.turn(bucket);
  step.report.take_seconds(step.clock);
  step.report.wire = communicator_.traffic() - before;
  step.report.frame_header_bytes += communicator_.guard_bytes() - guards_before;
  step.report.host_bytes_sent = bytes_beside() - beside_before;
  if (step.report.formula_bytes == StepReport::kUnknown) step.report.formula_bytes = expected_bytes;
  own.report = step.report;
  finite_ = finite_ && step.report.finite;
  if (!pending.empty() && step.report.finite) undelivered_->residuals.erase(bucket);
}

namespace {

void require_size(BucketId bucket, std::size_t declared, std::size_t given) {
  if (given == declared) return;
  throw std::invalid_argument("bucket " + std::to_string(bucket) + " has " + std::to_string(declared) +
                              " elements, the gradient " + std::to_string(given));
}

}  // namespace

const StepReport& Session::synchronize(BucketId bucket, Span<float> gradient) {
  const Bucket& declared = open(bucket, false);
  require_size(bucket, declared.whole_elements(), gradient.size());
  if (gradient.memory() != declared.executor.memory() && !gradient.empty()) {
    throw std::invalid_argument(
        "bucket " + std::to_string(bucket) +
        (gradient.memory() == Memory::cuda
             ? "'s gradient lies on a CUDA device, the session works on the host: set "
               "SessionOptions::cuda_device"
             : "'s gradient lies in host memory, the session's are on a CUDA device: leave out "
               "SessionOptions::cuda_device, or hand over memory of the device"));
  }
  run(bucket, {}, [&](Bucket& own, Span<float> residual, Span<const float> pending, Step& step) {
    synchronize_whole(own, bucket, gradient, residual, pending, step);
  });
  return declared.report;
}

const StepReport& Session::synchronize(BucketId bucket, TypedGradient& gradient) {
  const Bucket& declared = open(bucket, false);
  require_size(bucket, declared.whole_elements(), gradient.size());
  run(bucket, gradient.type(), [&](Bucket& own, Span<float> residual, Span<const float> pending, Step& step) {
    step.report.raw_bytes = own.elements() * gradient.element_bytes();
    Synchronizer& system = *pipelines_[own.pipeline].synchronizer;
    const auto sum = [&] {
      step.clock.enter(Phase::exchange);
      step.report.finite = gradient.sum(step);
      step.report.formula_bytes = communicator_.ring_sent_bytes(gradient.size(), gradient.element_bytes());
    };
    const bool may =
        gradient.sums() && gradient.size() != 0 && !options_.reduce_scatter && !hosts_ && pending.empty();
    if (may && system.sum_in_type(bucket, residual, step, sum)) return;
    synchronize_whole(own, bucket, gradient.floats(), residual, pending, step);
  });
  return declared.report;
}

void Session::synchronize_floats(Bucket& own, BucketId bucket, Span<float> gradient, Span<float> residual,
                                 Span<const float> pending, Step& step) {
  if (gradient.empty()) {
    step.report.formula_bytes = 0;
    return;
  }
  if (!pending.empty()) thinwire::add(own.executor, gradient, pending);
  pipelines_[own.pipeline].synchronizer->synchronize(bucket, gradient, residual, step);
  if (!step.report.finite) fill(step.executor, gradient, std::numeric_limits<float>::quiet_NaN());
  own.executor.wait();
}

RowSparse Session::synchronize_rows(BucketId bucket, const RowSparse& gradient) {
  const Bucket& declared = open(bucket, true);
  if (gradient.rows != declared.whole_rows || gradient.width != declared.width) {
    throw std::invalid_argument(
        "bucket " + std::to_string(bucket) + " has " + std::to_string(declared.whole_rows) +
        " rows of width " + std::to_string(declared.width) + ", the gradient " +
        std::to_string(gradient.rows) + " of width " + std::to_string(gradient.width));
  }
  require_rows(gradient);
  RowSparse mean;
  run(bucket, {}, [&](Bucket& own, Span<float> residual, Span<const float> pending, Step& step) {
    if (gradient.rows == 0) {
      mean = gradient;
      step.report.formula_bytes = 0;
      return;
    }
    const RowSparse merged = merge_repeated_rows(step.executor, step.workspace, gradient);
    mean = hosts_ ? synchronize_table_by_hosts(own, bucket, merged, residual, pending, step)
                  : synchronize_table(own, bucket, merged, residual, pending, step);
    if (!step.report.finite) mean = row_of_nan(step.workspace, gradient);
  });
  return mean;
}

/// gradient: of this rank's part, ascending and distinct.
RowSparse Session::synchronize_table(Bucket& own, BucketId bucket, RowSparse gradient, Span<float> residual,
                                     Span<const float> pending, Step& step) {
  if (gradient.rows == 0) {
    step.report.formula_bytes = 0;
    return gradient;
  }
  Synchronizer& system = *pipelines_[own.pipeline].synchronizer;
  if (!pending.empty()) gradient = add_residual_rows(gradient, pending, step);
  const RowSparse mean = system.takes_rows()
                             ? system.synchronize_rows(bucket, gradient, residual, step)
                             : synchronize_densified(system, bucket, gradient, residual, step);
  const auto rows = static_cast<double>(own.rows);
  step.report.density_in = static_cast<double>(gradient.size()) / rows;
  step.report.density_out = static_cast<double>(step.report.finite ? mean.size() : 1) / rows;
  return mean;
}

void Session::synchronize(Span<BucketGradient> gradients) {
  for (BucketGradient& one : gradients) {
    if (one.bucket < buckets_.size() && buckets_[one.bucket]->row_sparse) {
      one.mean_rows = synchronize_rows(one.bucket, one.rows);
    } else {
      synchronize(one.bucket, one.dense);
    }
  }
}

const StepReport& Session::report(BucketId bucket) const {
  return buckets_.at(bucket)->report;
}

std::string Session::spec() const {
  if (pipelines_.size() == 1) return pipelines_[0].spec;
  return "rows=" + pipelines_[1].spec + ",dense=" + pipelines_[0].spec;
}

std::vector<Change> Session::changes() const {
  undelivered_->keeper.wait();
  std::vector<Change> all;
  for (const Pipeline& pipeline : pipelines_) add_changes(all, pipeline.synchronizer->changes());
  return all;
}

std::vector<Change> Session::explanation() const {
  undelivered_->keeper.wait();
  std::vector<Change> all;
  for (const Pipeline& pipeline : pipelines_) add_changes(all, pipeline.synchronizer->explanation());
  return all;
}

std::string Session::explain() const {
  return to_text(explanation());
}

std::vector<std::vector<float>> Session::decisions() const {
  undelivered_->keeper.wait();
  std::vector<std::vector<float>> all;
  for (const Pipeline& pipeline : pipelines_) all.push_back(pipeline.synchronizer->decision());
  return all;
}

void Session::follow(const std::vector<std::vector<float>>& decisions) {
  finish_keeping();
  for (std::size_t i = 0; i < pipelines_.size() && i < decisions.size(); ++i) {
    if (!decisions[i].empty()) pipelines_[i].synchronizer->follow(decisions[i]);
  }
}

double Session::step_squares() const {
  double sum = 0;
  for (const Pipeline& pipeline : pipelines_) sum += pipeline.synchronizer->step_squares();
  return sum;
}

void Session::others_changed() {
  finish_keeping();
  for (const Pipeline& pipeline : pipelines_) pipeline.synchronizer->others_changed();
}

const Pipeline& Session::pipeline(BucketId bucket) const {
  return pipelines_[buckets_.at(bucket)->pipeline];
}

std::uint64_t Session::payload_bytes(BucketId bucket) const {
  undelivered_->keeper.wait();
  const Bucket& own = *buckets_.at(bucket);
  const Pipeline& pipeline = pipelines_[own.pipeline];
  return pipeline.synchronizer->payload_bytes({.elements = own.elements(),
                                               .row_width = own.width,
                                               .row_sparse = own.row_sparse,
                                               .world_size = communicator_.size(),
                                               .rank = communicator_.rank(),
                                               .bucket = bucket,
                                               .step = step_,
                                               .feedback = pipeline.feedback,
                                               .reduce_scatter = options_.reduce_scatter,
                                               .parameter_ends = own.parameter_ends,
                                               .parameter_rows = own.parameter_rows,
                                               .parameter_names = own.parameter_names});
}

Span<const float> Session::residual(BucketId bucket) const {
  return undelivered_->residuals.find(bucket);
}

bool Session::variance_is_frozen() const {
  undelivered_->keeper.wait();
  return std::ranges::any_of(
      pipelines_, [this](const Pipeline& one) { return one.synchronizer->freezes_variance(step_); });
}

}  // namespace thinwire
