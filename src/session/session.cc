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
    throw std::invalid_argument("'" + pipeline.spec +
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

/// The bucket becomes this rank's part of it, whose parameters are returned.
BucketLayout Session::take_part(Bucket& bucket, BucketLayout whole) {
  BucketLayout part;
  if (bucket.row_sparse) {
    bucket.parts.begins = hosts_->parts_of_rows(bucket.whole_rows);
    const std::size_t place = hosts_->place();
    bucket.rows = bucket.parts.begins[place + 1] - bucket.parts.begins[place];
    if (bucket.rows != 0) part = {{whole[0].name, bucket.rows * bucket.width, bucket.rows}};
  } else {
    bucket.parts = hosts_->parts(whole);
    part = bucket.parts.own;
    bucket.rows = 0;
    for (const Parameter& one : part) bucket.rows += one.elements;
  }
  whole_.push_back(std::move(whole));
  return part;
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
                                         .other = options_.configuration + hosts});
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

/// Which buckets all shards have something of.
void Session::compare_shards() {
  std::string mine;
  for (const auto& bucket : buckets_) mine += bucket->elements() == 0 ? '0' : '1';
  constexpr std::size_t kMostBuckets = std::size_t{1} << 24;
  const auto all = gather_bytes(*options_.shards, {.step = step_, .kind = "shards"}, mine, kMostBuckets);
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].size() != mine.size()) {
      throw std::runtime_error("rank " + std::to_string(rank) + " of SessionOptions::shards has " +
                               std::to_string(all[rank].size()) + " buckets, this one " +
                               std::to_string(mine.size()) + ": give all shards the same buckets");
    }
    for (std::size_t i = 0; i < mine.size(); ++i) {
      if (rank == 0) buckets_[i]->shards_have = true;
      buckets_[i]->shards_have = buckets_[i]->shards_have && all[rank][i] == '1';
    }
  }
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

Communicator& Session::all_ranks() const {
  return hosts_ ? hosts_->all() : communicator_;
}

