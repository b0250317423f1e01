// A session's step as a unit: what it changed is kept when it counts, and undone when it does not.
#include <algorithm>
#include <array>
#include <stdexcept>
#include <utility>

#include "session/session_parts.h"
#include "thinwire/errors.h"

namespace thinwire {
namespace {

/// A smaller step's copies take less time than handing them to another thread is worth.
constexpr std::size_t kElementsKeptAside = 1 << 19;

}  // namespace

void Session::refuse_after_failure() const {
  if (!failure_) return;
  throw std::runtime_error(
      "step " + std::to_string(step_) + " has failed: " + failure_->text + "; " +
      (failure_->ends_session
           ? "ranks are at different places, so this session synchronizes no more: make a new one on a new "
             "communicator and load a state"
           : "end it with next_step(), the same on all ranks"));
}

/// The step has failed in this bucket.
void Session::fail(BucketId bucket, const std::exception_ptr& cause) {
  // Whether the bucket's own state is as it was, which the contract promises of some errors.
  bool untouched = true;
  failure_ = Failure{.text = {}, .ends_session = true};
  try {
    std::rethrow_exception(cause);
  } catch (const std::invalid_argument& error) {
    *failure_ = {error.what(), all_ranks().is_given_up()};
  } catch (const CommError& error) {
    failure_->text = error.what();
  } catch (const CorruptFrame& error) {
    failure_->text = error.what();
  } catch (const std::exception& error) {
    failure_->text = error.what();
    untouched = false;
  } catch (...) {
    failure_->text = "an exception without a text";
    untouched = false;
  }
  failure_->text = "bucket " + std::to_string(bucket) + ": " + failure_->text;
  if (options_.undoes_steps) {
    try {
      undo();
      return;
    } catch (const std::exception& error) {
      torn_ = std::string("undoing it failed, too: ") + error.what();
    }
  }
  for (BucketId other = 0; other < buckets_.size() && torn_.empty(); ++other) {
    if (!buckets_[other]->ran || (other == bucket && untouched)) continue;
    torn_ = "bucket " + std::to_string(other) + " had moved, and without undoes_steps there is no copy";
  }
  for (auto& own : buckets_) own->ran = false;
}

/// Whether the bucket's residual changes by turns between two memories, so that undoing needs no copy.
bool Session::turns(const Bucket& bucket) const {
  const Pipeline& own = pipelines_[bucket.pipeline];
  return options_.undoes_steps && own.feedback && own.turns_residual;
}

/// Whether to keep the bucket's state takes no time: nothing as long as the bucket is copied.
bool Session::keeps_little(BucketId bucket) const {
  const Bucket& own = *buckets_[bucket];
  const Pipeline& pipeline = pipelines_[own.pipeline];
  if (!options_.undoes_steps || !pipeline.has_state) return true;
  return pipeline.undoes_steps && turns(own) && pipeline.synchronizer->keeps_little(bucket);
}

bool Session::ends_at_once() const {
  for (BucketId bucket = 0; bucket < buckets_.size(); ++bucket) {
    const Bucket& own = *buckets_[bucket];
    if (own.ran && (own.executor.memory() != Memory::host || !keeps_little(bucket))) return false;
  }
  return true;
}

/// What a pipeline saves, for want of keep().
void Session::keep_by_state(std::size_t pipeline) {
  StateWriter writer;
  BucketWriter buckets(writer, layouts_);
  pipelines_[pipeline].synchronizer->save(buckets);
  undelivered_->saved[pipeline].emplace(std::move(writer));
}

/// What the buckets of this step have now is what undo() returns to. Beside the caller where that takes long
/// and is a matter of the host: finish_keeping() then waits for it.
void Session::keep() {
  std::array<bool, 2> ran{};  // of the pipelines
  std::size_t elements = 0;
  bool on_host = true;
  undelivered_->to_keep.clear();
  for (BucketId bucket = 0; bucket < buckets_.size(); ++bucket) {
    Bucket& own = *buckets_[bucket];
    if (!std::exchange(own.ran, false)) continue;
    ran[own.pipeline] = true;
    undelivered_->to_keep.push_back(bucket);
    if (!keeps_little(bucket)) elements += own.elements();
    on_host = on_host && own.executor.memory() == Memory::host;
  }
  // Systems that can only be saved may have been written without another thread in mind.
  for (std::size_t i = 0; i < pipelines_.size(); ++i) {
    if (ran[i] && !pipelines_[i].undoes_steps) keep_by_state(i);
  }
  if (!on_host || elements < kElementsKeptAside) {
    keep_buckets();
    return;
  }
  undelivered_->keeper.start([this] {
    try {
      keep_buckets();
    } catch (...) {
      undelivered_->keep_error = std::current_exception();
    }
  });
}

void Session::keep_buckets() {
  for (const BucketId bucket : undelivered_->to_keep) {
    Bucket& own = *buckets_[bucket];
    if (turns(own)) {
      undelivered_->residuals.keep_in_turn(bucket);
    } else {
      undelivered_->residuals.keep(bucket);
    }
    pipelines_[own.pipeline].synchronizer->keep_step(bucket);
    own.executor.wait();
  }
}

/// Before anything that may touch what a step changes.
void Session::finish_keeping() {
  undelivered_->keeper.wait();
  const auto error = std::exchange(undelivered_->keep_error, nullptr);
  if (!error) return;
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& cause) {
    refuse_unkept(cause);
  }
}

