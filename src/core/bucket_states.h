#pragma once
// What a system keeps of each bucket besides vectors: a value of any type, which a step changes and undo()
// brings back.

#include <cstdint>
#include <map>
#include <optional>
#include <utility>

namespace thinwire {

/// T is copied by keep() and undo(); its assignment should reuse memory.
template <class T>
class BucketStates {
 public:
  /// Null when the bucket has none.
  const T* find(std::uint32_t bucket) const {
    const auto found = states_.find(bucket);
    return found == states_.end() || !found->second.now ? nullptr : &*found->second.now;
  }
  T* find(std::uint32_t bucket) { return const_cast<T*>(std::as_const(*this).find(bucket)); }
  bool contains(std::uint32_t bucket) const { return find(bucket) != nullptr; }

  /// A default one when the bucket has none.
  T& open(std::uint32_t bucket) {
    auto& now = states_[bucket].now;
    return now ? *now : now.emplace();
  }

  /// See Synchronizer.
  void keep(std::uint32_t bucket) {
    const auto found = states_.find(bucket);
    if (found != states_.end()) found->second.kept = found->second.now;
  }
  void undo(std::uint32_t bucket) {
    const auto found = states_.find(bucket);
    if (found != states_.end()) found->second.now = found->second.kept;
  }

  /// Replaces everything but what is kept.
  void assign(std::map<std::uint32_t, T> states) {
    for (auto& [bucket, state] : states_) state.now.reset();
    for (auto& [bucket, state] : states) states_[bucket].now = std::move(state);
  }

  /// body(bucket, state) in ascending order.
  template <class Body>
  void for_each(Body body) const {
    for (const auto& [bucket, state] : states_) {
      if (state.now) body(bucket, *state.now);
    }
  }

 private:
  struct State {
    std::optional<T> now;
    std::optional<T> kept;
  };
  std::map<std::uint32_t, State> states_;
};

}  // namespace thinwire
