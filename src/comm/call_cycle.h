#pragma once
// Which calls ranks expect of each other. A training step makes the same calls as the step before. Where all
// ranks have compared two such steps, each knows what the others do next: the same again. A rank that does
// otherwise knows that itself.

#include <cstddef>
#include <cstdint>
#include <vector>

namespace thinwire {

/// What one rank has called, in its order. Ranks that made the same calls get the same answers.
class CallCycle {
 public:
  /// This rank makes this call next. call: what it is, whatever its step. Whether all ranks that have made
  /// the same calls expect it.
  bool begin(std::uint64_t call, std::uint64_t step) {
    if (!has_begun_ || step != step_) begin_step(step);
    const bool expected = now_.size() < last_.size() && last_[now_.size()] == call;
    if (!expected) repeats_ = false;
    return repeats_;
  }

  /// The call of the last begin() has come to its end, on this rank and, as far as it needs them, on all.
  void end(std::uint64_t call) { now_.push_back(call); }

  /// It has not: what others do next is not known.
  void forget() {
    has_begun_ = false;
    repeats_ = false;
    now_.clear();
    last_.clear();
  }

 private:
  void begin_step(std::uint64_t step) {
    const bool goes_on = has_begun_ && step == step_ + 1;
    repeats_ = goes_on && now_ == last_;
    last_.clear();
    if (goes_on) last_.swap(now_);
    now_.clear();
    step_ = step;
    has_begun_ = true;
  }

  std::vector<std::uint64_t> last_;  ///< Of the step before.
  std::vector<std::uint64_t> now_;   ///< Of this step, so far.
  std::uint64_t step_ = 0;
  bool repeats_ = false;  ///< The step before this one repeated its own, and this one has done so as yet.
  bool has_begun_ = false;
};

}  // namespace thinwire
