// What a session saves and loads.
#include <array>
#include <functional>
#include <map>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

#include "session/session_parts.h"
#include "thinwire/state_changes.h"

namespace thinwire {

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
    throw std::runtime_error("the state was saved by '" + options_.registry->readable(saved) +
                             "', this session runs '" + options_.registry->readable(spec()) +
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

/// What residuals in units of the first are to be multiplied by for the second: products of gradients and
/// rates become gradients, or the other way round. Both: whether the learning rate is inside.
float Session::factor_of_units(bool before, bool now) const {
  if (before == now) return 1;
  if (!(learning_rate_ > 0)) {
    throw std::runtime_error(std::string(now ? "the new system" : "the system of the state") +
                             " keeps products of gradients and the learning rate, and that is 0: change the "
                             "system in a step with another rate");
  }
  return static_cast<float>(now ? learning_rate_ : 1 / learning_rate_);
}

void Session::take_over(const StateReader& reader) {
  const Registry& registry = *options_.registry;
  std::array<bool, 2> before{}, now{};  // of dense buckets and of rows
  try {
    const SpecPair spec = parse_spec_pair(reader.get_text("spec"));
    before = {registry.rate_is_inside(spec.dense), registry.rate_is_inside(spec.rows)};
  } catch (const std::invalid_argument&) {
    // Of a version with other systems.
  }
  now = {registry.rate_is_inside(pipelines_.front().spec), registry.rate_is_inside(pipelines_.back().spec)};
  if (before == now) {
    restore(reader, From::other_spec);
  } else {
    std::map<std::string, float, std::less<>> factors;
    for (BucketId bucket = 0; bucket < buckets_.size(); ++bucket) {
      const std::size_t part = buckets_[bucket]->row_sparse ? 1 : 0;
      const float factor = factor_of_units(before[part], now[part]);
      for (const auto& parameter : layouts_[bucket]) factors[parameter.name] = factor;
    }
    const auto factor_of = [&](std::string_view parameter) {
      const auto found = factors.find(parameter);
      return found == factors.end() ? 1 : found->second;
    };
    restore(StateReader(scaled_state(reader, factor_of, registry)), From::other_spec);
  }
  keep_all();
}

void Session::load_within_step(const StateReader& reader) {
  check_origin(reader);
  restore(reader, From::same_spec);
  for (auto& own : buckets_) own->ran = own->elements() != 0;
}

}  // namespace thinwire
