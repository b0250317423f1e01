#pragma once
// Which candidates of `auto` fail where dense does not: steps of theirs do not count, and dense's do.

#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>
#include <utility>

#include "planner/trials.h"

namespace thinwire::planner {

/// Where a step of a candidate other than dense did not count, dense has the next one. Where that one counts,
/// gradients themselves are finite. A member that fails before and after it is left out. What is known here
/// no step takes back that does not count.
class Suspicion {
 public:
  /// again: the step was given up and comes once more, which says nothing about values.
  void begin_step(bool again) {
    if (again) dense_is_next_ = false;
    dense_runs_ = std::exchange(dense_is_next_, false);
  }

  /// The step that the candidate had counts.
  void counts(std::size_t candidate) {
    if (candidate == 0) {
      dense_counted_ = true;
    } else if (candidate == suspect_) {
      suspect_.reset();
    }
  }

  /// It does not. member: the candidate, or what it has beside dense.
  void does_not_count(std::size_t candidate, std::size_t member) {
    if (candidate == suspect_ && dense_counted_) left_out_[member] = true;
    suspect_ = candidate == 0 ? std::optional<std::size_t>() : candidate;
    dense_is_next_ = candidate != 0;
    dense_counted_ = false;
  }

  /// In place of whatever was to run. Its time says nothing.
  bool dense_runs() const { return dense_runs_; }
  bool dense_is_next() const { return dense_is_next_; }
  /// Trials are without it.
  bool leaves_out(std::size_t member) const { return left_out_[member]; }
  std::size_t left_out() const { return static_cast<std::size_t>(std::ranges::count(left_out_, true)); }

 private:
  std::array<bool, Trial::kMostCandidates> left_out_{};
  std::optional<std::size_t> suspect_;  // whose step did not count, and none of its own has since
  bool dense_is_next_ = false;
  bool dense_runs_ = false;
  bool dense_counted_ = false;  // since the suspect's step
};

}  // namespace thinwire::planner