/// What was sent so far to others than those among which the system works.
std::uint64_t Session::bytes_beside() const {
  if (hosts_) return hosts_->all().traffic().sent_bytes - communicator_.traffic().sent_bytes;
  return options_.shards == nullptr ? 0 : options_.shards->traffic().sent_bytes;
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

/// Where the system refuses, or not all of its means are finite, the step is finite on no rank of the host:
/// also on those that had nothing for the system.
template <class Synchronize>
void Session::told_to_host(Bucket& own, Step& step, Synchronize&& synchronize) {
  try {
    synchronize();
  } catch (const std::invalid_argument&) {
    hosts_->all_say(own.host_workspace, false);
    throw;
  }
  step.report.finite = hosts_->all_say(own.host_workspace, step.report.finite);
}

/// gradient: of the whole bucket.
void Session::synchronize_whole(Bucket& own, BucketId bucket, Span<float> gradient, Span<float> residual,
                                Span<const float> pending, Step& step) {
  if (!hosts_) return synchronize_floats(own, bucket, gradient, residual, pending, step);
  if (gradient.empty()) {
    step.report.formula_bytes = 0;
    return;
  }
  const bool on_device = gradient.memory() != Memory::host;
  const HostGroups::Parts& parts = own.parts;
  const auto part_at = [&](Span<float> all, std::size_t place) {
    return all.subspan(parts.begins[place], parts.begins[place + 1] - parts.begins[place]);
  };
  const Span<float> all = (on_device ? own.scratch : own.host_workspace).take<float>(gradient.size());
  for (std::size_t place = 0; place < parts.slices.size(); ++place) {
    gather_chunks(own.executor, parts.slices[place], gradient, part_at(all, place));
  }
  const Span<float> on_host = on_device ? own.host_workspace.take<float>(all.size()) : all;
  if (on_device) copy<float>(own.executor, all, on_host);
  hosts_->reduce(executor_of(true), own.host_workspace, on_host, parts.begins);
  const std::size_t place = hosts_->place();
  const Span<float> part = part_at(all, place);
  if (on_device) copy<float>(own.executor, part_at(on_host, place), part);
  told_to_host(own, step, [&] { synchronize_floats(own, bucket, part, residual, pending, step); });
  if (!step.report.finite) {
    fill(own.executor, gradient, std::numeric_limits<float>::quiet_NaN());
    own.executor.wait();
    return;
  }
  if (on_device) copy<float>(own.executor, part, part_at(on_host, place));
  hosts_->gather(own.host_workspace, on_host, parts.begins);
  if (on_device) copy<float>(own.executor, on_host, all);
  for (std::size_t other = 0; other < parts.slices.size(); ++other) {
    scatter_chunks(own.executor, parts.slices[other], part_at(all, other), gradient, {});
  }
  own.executor.wait();
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

RowSparse Session::synchronize_table_by_hosts(Bucket& own, BucketId bucket, const RowSparse& gradient,
                                              Span<float> residual, Span<const float> pending, Step& step) {
  Workspace& workspace = own.host_workspace;
  const RowSparse part = hosts_->reduce_rows(step.executor, workspace, gradient, own.parts.begins);
  RowSparse mean;
  told_to_host(own, step, [&] { mean = synchronize_table(own, bucket, part, residual, pending, step); });
  return step.report.finite ? hosts_->gather_rows(workspace, mean, own.parts.begins) : gradient;
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

void Session::scale_state(float factor) {
  StateWriter writer;
  save(writer);
  const bool started = started_;
  const StateReader scaled(scaled_state(StateReader(std::move(writer)), factor, *options_.registry));
  restore(scaled, From::own_step);
  keep_all();
  started_ = started;
}

void Session::save(StateWriter& writer) const {
  if (!torn_.empty()) {
    throw std::runtime_error("step " + std::to_string(step_) + " has failed (" +
                             (failure_ ? failure_->text : "its error was passed over") + ") and " + torn_ +
                             ": there is no state to save; go on from the last checkpoint");
  }
  for (BucketId bucket = 0; bucket < buckets_.size(); ++bucket) {
    if (!buckets_[bucket]->ran) continue;
    throw std::logic_error("bucket " + std::to_string(bucket) + " was synchronized in step " +
                           std::to_string(step_) +
                           ", which is under way: next_step() ends it, undo_step() "
                           "gives it up; save after that");
  }
  save_within_step(writer);
}

void Session::save_within_step(StateWriter& writer) const {
  undelivered_->keeper.wait();
  writer.put("spec", spec());
  writer.put("seed", options_.seed);
  writer.put("step", step_);
  if (hosts_) writer.put("ranks_per_host", static_cast<std::uint64_t>(options_.ranks_per_host));
  BucketWriter buckets(writer, layouts_);
  undelivered_->residuals.save(buckets);
  for (const auto& pipeline : pipelines_) pipeline.synchronizer->save(buckets);
}

/// The spec as this version writes it: an earlier one knew fewer options.
std::string Session::canonical(const std::string& saved) const {
  try {
    return options_.registry->canonical(saved);
  } catch (const std::invalid_argument&) {
    return saved;
  }
}

/// Throws std::runtime_error for a state of another spec or seed.
void Session::check_origin(const StateReader& reader) const {
  if (const std::string saved = reader.get_text("spec"); saved != spec() && canonical(saved) != spec()) {
    throw std::runtime_error("the state was saved by '" + saved + "', this session runs '" + spec() +
                             "': resume with the same spec");
  }
  if (const std::uint64_t seed = reader.get_integer("seed"); seed != options_.seed) {
    throw std::runtime_error("the state was saved with seed " + std::to_string(seed) +
                             ", this session has seed " + std::to_string(options_.seed) +
                             ": resume with the same seed");
  }
}

/// Of each bucket, what the state has not delivered of it; empty where there is nothing and need be nothing.
std::vector<std::vector<float>> Session::read_residuals(const StateReader& reader, From from) const {
  const BucketReader buckets(reader, layouts_);
  std::vector<std::vector<float>> residuals(buckets_.size());
  for (BucketId bucket = 0; bucket < buckets.buckets(); ++bucket) {
    const bool feedback = pipeline(bucket).feedback;
    const bool needed = feedback && from != From::other_spec;
    std::vector<float> values(buckets_[bucket]->elements());
    const bool found = buckets.elements(kResidual, bucket, values,
                                        needed ? BucketReader::Absent::error : BucketReader::Absent::zeros);
    if (needed && !found && !values.empty()) {
      throw std::runtime_error("the state has no residual of parameter '" + layouts_[bucket].front().name +
                               "'");
    }
    if (found || feedback) residuals[bucket] = std::move(values);
  }
  return residuals;
}

void Session::restore(const StateReader& reader, From from) {
  finish_keeping();
  require_same_hosts(reader, options_.ranks_per_host);
  const std::uint64_t step = reader.get_integer("step");
  const auto residuals = read_residuals(reader, from);
  const auto kinds = from == From::other_spec ? BucketReader::Kinds::moving : BucketReader::Kinds::all;
  try {
    for (std::size_t i = 0; i < pipelines_.size(); ++i) {
      std::vector<bool> own(buckets_.size());
      for (std::size_t bucket = 0; bucket < own.size(); ++bucket)
        own[bucket] = buckets_[bucket]->pipeline == i;
      BucketReader buckets(reader, layouts_, std::move(own), kinds);
      buckets.set_rescaled(from == From::own_step);
      pipelines_[i].synchronizer->load(buckets);
    }
  } catch (...) {
    // One system, or a stage, may have loaded before another refused.
    for (auto& own : buckets_) own->ran = own->elements() != 0;
    if (options_.undoes_steps) {
      undo();
    } else {
      torn_ = "loading a state failed, and without undoes_steps there is no copy of what was before";
      for (auto& own : buckets_) own->ran = false;
    }
    throw;
  }
  // Only now that everything has been read: a state that does not fit leaves the session as it was.
  for (BucketId bucket = 0; bucket < buckets_.size(); ++bucket) {
    Bucket& own = *buckets_[bucket];
    const Span<const float> values(residuals[bucket]);
    if (values.empty()) {
      undelivered_->residuals.erase(bucket);
    } else {
      copy(own.executor, values, undelivered_->residuals.replace(own.executor, bucket, values.size()));
    }
    own.ran = false;
  }
  step_ = step;
  started_ = false;
  finite_ = true;
  torn_.clear();
}

void Session::load(const StateReader& reader) {
  check_origin(reader);
  restore(reader, From::same_spec);
  keep_all();
}

void Session::take_over(const StateReader& reader) {
  restore(reader, From::other_spec);
  keep_all();
}

void Session::load_within_step(const StateReader& reader) {
  check_origin(reader);
  restore(reader, From::same_spec);
  for (auto& own : buckets_) own->ran = own->elements() != 0;
}

}  // namespace thinwire
