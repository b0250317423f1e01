#pragma once
// What ranks tell each other when they look whether steps still take the time that a choice rests on.

#include <algorithm>
#include <array>
#include <cstddef>
#include <vector>

#include "thinwire/span.h"

namespace thinwire {

constexpr std::size_t kMostInterval = 64;  ///< Steps from one look to the next.

/// Of this rank's steps since the last look.
struct StepTimes {
  std::array<double, kMostInterval> steps{};
  std::array<double, kMostInterval> inside{};  ///< In the exchange, codec included.
  std::size_t count = 0;

  void add(double step, double inside_step) {
    if (count == kMostInterval) return;
    steps[count] = step;
    inside[count++] = inside_step;
  }
};

/// What a rank tells at a look, in seconds of a step.
struct Seen {
  double step = 0;
  double inside = 0;
  double inside_before = 0;  ///< At the first calm look after the choice; negative: not known.
};

/// Of the rank that spends least in the exchange: it waits for no other one.
double least_inside(Span<const Seen> ranks);

/// A step of the chosen system, and its part in the exchange.
struct StepAndInside {
  double step = 0;
  double inside = 0;  ///< 0: not known.
};

/// What a candidate's step would take now that took `seconds` when the chosen one's took `before`. What the
/// exchange takes has changed as the chosen system's has, and the rest as its rest.
double expected_seconds(double seconds, const StepAndInside& before, const StepAndInside& now);

/// The same where only the network has changed: what it takes is `factor` times what it was.
double expected_over(double seconds, const StepAndInside& before, double factor);

/// How often looks have to see another step time before candidates are tried again.
class Patience {
 public:
  static constexpr int kFewest = 2;
  static constexpr int kMost = 64;
  static constexpr int kMostWhenFar = 8;  ///< Where steps take another time by more than a half.
  static constexpr int kCalm = 30;        ///< Looks in a row without another time, after which it is halved.
  /// Looks after which a choice is put to the test again: it rests on few steps, for the first time on a
  /// training's first ones. A guard may have given a candidate's buckets to another system in the trial, and
  /// the machine may have other work now.
  static constexpr int kFewestToTest = 12;
  static constexpr int kMostToTest = 512 * kFewestToTest;
  /// Earlier tests are among candidates that are close. Those that are farther behind would cost too much.
  static constexpr int kFewestToTestAll = 4 * kFewestToTest;

  Patience() = default;
  /// As it was saved.
  Patience(int needed, int to_test)
      : needed_(std::max(needed, kFewest)), to_test_(std::max(to_test, kFewestToTest)) {}

  /// Looks in a row that it takes.
  int needed() const { return needed_; }
  int needed_when_far() const { return std::min(needed_, kMostWhenFar); }
  int to_test() const { return to_test_; }
  bool is_disturbed() const { return disturbed_ > 0; }

  /// A trial has ended. Where it confirmed the choice, what led to it was noise, and it takes twice as many:
  /// of looks that see another step time, or to the next test where it was one.
  void chosen(bool confirmed);
  /// One look more. Returns whether the choice is to be put to the test.
  bool is_test_due() { return ++looks_ >= to_test_; }
  void test_begins() { tests_ = true; }
  bool tests_all() const { return to_test_ >= kFewestToTestAll; }
  /// There was nothing to compare. Earlier tests compare with few candidates, so the next one comes later.
  void was_tested() {
    if (!tests_all()) to_test_ *= 2;
    looks_ = 0;
  }
  /// That look saw the time that the choice rests on.
  void see_calm();
  /// It saw another one. Returns whether enough in a row did.
  bool see_change(bool far);
  /// The time is another one from now on, and for a good reason.
  void forget_changes() { disturbed_ = 0; }
  void forget_calm() { calm_ = 0; }

 private:
  int needed_ = kFewest;
  int to_test_ = kFewestToTest;
  int disturbed_ = 0;  // looks in a row
  int calm_ = 0;
  int looks_ = 0;       // since the choice
  bool tests_ = false;  // the trial that goes on
};

/// What a message of a known size takes now and then, where the chosen system sends too little to show how
/// fast the link is.
struct LinkWatch {
  static constexpr int kFirst = 3;  ///< Of which the shortest is what later ones are compared with.
  double usual = 0;
  int seen = 0;     ///< So far, kFirst at most.
  int shorter = 0;  ///< Messages in a row that took less than half of it.

  bool is_known() const { return seen == kFirst; }
  void add(double seconds) {
    if (!is_known()) {
      usual = seen++ == 0 ? seconds : std::min(usual, seconds);
    } else {
      shorter = 2 * seconds < usual ? shorter + 1 : 0;
    }
  }
};

/// Whether steps take `change` seconds more or less and no rank spends more or less time in the exchange:
/// what training computes takes another time. False where the exchange's time is not known.
bool is_computing_alone(Span<const Seen> ranks, double change);

/// The ranks, in ascending order, that explain why steps take `change` seconds more or less: the others spend
/// more or less time in the exchange as they wait for these, and these do not. Empty where no such ones are.
std::vector<std::size_t> ranks_that_changed(Span<const Seen> ranks, double change);

}  // namespace thinwire
