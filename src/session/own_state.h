#pragma once
// Systems for tests, as somebody outside the library would write them, in a registry of their own: `holder`
// has state of every sort, `releaser` knows one kind of it and delivers what that holds, `plain` knows none.

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "thinwire/registry.h"

namespace thinwire::own_state {

/// What the system itself holds back, one value per element.
inline constexpr StateKind kHeld = {
    .name = "own_held", .unit = StateKind::Unit::gradient, .ranks = StateKind::Ranks::sum, .moves = true};
/// An average of the rank's own gradients, one value per element.
inline constexpr StateKind kSpeed = {
    .name = "own_speed", .unit = StateKind::Unit::gradient, .ranks = StateKind::Ranks::mean};
/// The first element of the last mean, and the number of steps: of a bucket, for each of its parameters.
inline constexpr StateKind kSize = {.name = "own_size", .unit = StateKind::Unit::gradient};
inline constexpr StateKind kCount = {.name = "own_count"};

class System final : public Synchronizer {
 public:
  explicit System(std::vector<StateKind> kinds) : kinds_(std::move(kinds)) {}

  /// A holder leaves a quarter of each element to the residual and holds back another; others deliver all.
  void synchronize(BucketId bucket, Span<float> gradient, Span<float> residual, Step& step) override {
    State& state = states_[bucket];
    state.parameters = std::max<std::size_t>(1, step.parameter_ends.size());
    state.held.resize(gradient.size());
    state.speed.resize(gradient.size());
    for (std::size_t i = 0; i < gradient.size(); ++i) {
      const float p = gradient[i] + state.held[i] + (residual.empty() ? 0.0f : residual[i]);
      state.speed[i] = gradient[i] + state.speed[i] / 2;
      state.held[i] = holds() ? p / 4 : 0;
      gradient[i] = p - state.held[i];
      if (residual.empty()) continue;
      residual[i] = state.held[i];
      gradient[i] -= residual[i];
    }
    step.communicator.all_reduce_sum(gradient);
    for (float& mean : gradient) mean /= static_cast<float>(step.communicator.size());
    state.size = gradient.empty() ? 0 : gradient[0];
    ++state.count;
    step.report.finite = true;
  }

  std::uint64_t payload_bytes(const Workload& workload) const override {
    return workload.ring_sent_bytes(workload.elements, sizeof(float));
  }

  void save(BucketWriter& writer) const override {
    for (const auto& [bucket, state] : states_) {
      if (knows(kHeld)) writer.elements(kHeld, bucket, Span<const float>(state.held));
      if (knows(kSpeed)) writer.elements(kSpeed, bucket, Span<const float>(state.speed));
      const std::vector<float> sizes(state.parameters, state.size), counts(state.parameters, state.count);
      if (knows(kSize)) writer.values(kSize, bucket, Span<const float>(sizes));
      if (knows(kCount)) writer.values(kCount, bucket, Span<const float>(counts));
    }
  }

  void load(const BucketReader& reader) override {
    std::map<BucketId, State> loaded;
    for (BucketId bucket = 0; bucket < reader.buckets(); ++bucket) {
      State state;
      state.parameters = reader.parameters(bucket);
      state.held.resize(reader.bucket_elements(bucket));
      state.speed.resize(reader.bucket_elements(bucket));
      std::vector<float> values(state.parameters);
      bool found = knows(kHeld) && reader.elements(kHeld, bucket, state.held);
      found = (knows(kSpeed) && reader.elements(kSpeed, bucket, state.speed)) || found;
      if (knows(kSize) && reader.values(kSize, bucket, values)) state.size = values[0];
      if (knows(kCount) && reader.values(kCount, bucket, values)) state.count = values[0];
      if (found) loaded[bucket] = std::move(state);
    }
    states_ = std::move(loaded);
  }

 private:
  struct State {
    std::vector<float> held;
    std::vector<float> speed;
    float size = 0;
    float count = 0;
    std::size_t parameters = 1;
  };

  bool knows(const StateKind& kind) const { return std::ranges::find(kinds_, kind) != kinds_.end(); }
  bool holds() const { return knows(kSpeed); }

  std::vector<StateKind> kinds_;
  std::map<BucketId, State> states_;
};

inline Registry registry() {
  Registry registry;
  const auto add = [&](const std::string& name, bool feedback, std::vector<StateKind> kinds) {
    SystemInfo info;
    info.name = name;
    info.summary = info.paper = info.formula = "of a test";
    info.feedback_default = feedback;
    info.state = kinds;
    info.make = [kinds](const Options&, Inner) { return std::make_unique<System>(kinds); };
    registry.add(std::move(info));
  };
  add("holder", true, {kHeld, kSpeed, kSize, kCount});
  add("releaser", true, {kHeld});
  add("plain", false, {});
  return registry;
}

using Values = std::map<std::string, std::vector<float>>;

inline Values values_of(const StateReader& state) {
  Values values;
  for (const std::string& name : state.names("")) {
    if (state.type(name) != StateReader::Type::floats) continue;
    values[name].resize(state.length(name));
    state.get(name, values[name]);
  }
  return values;
}

/// The sum of what ranks' states have not delivered of the parameters a [3] and b [2], one after the other.
inline std::vector<float> left_in(const std::vector<StateReader>& states) {
  std::vector<float> left(5);
  for (const StateReader& state : states) {
    for (const auto& [name, values] : values_of(state)) {
      if (!name.starts_with("residual/") && !name.starts_with("own_held/")) continue;
      for (std::size_t i = 0; i < values.size(); ++i) left[(name.ends_with("/a") ? 0 : 3) + i] += values[i];
    }
  }
  return left;
}

}  // namespace thinwire::own_state
