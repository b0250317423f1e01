#pragma once
// Which calls need not be compared. A training step makes the same calls as the step before. Where all ranks
// have compared two such steps, each knows what the others do next: the same again. A rank that does
// otherwise knows that itself, and compares.

#include <cstddef>
#include <cstdint>
#include <vector>

namespace thinwire {

/// What one rank has called, in its order. Ranks that made the same calls get the same answers.
class CallCycle {
 public:
  /// Steps that repeat their predecessor, of which one is compared all the same.
  static constexpr std::uint64_t kComparedEvery = 64;

  /// This rank makes this call next. call: what it is, whatever its step. Whether all ranks that have made
  /// the same calls expect it.
  bool begin(std::uint64_t call, std::uint64_t step) {
    if (!has_begun_ || step != step_) begin_step(step);
    const bool expected = now_.size() < last_.size() && last_[now_.size()] == call;
    if (!expected) repeats_ = 0;
    return repeats_ > 0 && repeats_ % kComparedEvery != 0;
  }

  /// The call of the last begin() has come to its end, on this rank and, as far as it needs them, on all.
  void end(std::uint64_t call) { now_.push_back(call); }

  /// It has not: what others do next is not known.
  void forget() {
    has_begun_ = false;
    repeats_ = 0;
    now_.clear();
    last_.clear();
  }

 private:
  void begin_step(std::uint64_t step) {
    const bool goes_on = has_begun_ && step == step_ + 1;
    repeats_ = goes_on && now_ == last_ ? repeats_ + 1 : 0;
    last_.clear();
    if (goes_on) last_.swap(now_);
    now_.clear();
    step_ = step;
    has_begun_ = true;
  }

  std::vector<std::uint64_t> last_;  ///< Of the step before.
  std::vector<std::uint64_t> now_;   ///< Of this step, so far.
  std::uint64_t step_ = 0;
  std::uint64_t repeats_ = 0;  ///< Steps before this one that repeated theirs, in a row.
  bool has_begun_ = false;
};

}  // namespace thinwire