/// This step's state is whole; but it could not be returned to.
void Session::refuse_unkept(const std::exception& cause) {
  failure_ = {std::string("its beginning could not be kept: ") + cause.what(), true};
}

void Session::undo() {
  std::array<bool, 2> ran{};  // of the pipelines
  for (BucketId bucket = 0; bucket < buckets_.size(); ++bucket) {
    Bucket& own = *buckets_[bucket];
    if (!own.ran) continue;
    ran[own.pipeline] = true;
    undelivered_->residuals.undo(bucket);
    if (pipelines_[own.pipeline].feedback) {
      undelivered_->residuals.open(own.executor, bucket, own.elements());
    }
    pipelines_[own.pipeline].synchronizer->undo_step(bucket);
    own.executor.wait();
    own.ran = false;
  }
  for (std::size_t i = 0; i < pipelines_.size(); ++i) {
    if (!ran[i] || pipelines_[i].undoes_steps) continue;
    const auto& saved = undelivered_->saved[i];
    const StateReader nothing{StateWriter()};
    std::vector<bool> own(buckets_.size());
    for (std::size_t bucket = 0; bucket < own.size(); ++bucket) own[bucket] = buckets_[bucket]->pipeline == i;
    pipelines_[i].synchronizer->load(BucketReader(saved ? *saved : nothing, layouts_, std::move(own)));
  }
  finite_ = true;
}

bool Session::next_step(bool counts, std::optional<double> whole) {
  finish_keeping();
  if (failure_ && failure_->ends_session) refuse_after_failure();
  const bool counted = !failure_ && counts && finite_;
  failure_.reset();
  if (!options_.undoes_steps) {
    for (auto& own : buckets_) own->ran = false;
  } else if (!counted) {
    undo();
  }
  if (counted) {
    const double squares = whole ? *whole : step_squares();
    for (const Pipeline& pipeline : pipelines_) pipeline.synchronizer->take_squares(squares);
  }
  finite_ = true;
  ++step_;
  if (!options_.undoes_steps || !counted) return counted;
  try {
    keep();
  } catch (const std::exception& error) {
    for (auto& own : buckets_) own->ran = false;
    refuse_unkept(error);
    throw;
  }
  return counted;
}

bool Session::within_step() const {
  return std::ranges::any_of(buckets_, [](const auto& own) { return own->ran; });
}

void Session::undo_step() {
  finish_keeping();
  const bool ran = within_step();
  if (ran && !options_.undoes_steps) {
    throw std::logic_error("a step is undone of a session that keeps no copies: set undoes_steps");
  }
  if (ran) undo();
  finite_ = true;
}

void Session::leave_out(std::string_view parameter) {
  if (!options_.undoes_steps) {
    throw std::logic_error("a parameter is left out by a session that keeps no copies: set undoes_steps");
  }
  finish_keeping();
  auto& places = undelivered_->places;
  for (BucketId& bucket = undelivered_->placed; bucket < buckets_.size(); ++bucket) {
    std::size_t begin = 0;
    for (const Parameter& one : layouts_[bucket]) {
      places.emplace(one.name, Undelivered::Place{bucket, begin, one.elements});
      begin += one.elements;
    }
  }
  const auto [first, last] = places.equal_range(parameter);
  for (auto found = first; found != last; ++found) {
    const auto& [bucket, begin, elements] = found->second;
    const Bucket& own = *buckets_[bucket];
    if (!own.ran || own.row_sparse) continue;
    undelivered_->residuals.undo(bucket, begin, elements);
    pipelines_[own.pipeline].synchronizer->undo_step(bucket, begin, elements);
  }
}

/// What has been loaded is what undo() returns to.
void Session::keep_all() {
  if (!options_.undoes_steps) return;
  for (auto& own : buckets_) own->ran = true;
  keep();
}

}  // namespace thinwire
