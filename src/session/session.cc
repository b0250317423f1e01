#include "thinwire/session.h"

#include <algorithm>
#include <limits>
#include <set>
#include <stdexcept>

#include "core/stopwatch.h"
#include "session/configuration.h"
#include "state/residuals.h"

namespace thinwire {

/// What belongs to one bucket.
struct Session::Bucket {
  std::size_t elements = 0;
  std::vector<std::size_t> parameter_ends;
  Workspace workspace;
  StepReport report;
};

struct Session::Store {
  Residuals residuals;
  std::set<std::string, std::less<>> parameters;
};

Session::Session(std::string_view spec, Communicator& communicator, SessionOptions options)
    : communicator_(communicator),
      options_(std::move(options)),
      pipeline_((options_.registry != nullptr ? *options_.registry : builtin_registry()).make(spec)),
      executor_(make_cpu_executor(options_.threads)),
      store_(std::make_unique<Store>()) {}

Session::~Session() = default;

BucketId Session::add_bucket(BucketLayout parameters) {
  if (started_) throw std::invalid_argument("add_bucket after start(): declare every bucket first");
  std::size_t elements = 0;
  std::vector<std::size_t> ends;
  for (const auto& parameter : parameters) {
    if (!store_->parameters.insert(parameter.name).second) {
      throw std::invalid_argument("two parameters are called '" + parameter.name +
                                  "': checkpoints need unique names");
    }
    elements += parameter.elements;
    ends.push_back(elements);
  }
  if (elements > std::numeric_limits<std::uint32_t>::max()) {
    throw std::invalid_argument("a bucket of " + std::to_string(elements) +
                                " elements: indices are 32 bits, split it into buckets below 2^32 elements");
  }
  const auto id = static_cast<BucketId>(buckets_.size());
  buckets_.push_back(std::make_unique<Bucket>());
  buckets_.back()->elements = elements;
  buckets_.back()->parameter_ends = std::move(ends);
  layouts_.push_back(std::move(parameters));
  if (pipeline_.feedback) store_->residuals.open(id, elements);
  return id;
}

void Session::start() {
  pipeline_.synchronizer->require_world(communicator_.size());
  compare_configurations(communicator_, {.spec = pipeline_.spec,
                                         .seed = options_.seed,
                                         .step = step_,
                                         .buckets = layouts_,
                                         .other = options_.configuration});
  started_ = true;
}

const StepReport& Session::synchronize(BucketId bucket, Span<float> gradient) {
  if (!started_) start();
  if (bucket >= buckets_.size()) {
    throw std::invalid_argument("bucket " + std::to_string(bucket) + ": " + std::to_string(buckets_.size()) +
                                " were added");
  }
  Bucket& own = *buckets_[bucket];
  if (gradient.size() != own.elements) {
    throw std::invalid_argument("bucket " + std::to_string(bucket) + " has " + std::to_string(own.elements) +
                                " elements, the gradient " + std::to_string(gradient.size()));
  }
  const auto residual = pipeline_.feedback ? store_->residuals.open(bucket, own.elements) : Span<float>();
  communicator_.set_context(bucket, step_);
  own.workspace.reset();
  Step step{.communicator = communicator_,
            .executor = *executor_,
            .workspace = own.workspace,
            .index = step_,
            .seed = options_.seed,
            .parameter_ends = own.parameter_ends};
  step.report.bucket = bucket;
  step.report.step = step_;
  step.report.elements = own.elements;
  step.report.raw_bytes = own.elements * sizeof(float);
  const Traffic before = communicator_.traffic();
  Stopwatch watch;
  pipeline_.synchronizer->synchronize(bucket, gradient, residual, step);
  StepReport& report = step.report;
  report.seconds_total = watch.seconds();
  report.seconds_communicate =
      std::max(0.0, report.seconds_total - report.seconds_compress - report.seconds_decompress);
  report.wire = communicator_.traffic() - before;
  own.report = report;
  return own.report;
}

std::uint64_t Session::payload_bytes(BucketId bucket) const {
  const Bucket& own = *buckets_.at(bucket);
  return pipeline_.synchronizer->payload_bytes({.elements = own.elements,
                                                .world_size = communicator_.size(),
                                                .rank = communicator_.rank(),
                                                .step = step_,
                                                .feedback = pipeline_.feedback,
                                                .parameter_ends = own.parameter_ends});
}

Span<const float> Session::residual(BucketId bucket) const {
  return store_->residuals.find(bucket);
}

std::size_t Session::workspace_allocations() const {
  std::size_t total = 0;
  for (const auto& bucket : buckets_) total += bucket->workspace.allocations();
  return total;
}

void Session::save(StateWriter& writer) const {
  writer.put("spec", pipeline_.spec);
  writer.put("seed", options_.seed);
  writer.put("step", step_);
  BucketWriter buckets(writer, layouts_);
  store_->residuals.save(buckets);
  pipeline_.synchronizer->save(buckets);
}

void Session::load(const StateReader& reader) {
  const std::string spec = reader.get_text("spec");
  if (spec != pipeline_.spec) {
    throw std::runtime_error("the state was saved by '" + spec + "', this session runs '" + pipeline_.spec +
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
  if (pipeline_.feedback) {
    for (BucketId bucket = 0; bucket < buckets.buckets(); ++bucket) {
      residuals[bucket].resize(buckets_[bucket]->elements);
      if (!buckets.elements("residual", bucket, residuals[bucket]) && buckets_[bucket]->elements != 0) {
        throw std::runtime_error("the state has no residual of parameter '" + layouts_[bucket].front().name +
                                 "'");
      }
    }
  }
  pipeline_.synchronizer->load(buckets);
  // Only now that everything has been read: a state that does not fit leaves the session as it was.
  for (BucketId bucket = 0; bucket < buckets_.size() && pipeline_.feedback; ++bucket) {
    std::copy(residuals[bucket].begin(), residuals[bucket].end(),
              store_->residuals.open(bucket, buckets_[bucket]->elements).begin());
  }
  step_ = step;
  started_ = false;
}

}  // namespace thinwire
