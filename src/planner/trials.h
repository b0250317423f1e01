#pragma once
// Which of several candidates makes a step of training shortest, found by trying each for some steps.
//
// What counts is the time from one step's beginning to the next one's. It holds all that a codec costs and
// saves: what overlap with backward hides, cores that codec and training share, and the network. A model of
// these would have to know each.

#include <array>
#include <optional>

#include "thinwire/span.h"

namespace thinwire {

struct TrialOptions {
  std::size_t candidates = 0;  ///< 1 to Trial::kMostCandidates.
  std::size_t settle =
      0;  ///< Steps of the first candidate that do not count: the first steps are like no others.
  std::size_t rounds =
      1;  ///< Each candidate has a turn in each, one round forwards and the next one backwards.
  std::size_t steps = 1;       ///< Of a turn that count.
  bool first_is_late = false;  ///< The first candidate has no turn in the first round.
  bool in_pairs = false;       ///< Times are compared one by one, so each one counts.
};

/// A trial under way. Steps of a turn's beginning do not count where the candidate before was another one.
/// The candidate of a step is known one step earlier, so that whoever works beside can be told.
class Trial {
 public:
  static constexpr std::size_t kMostCandidates = 8;
  static constexpr std::size_t kMostTimes = 32;  // of a candidate

  /// before: the candidate that ran last, if one did.
  explicit Trial(const TrialOptions& options, std::optional<std::size_t> before = {});

  /// Whose step comes next.
  std::size_t coming() const { return turn_; }

  /// At the beginning of the step that was coming. seconds: of the step before, where they are known.
  /// inside: what of these was the exchange's. replaced: another system had some of that step. A guard that
  /// took a bucket keeps it for long, so the candidate's times before that say nothing, unless in_pairs.
  void begin_step(std::optional<double> seconds, double inside = 0, bool replaced = false);

  /// All times of a round are there, and this step has begun since: the moment to drop candidates, or to
  /// choose.
  bool round_is_over() const { return over_; }
  /// It was the last round, or one candidate is left.
  bool is_over() const { return over_ && (round_ >= options_.rounds || left() < 2); }

  /// Not the only one that is left.
  void drop(std::size_t candidate);
  bool has(std::size_t candidate) const { return !dropped_[candidate]; }
  std::size_t left() const;
  /// The first candidate is late, and its first turn has not begun.
  bool first_is_to_come() const { return options_.first_is_late && round_ < 2 && has(0) && times(0).empty(); }

  /// Where the trial is, without times. A trial that was resumed goes on there.
  static constexpr std::size_t kNumbers = 7;
  std::array<float, kNumbers> numbers() const;
  /// Returns false, and changes nothing, for numbers that no trial with these options has.
  bool resume(Span<const float> numbers);

  Span<const double> times(std::size_t candidate) const {
    return {times_[candidate].data(), counts_[candidate]};
  }
  /// Its steps that were timed, also those whose times say nothing any more.
  std::size_t timed(std::size_t candidate) const { return timed_[candidate]; }
  /// Of these, the steps of which another system had some.
  std::size_t replaced(std::size_t candidate) const { return replaced_[candidate]; }
  /// Of its steps that counted, the least that the exchange took. 0 without any.
  double least_inside(std::size_t candidate) const { return least_inside_[candidate]; }

 private:
  bool forwards() const { return round_ % 2 == 0; }
  bool has_turns(std::size_t candidate) const {
    return has(candidate) && !(candidate == 0 && options_.first_is_late && round_ == 0);
  }
  std::optional<std::size_t> after(std::optional<std::size_t> position) const;
  void next_turn();

  TrialOptions options_;
  std::array<bool, kMostCandidates> dropped_{};
  std::array<std::array<double, kMostTimes>, kMostCandidates> times_{};
  std::array<std::size_t, kMostCandidates> counts_{};
  std::array<std::size_t, kMostCandidates> timed_{};
  std::array<std::size_t, kMostCandidates> replaced_{};
  std::array<double, kMostCandidates> least_inside_{};
  std::size_t round_ = 0;
  std::size_t turn_ = 0;  // the candidate whose turn it is
  std::size_t at_ = 0;    // steps of the turn that have begun
  std::size_t skipped_ = 0;
  std::optional<std::size_t> counting_;  // the candidate whose step runs now, where it counts
  bool ending_ = false;                  // the step that runs now is the last one of its round
  bool over_ = false;
};

/// The one in the middle, of an even number the upper one. 0 without values. Changes their order.
double median(Span<double> values);

/// How long a step takes that nothing disturbs: what else the machine does only ever makes a step longer.
/// error: by what share that would be another value with one step less.
struct Timing {
  double seconds = 0;  ///< The shortest but one; of one or two the shortest.
  double error = 0;
  double middle = 0;  ///< As steps later are: the median; of one or two the shortest.
};
/// seconds: at most Trial::kMostTimes, at least one.
Timing timing_of(Span<const double> seconds);

/// Two candidates of which one has had a step whenever the other one has had one, soon before or after it.
/// What disturbs the machine for a while disturbs both.
struct Pairs {
  double count = 0;
  double ratio = 0;   ///< The median of what the first one took, divided by what the second one took.
  double longer = 0;  ///< The share of pairs in which that was more than the bound.

  /// Hardly a pair says otherwise, so more of them will not.
  bool are_clear() const { return count >= 4 && (longer < 0.25 || longer > 0.75); }
};
/// The times of the two, in their order: at most Trial::kMostTimes.
Pairs pairs_of(Span<const double> first, Span<const double> second, double bound);

/// Whether a step that took `before` seconds takes so much longer or shorter `now` that another candidate may
/// be faster: by a quarter.
bool has_drifted(double before, double now);
/// By half: so much is no noise.
bool has_drifted_far(double before, double now);

}  // namespace thinwire
