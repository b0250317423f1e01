#include "thinwire/session.h"

#include <algorithm>
#include <limits>
#include <set>
#include <stdexcept>

#include "core/bucket_vectors.h"
#include "exchange/densify.h"
#include "exchange/rows.h"
#include "kernels/dense/dense.h"
#include "session/configuration.h"
#include "thinwire/cuda.h"

namespace thinwire {

/// What belongs to one bucket.
struct Session::Bucket {
  explicit Bucket(Executor& on) : executor(on), workspace(on.shared_allocator()), scratch(on.allocator()) {}

  Executor& executor;
  std::size_t rows = 0;
  std::size_t width = 1;
  bool row_sparse = false;
  std::size_t pipeline = 0;
  std::vector<std::size_t> parameter_ends;
  std::vector<std::size_t> parameter_rows;
  Workspace workspace;
  Workspace scratch;  // of a device; a step on the host takes all from its workspace
  StepReport report;

  std::size_t elements() const { return rows * width; }
};

struct Session::Store {
  BucketVectors residuals{kResidual};
  BucketVectors kept{{.name = "kept"}};  // by keep_residual; never saved
  std::set<std::string, std::less<>> parameters;
};

Session::Session(std::string_view spec, Communicator& communicator, SessionOptions options)
    : communicator_(communicator),
      options_(std::move(options)),
      executor_(options_.cuda_device ? make_cuda_executor(*options_.cuda_device, options_.threads)
                                     : make_cpu_executor(options_.threads)),
      host_executor_(options_.cuda_device ? make_cpu_executor(options_.threads) : nullptr),
      store_(std::make_unique<Store>()) {
  const Registry& registry = options_.registry != nullptr ? *options_.registry : builtin_registry();
  const SpecPair pair = parse_spec_pair(spec);
  pipelines_.push_back(registry.make(pair.dense));
  if (pair.rows != pair.dense) pipelines_.push_back(registry.make(pair.rows));
}

Session::~Session() = default;

BucketId Session::add(BucketLayout parameters, std::size_t width, std::size_t pipeline, bool row_sparse) {
  if (started_) throw std::invalid_argument("buckets are added before start(): declare every bucket first");
  std::size_t elements = 0;
  std::vector<std::size_t> ends;
  std::vector<std::size_t> leading;
  for (const auto& parameter : parameters) {
    if (!store_->parameters.insert(parameter.name).second) {
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
    ends.push_back(elements);
    leading.push_back(parameter.rows);
  }
  if (elements / width > std::numeric_limits<std::uint32_t>::max()) {
    throw std::invalid_argument("a bucket of " + std::to_string(elements / width) +
                                (width == 1 ? " elements" : " rows") +
                                ": indices are 32 bits, split it into buckets below 2^32");
  }
  const auto id = static_cast<BucketId>(buckets_.size());
  buckets_.push_back(std::make_unique<Bucket>(executor_of(row_sparse)));
  Bucket& bucket = *buckets_.back();
  bucket.rows = elements / width;
  bucket.width = width;
  bucket.pipeline = pipeline;
  bucket.row_sparse = row_sparse;
  bucket.parameter_ends = std::move(ends);
  bucket.parameter_rows = std::move(leading);
  layouts_.push_back(std::move(parameters));
  if (pipelines_[pipeline].feedback) store_->residuals.open(bucket.executor, id, elements);
  return id;
}

BucketId Session::add_bucket(BucketLayout parameters) {
  return add(std::move(parameters), 1, 0, false);
}

BucketId Session::add_rows(std::string parameter, std::size_t rows, std::size_t width) {
  if (width == 0) throw std::invalid_argument("rows of width 0 in '" + parameter + "': a row needs values");
  return add({{std::move(parameter), rows * width, rows}}, width, pipelines_.size() - 1, true);
}

void Session::start() {
  for (const auto& pipeline : pipelines_) pipeline.synchronizer->require_world(communicator_.size());
  compare_configurations(communicator_, {.spec = spec(),
                                         .seed = options_.seed,
                                         .step = step_,
                                         .buckets = layouts_,
                                         .other = options_.configuration});
  started_ = true;
}

Session::Bucket& Session::open(BucketId bucket, bool rows) {
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

}  // namespace

/// run(own, residual, step): what differs between dense buckets and rows.
template <class Run>
void Session::run(BucketId bucket, Run&& run) {
  Bucket& own = *buckets_[bucket];
  const bool feedback = pipelines_[own.pipeline].feedback;
  const auto residual =
      feedback ? store_->residuals.open(own.executor, bucket, own.elements()) : Span<float>();
  communicator_.set_context(bucket, step_);
  own.workspace.reset();
  own.scratch.reset();
  Step step{.communicator = communicator_,
            .executor = own.executor,
            .workspace = own.workspace,
            .index = step_,
            .seed = options_.seed,
            .learning_rate = learning_rate_,
            .parameter_ends = own.parameter_ends,
            .parameter_rows = own.parameter_rows,
            .scratch = own.executor.memory() == Memory::host ? own.workspace : own.scratch};
  step.report.bucket = bucket;
  step.report.step = step_;
  step.report.elements = own.elements();
  step.report.raw_bytes = own.elements() * sizeof(float);
  step.report.formula_bytes = StepReport::kUnknown;
  const Traffic before = communicator_.traffic();
  const std::uint64_t expected_bytes = payload_bytes(bucket);
  step.clock = StepClock();
  {
    const ClockOf clocked(communicator_, step.clock);
    run(own, residual, step);
  }
  StepReport& report = step.report;
  report.seconds_compress = step.clock.seconds(Phase::compress);
  report.seconds_decompress = step.clock.seconds(Phase::decompress);
  report.seconds_wait = step.clock.seconds(Phase::wait);
  report.seconds_communicate = step.clock.seconds(Phase::exchange) + report.seconds_wait;
  report.seconds_total = report.seconds_compress + report.seconds_decompress + report.seconds_communicate;
  report.wire = communicator_.traffic() - before;
  if (report.formula_bytes == StepReport::kUnknown) report.formula_bytes = expected_bytes;
  own.report = report;
}

const StepReport& Session::synchronize(BucketId bucket, Span<float> gradient) {
  const Bucket& declared = open(bucket, false);
  if (gradient.size() != declared.elements()) {
    throw std::invalid_argument("bucket " + std::to_string(bucket) + " has " +
                                std::to_string(declared.elements()) + " elements, the gradient " +
                                std::to_string(gradient.size()));
  }
  if (gradient.memory() != declared.executor.memory() && !gradient.empty()) {
    throw std::invalid_argument(
        "bucket " + std::to_string(bucket) +
        (gradient.memory() == Memory::cuda
             ? "'s gradient lies on a CUDA device, the session works on the host: set "
               "SessionOptions::cuda_device"
             : "'s gradient lies in host memory, the session's are on a CUDA device: leave out "
               "SessionOptions::cuda_device, or hand over memory of the device"));
  }
  run(bucket, [&](Bucket& own, Span<float> residual, Step& step) {
    if (gradient.empty()) {
      step.report.formula_bytes = 0;
      return;
    }
    pipelines_[own.pipeline].synchronizer->synchronize(bucket, gradient, residual, step);
    if (!step.report.finite) fill(step.executor, gradient, std::numeric_limits<float>::quiet_NaN());
    own.executor.wait();
  });
  return declared.report;
}

RowSparse Session::synchronize_rows(BucketId bucket, const RowSparse& gradient) {
  const Bucket& declared = open(bucket, true);
  if (gradient.rows != declared.rows || gradient.width != declared.width) {
    throw std::invalid_argument("bucket " + std::to_string(bucket) + " has " + std::to_string(declared.rows) +
                                " rows of width " + std::to_string(declared.width) + ", the gradient " +
                                std::to_string(gradient.rows) + " of width " +
                                std::to_string(gradient.width));
  }
  require_rows(gradient);
  RowSparse mean;
  run(bucket, [&](Bucket& own, Span<float> residual, Step& step) {
    if (gradient.rows == 0) {
      mean = gradient;
      step.report.formula_bytes = 0;
      return;
    }
    Synchronizer& system = *pipelines_[own.pipeline].synchronizer;
    const RowSparse merged = merge_repeated_rows(step.executor, step.workspace, gradient);
    mean = system.takes_rows() ? system.synchronize_rows(bucket, merged, residual, step)
                               : synchronize_densified(system, bucket, merged, residual, step);
    if (!step.report.finite) mean = row_of_nan(step.workspace, gradient);
    step.report.density_in = static_cast<double>(merged.size()) / static_cast<double>(declared.rows);
    step.report.density_out = static_cast<double>(mean.size()) / static_cast<double>(declared.rows);
  });
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

const Pipeline& Session::pipeline(BucketId bucket) const {
  return pipelines_[buckets_.at(bucket)->pipeline];
}

std::uint64_t Session::payload_bytes(BucketId bucket) const {
  const Bucket& own = *buckets_.at(bucket);
  const Pipeline& pipeline = pipelines_[own.pipeline];
  return pipeline.synchronizer->payload_bytes({.elements = own.elements(),
                                               .row_width = own.width,
                                               .row_sparse = own.row_sparse,
                                               .world_size = communicator_.size(),
                                               .rank = communicator_.rank(),
                                               .step = step_,
                                               .feedback = pipeline.feedback,
                                               .parameter_ends = own.parameter_ends,
                                               .parameter_rows = own.parameter_rows});
}

Span<const float> Session::residual(BucketId bucket) const {
  return store_->residuals.find(bucket);
}

bool Session::add_to_residual(BucketId bucket, Span<const float> values) {
  if (!pipeline(bucket).feedback) return false;
  const Bucket& own = *buckets_[bucket];
  if (values.size() != own.elements()) {
    throw std::invalid_argument("bucket " + std::to_string(bucket) + " has " +
                                std::to_string(own.elements()) + " elements, what is added to its residual " +
                                std::to_string(values.size()));
  }
  const Span<float> residual = store_->residuals.open(own.executor, bucket, own.elements());
  thinwire::add(own.executor, residual, values);
  own.executor.wait();
  return true;
}

void Session::keep_residual(BucketId bucket) {
  const Span<const float> residual = store_->residuals.find(bucket);
  if (residual.empty()) return;
  Executor& executor = buckets_[bucket]->executor;
  copy(executor, residual, store_->kept.open(executor, bucket, residual.size()));
}

void Session::restore_residual(BucketId bucket) {
  const Span<const float> kept = store_->kept.find(bucket);
  if (kept.empty()) return;
  Executor& executor = buckets_[bucket]->executor;
  copy(executor, kept, store_->residuals.open(executor, bucket, kept.size()));
}

std::size_t Session::workspace_allocations() const {
  std::size_t total = 0;
  for (const auto& bucket : buckets_) {
    total += bucket->workspace.allocations() + bucket->scratch.allocations();
  }
  return total;
}

void Session::save(StateWriter& writer) const {
  writer.put("spec", spec());
  writer.put("seed", options_.seed);
  writer.put("step", step_);
  BucketWriter buckets(writer, layouts_);
  store_->residuals.save(buckets);
  for (const auto& pipeline : pipelines_) pipeline.synchronizer->save(buckets);
}

void Session::load(const StateReader& reader) {
  const std::string saved = reader.get_text("spec");
  if (saved != spec()) {
    throw std::runtime_error("the state was saved by '" + saved + "', this session runs '" + spec() +
                             "': resume with the same spec");
  }
  if (const std::uint64_t seed = reader.get_integer("seed"); seed != options_.seed) {
    throw std::runtime_error("the state was saved with seed " + std::to_string(seed) +
                             ", this session has seed " + std::to_string(options_.seed) +
                             ": resume with the same seed");
  }
  const BucketReader buckets(reader, layouts_);
  const std::uint64_t step = reader.get_integer("step");
  std::vector<std::vector<float>> residuals(buckets_.size());
  for (BucketId bucket = 0; bucket < buckets.buckets(); ++bucket) {
    if (!pipeline(bucket).feedback) continue;
    residuals[bucket].resize(buckets_[bucket]->elements());
    if (!buckets.elements(kResidual, bucket, residuals[bucket]) && !residuals[bucket].empty()) {
      throw std::runtime_error("the state has no residual of parameter '" + layouts_[bucket].front().name +
                               "'");
    }
  }
  for (std::size_t i = 0; i < pipelines_.size(); ++i) {
    std::vector<bool> own(buckets_.size());
    for (std::size_t bucket = 0; bucket < own.size(); ++bucket) own[bucket] = buckets_[bucket]->pipeline == i;
    pipelines_[i].synchronizer->load(BucketReader(reader, layouts_, std::move(own)));
  }
  // Only now that everything has been read: a state that does not fit leaves the session as it was.
  for (BucketId bucket = 0; bucket < buckets_.size(); ++bucket) {
    if (!pipeline(bucket).feedback) continue;
    Executor& executor = buckets_[bucket]->executor;
    copy(executor, Span<const float>(residuals[bucket]),
         store_->residuals.open(executor, bucket, buckets_[bucket]->elements()));
  }
  step_ = step;
  started_ = false;
}

}  // namespace thinwire
