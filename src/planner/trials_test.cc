#include "planner/trials.h"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

namespace thinwire::trials_test {
namespace {

/// Runs a trial whose step i takes `seconds[candidate]`, up to its end. Returns the candidate of each step.
std::vector<std::size_t> run(Trial& trial, const std::vector<double>& seconds,
                             std::vector<std::size_t> drop_after_round = {}) {
  std::vector<std::size_t> used;
  std::optional<double> before;
  for (int step = 0; step < 100 && !trial.is_over(); ++step) {
    used.push_back(trial.coming());
    trial.begin_step(before);
    before = seconds[used.back()];
    if (!trial.round_is_over()) continue;
    for (const std::size_t candidate : drop_after_round) trial.drop(candidate);
    drop_after_round.clear();
  }
  return used;
}

std::size_t times(const Trial& trial, std::size_t candidate) {
  return trial.times(candidate).size();
}

TEST(Trial, ForwardsAndBackwardsAndWhatComesFirstDoesNotCount) {
  Trial trial({.candidates = 3, .settle = 2, .rounds = 2, .steps = 2});
  // The last step is that in which the last time is known.
  EXPECT_EQ(run(trial, {1, 2, 3}),
            (std::vector<std::size_t>{0, 0, 0, 0, 1, 1, 1, 2, 2, 2, 2, 2, 1, 1, 1, 0, 0, 0, 0}));
  for (std::size_t candidate = 0; candidate < 3; ++candidate) {
    ASSERT_EQ(times(trial, candidate), 4u);
    for (const double one : trial.times(candidate)) EXPECT_EQ(one, static_cast<double>(candidate + 1));
  }
}

TEST(Trial, TheFirstCandidateMayComeLate) {
  const TrialOptions options{.candidates = 3, .settle = 2, .rounds = 2, .steps = 2, .first_is_late = true};
  Trial trial(options);
  EXPECT_TRUE(trial.first_is_to_come());
  EXPECT_EQ(run(trial, {1, 2, 3}),
            (std::vector<std::size_t>{1, 1, 1, 1, 2, 2, 2, 2, 2, 1, 1, 1, 0, 0, 0, 0}));
  EXPECT_FALSE(trial.first_is_to_come());
  EXPECT_EQ(times(trial, 0), 2u);
  EXPECT_EQ(times(trial, 1), 4u);
  EXPECT_EQ(times(trial, 2), 4u);

  Trial without(options, 1);
  for (int step = 0; !without.round_is_over(); ++step) without.begin_step(step == 0 ? 9.0 : 1.0);
  EXPECT_TRUE(without.first_is_to_come());
  without.drop(1);
  without.drop(0);
  EXPECT_TRUE(without.is_over());
  EXPECT_EQ(without.coming(), 2u);
}

TEST(Trial, TheLeastThatTheExchangeTookIsOfStepsThatCount) {
  Trial trial({.candidates = 2, .settle = 1, .rounds = 1, .steps = 2});
  double inside = 0;  // of the step that has ended
  for (int step = 0; !trial.is_over(); ++step) trial.begin_step(1.0, inside++);
  EXPECT_EQ(trial.least_inside(0), 2) << "of its steps 1 and 2";
  EXPECT_EQ(trial.least_inside(1), 5) << "of steps 4 and 5";
}

TEST(Trial, TimesBeforeAnotherSystemHadSomeSayNothingUnlessInPairs) {
  for (const bool in_pairs : {false, true}) {
    Trial trial({.candidates = 1, .rounds = 4, .steps = 1, .in_pairs = in_pairs}, 0);
    trial.begin_step({});
    trial.begin_step(1.0, 0.9);
    trial.begin_step(2.0, 1.9, true);
    trial.begin_step(3.0, 2.9, true);
    trial.begin_step(4.0, 3.9);
    const auto all = trial.times(0);
    const std::vector<double> seen(all.begin(), all.end());
    EXPECT_EQ(seen, in_pairs ? (std::vector<double>{1, 2, 3, 4}) : (std::vector<double>{2, 3, 4}));
    EXPECT_EQ(trial.least_inside(0), in_pairs ? 0.9 : 1.9);
    EXPECT_EQ(trial.timed(0), 4u);
    EXPECT_EQ(trial.replaced(0), 2u);
  }
}

TEST(Trial, WhatIsDroppedHasNoMoreTurns) {
  Trial trial({.candidates = 3, .settle = 0, .rounds = 2, .steps = 1});
  // Candidate 2 begins the second round in the step in which the first one's times are known.
  EXPECT_EQ(run(trial, {9, 2, 1}, {0}), (std::vector<std::size_t>{0, 0, 1, 1, 2, 2, 2, 1, 1, 1}));
  EXPECT_EQ(times(trial, 0), 1u);
  EXPECT_EQ(times(trial, 1), 2u);
  EXPECT_EQ(times(trial, 2), 2u);
}

TEST(Trial, OneCandidateThatIsLeftEndsIt) {
  Trial trial({.candidates = 3, .settle = 0, .rounds = 3, .steps = 1});
  run(trial, {9, 9, 1}, {0, 1});
  EXPECT_TRUE(trial.is_over());
  EXPECT_EQ(trial.left(), 1u);
  EXPECT_EQ(trial.coming(), 2u);
}

TEST(Trial, TheOneWhoseTurnHasBegunCanBeDropped) {
  Trial trial({.candidates = 2, .settle = 0, .rounds = 3, .steps = 1});
  EXPECT_EQ(run(trial, {1, 9}, {1}).back(), 1u);
  EXPECT_TRUE(trial.is_over());
  EXPECT_EQ(trial.coming(), 0u);
}

TEST(Trial, ACandidateThatRanBeforeCountsAtOnce) {
  Trial trial({.candidates = 2, .settle = 0, .rounds = 1, .steps = 2}, 0);
  EXPECT_EQ(run(trial, {1, 2}), (std::vector<std::size_t>{0, 0, 1, 1, 1, 1}));
  Trial other({.candidates = 2, .settle = 0, .rounds = 1, .steps = 2}, 1);
  EXPECT_EQ(run(other, {1, 2}), (std::vector<std::size_t>{0, 0, 0, 1, 1, 1, 1}));
}

TEST(Trial, StepsOfUnknownTimeSayNothing) {
  Trial trial({.candidates = 2, .settle = 0, .rounds = 1, .steps = 2}, 0);
  while (!trial.is_over()) trial.begin_step({});
  EXPECT_EQ(times(trial, 0), 0u);
}

TEST(Trial, GoesOnWhereItWasResumed) {
  const TrialOptions options{.candidates = 3, .settle = 2, .rounds = 2, .steps = 2};
  for (int stop = 0; stop < 19; ++stop) {
    Trial straight(options), resumed(options);
    for (int step = 0; step < stop; ++step) {
      straight.begin_step(1.0);
      if (stop > 11 && straight.round_is_over()) straight.drop(1);
    }
    ASSERT_TRUE(resumed.resume(Span<const float>(straight.numbers().data(), Trial::kNumbers)));
    for (int step = stop; step < 25; ++step) {
      EXPECT_EQ(resumed.coming(), straight.coming()) << stop << " " << step;
      resumed.begin_step(1.0);
      straight.begin_step(1.0);
      EXPECT_EQ(resumed.round_is_over(), straight.round_is_over()) << stop << " " << step;
      EXPECT_EQ(resumed.is_over(), straight.is_over());
    }
  }
}

TEST(Trial, NumbersOfNoTrialAreRefused) {
  Trial trial({.candidates = 2, .settle = 0, .rounds = 1, .steps = 1});
  const auto good = trial.numbers();
  EXPECT_TRUE(trial.resume(good));
  for (std::size_t i = 0; i < Trial::kNumbers; ++i) {
    for (const float bad : {-1.0f, 0.5f, 300.0f, std::numeric_limits<float>::quiet_NaN()}) {
      auto numbers = good;
      numbers[i] = bad;
      EXPECT_FALSE(trial.resume(numbers)) << i << " " << bad;
    }
  }
  auto dropped = good;
  dropped[4] += 1;
  EXPECT_FALSE(trial.resume(dropped)) << "the candidate whose turn it is";
}

TEST(TimingOf, WhatDisturbsAStepIsLeftOut) {
  const auto of = [](const std::vector<double>& seconds) { return timing_of(Span<const double>(seconds)); };
  EXPECT_EQ(of({2}).seconds, 2);
  EXPECT_EQ(of({2}).error, 0);
  EXPECT_EQ(of({400, 2}).seconds, 2) << "a pause between two steps";
  EXPECT_EQ(of({3, 1, 9, 2, 4}).seconds, 2) << "one that is too short by chance does not count";
  EXPECT_EQ(of({3, 1, 9, 2, 4}).error, 0.5);
  EXPECT_EQ(of({0, 0, 0}).error, 0);
  EXPECT_EQ(of({3}).middle, 3);
  EXPECT_EQ(of({30, 2}).middle, 2) << "as its seconds";
  EXPECT_EQ(of({9, 1, 3, 2}).middle, 3) << "as looks have it";
}

Pairs pairs(const std::vector<double>& first, const std::vector<double>& second) {
  return pairs_of(Span<const double>(first), Span<const double>(second), 1.02);
}

TEST(PairsOf, OneThatADisturbanceSplitSaysLittle) {
  const Pairs some = pairs({1.1, 9, 2.2, 1.1}, {1, 1, 2, 1});
  EXPECT_EQ(some.count, 4);
  EXPECT_NEAR(some.ratio, 1.1, 1e-12);
  EXPECT_EQ(some.longer, 1);
  EXPECT_NEAR(pairs({1, 1, 1, 1}, {1, 1, 1, 0.5}).longer, 0.25, 1e-12);
}

TEST(PairsOf, WhatHasNoTimeBesideItSaysNothing) {
  EXPECT_EQ(pairs({1, 2, 3}, {1}).count, 1);
  EXPECT_EQ(pairs({}, {1}).count, 0);
  EXPECT_EQ(pairs({1, 1}, {0, 1}).count, 1) << "a clock that stood still";
}

TEST(PairsOf, MoreOfThemAreNeededWhereTheyDoNotAgree) {
  EXPECT_FALSE(pairs({1, 1, 1}, {1, 1, 1}).are_clear()) << "too few";
  EXPECT_TRUE(pairs({1, 1, 1, 1}, {1, 1, 1, 1}).are_clear());
  EXPECT_TRUE(pairs({2, 2, 2, 2}, {1, 1, 1, 1}).are_clear());
  EXPECT_FALSE(pairs({1, 1, 1, 2}, {1, 1, 1, 1}).are_clear());
  EXPECT_TRUE(pairs({1, 1, 1, 2, 1, 1}, {1, 1, 1, 1, 1, 1}).are_clear());
}

TEST(Median, OneOutlierMovesNothing) {
  const auto of = [](std::vector<double> values) { return median(Span<double>(values)); };
  EXPECT_EQ(of({}), 0);
  EXPECT_EQ(of({3}), 3);
  EXPECT_EQ(of({5, 1, 90}), 5);
  EXPECT_EQ(of({4, 1, 2, 3}), 3);
}

TEST(HasDrifted, AQuarterMoreOrLess) {
  EXPECT_FALSE(has_drifted(1, 1.2));
  EXPECT_FALSE(has_drifted(1, 0.85));
  EXPECT_TRUE(has_drifted(1, 1.3));
  EXPECT_TRUE(has_drifted(1, 0.7));
  EXPECT_FALSE(has_drifted_far(1, 1.4));
  EXPECT_TRUE(has_drifted_far(1, 1.6));
  EXPECT_TRUE(has_drifted_far(1, 0.6));
}

}  // namespace
}  // namespace thinwire::trials_test
