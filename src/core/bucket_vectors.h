#pragma once
// Vectors as long as a bucket that live from step to step: residuals, velocities. They lie in the memory of
// the executor that works on them. keep() and undo() make a step all or nothing: what was kept is what undo()
// returns to. What load() reads and erase() drops is a change like others until it is kept. And values of any
// type that do the same.

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "thinwire/executor.h"
#include "thinwire/state.h"
#include "thinwire/workspace.h"

namespace thinwire {

class BucketVectors {
 public:
  explicit BucketVectors(const StateKind& kind) : kind_(kind) {}

  /// The bucket's vector: zeros when it is opened for the first time, or what was loaded. The span stays
  /// valid until load(), erase() or undo(). The executor must outlive its use, and is the same in later
  /// calls. Throws std::invalid_argument when the bucket had another size before.
  Span<float> open(Executor& executor, std::uint32_t bucket, std::size_t elements);

  /// Makes the bucket one that was never opened, and frees its memory.
  void erase(std::uint32_t bucket);

  /// Empty when the bucket was never opened.
  Span<const float> find(std::uint32_t bucket) const;

  /// What the bucket has now is what undo() returns to: a copy, of which the memory stays for the next one.
  void keep(std::uint32_t bucket);

  /// The same without a copy, for a caller that from now on changes the vector by turn() alone.
  void keep_in_turn(std::uint32_t bucket);

  /// Memory for the bucket's next vector, as long as the one that it has; empty where the last one that was
  /// kept lies apart, so that the bucket changes in place. Its values are of no meaning.
  Span<float> next(std::uint32_t bucket);

  /// What next() gave is the bucket's vector. The one before is what undo() returns to.
  void turn(std::uint32_t bucket);

  /// The bucket's vector, to be written as a whole by any caller: opened like open(), and where it is itself
  /// what undo() returns to, turned first. Its values are of no meaning.
  Span<float> replace(Executor& executor, std::uint32_t bucket, std::size_t elements);

  /// Makes the bucket's vector what it was when it was kept last; never kept, one that was never opened.
  /// Copies; allocates only where the vector has been erased since.
  void undo(std::uint32_t bucket);
  /// The same for elements [begin, begin + count) alone; those that were not there before are zeros.
  void undo(std::uint32_t bucket, std::size_t begin, std::size_t count);

  void save(BucketWriter& writer) const;

  /// Replaces everything by what the state has; parameters that it does not have, in a bucket of which it has
  /// others, are zeros. Throws std::runtime_error, and changes nothing, for lengths that do not fit.
  void load(const BucketReader& reader);

 private:
  struct Vector {
    Executor* executor = nullptr;
    std::unique_ptr<std::byte, detail::Release> memory;
    std::size_t size = 0;
    bool is_kept = false;  // this is what undo() returns to, and kept_ has memory for the next one

    Span<float> span() const { return {reinterpret_cast<float*>(memory.get()), size, executor->memory()}; }
  };

  static Vector make(Executor& executor, std::size_t elements);
  /// Before a bucket's vector goes: what was kept lies apart.
  void part(std::uint32_t bucket);
  /// The same before what was loaded goes.
  void part_loaded();
  bool is_kept(std::uint32_t bucket) const;

  StateKind kind_;
  std::map<std::uint32_t, Vector> vectors_;
  std::map<std::uint32_t, Vector>
      kept_;  // but for those that are kept themselves, the state at the end of the last step; never saved
  struct Loaded {
    std::vector<float> values;
    bool kept = false;
  };
  std::map<std::uint32_t, Loaded> loaded_;  // and not opened since
  /// What undo() returns to where that was kept before it was opened, and another load() came since.
  std::map<std::uint32_t, std::vector<float>> kept_as_loaded_;
};

/// What a system keeps of each bucket besides vectors: a value of any type, which a step changes and undo()
/// brings back. T is copied by keep() and undo(); its assignment should reuse memory.
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
