#include "planner/looks.h"

#include <gtest/gtest.h>

#include <vector>

namespace thinwire::looks_test {
namespace {

TEST(LinkWatch, ComparesWithTheShortestOfTheFirstMessages) {
  LinkWatch watch;
  for (const double seconds : {0.012, 0.010, 0.030}) {
    EXPECT_FALSE(watch.is_known());
    watch.add(seconds);
  }
  EXPECT_TRUE(watch.is_known());
  EXPECT_EQ(watch.usual, 0.010);
  EXPECT_EQ(watch.shorter, 0) << "the first ones are compared with nothing";
}

TEST(LinkWatch, CountsMessagesInARowThatTookLessThanHalf) {
  LinkWatch watch{.usual = 0.010, .seen = LinkWatch::kFirst};
  watch.add(0.006);
  EXPECT_EQ(watch.shorter, 0);
  watch.add(0.004);
  watch.add(0.001);
  EXPECT_EQ(watch.shorter, 2);
  watch.add(0.050);  // other work delays a message
  EXPECT_EQ(watch.shorter, 0);
  EXPECT_EQ(watch.usual, 0.010);
}

TEST(Patience, IsTwiceAsLongAfterATrialThatConfirmedTheChoice) {
  Patience patience;
  EXPECT_FALSE(patience.see_change(false));
  EXPECT_TRUE(patience.is_disturbed());
  patience.see_calm();
  EXPECT_FALSE(patience.see_change(false)) << "the calm look between them";
  EXPECT_TRUE(patience.see_change(false));
  for (int i = 0; i < 10; ++i) patience.chosen(true);
  EXPECT_EQ(patience.needed(), Patience::kMost);
  EXPECT_EQ(patience.to_test(), Patience::kMostToTest);
  for (int i = 1; i < Patience::kMostWhenFar; ++i) EXPECT_FALSE(patience.see_change(true)) << i;
  EXPECT_TRUE(patience.see_change(true));
  patience.chosen(false);
  EXPECT_EQ(patience.needed(), Patience::kFewest);
}

TEST(Patience, IsHalfAsLongAfterACalmTime) {
  Patience patience(8, 0);
  for (int i = 0; i < Patience::kCalm; ++i) {
    EXPECT_EQ(patience.needed(), 8) << i;
    patience.see_calm();
  }
  EXPECT_EQ(patience.needed(), 4);
  for (int i = 1; i < Patience::kCalm; ++i) patience.see_calm();
  EXPECT_FALSE(patience.see_change(false));
  patience.see_calm();
  EXPECT_EQ(patience.needed(), 4) << "that was no calm time";
}

TEST(Patience, PutsAChoiceToTheTest) {
  Patience patience;
  for (const int looks : {1, 2, 4, 4}) {
    EXPECT_EQ(patience.tests_all(), looks == 4);
    for (int i = 1; i < looks * Patience::kFewestToTest; ++i) EXPECT_FALSE(patience.is_test_due()) << i;
    EXPECT_TRUE(patience.is_test_due());
    patience.was_tested();
  }
}

TEST(Patience, ATestThatConfirmsTheChoiceMakesTestsRarerAlone) {
  Patience patience;
  EXPECT_FALSE(patience.tests_all());
  for (int time = 0; time < 2; ++time) {
    while (!patience.is_test_due()) continue;
    patience.test_begins();
    patience.chosen(true);
  }
  EXPECT_EQ(patience.needed(), Patience::kFewest);
  EXPECT_EQ(patience.to_test(), 4 * Patience::kFewestToTest);
  EXPECT_TRUE(patience.tests_all());
  EXPECT_FALSE(patience.is_test_due());
  patience.chosen(true);
  EXPECT_EQ(patience.needed(), 2 * Patience::kFewest) << "this trial was no test";
}

TEST(IsComputingAlone, WhereNoRanksExchangeShowsTheChange) {
  const auto of = [](const std::vector<Seen>& ranks, double change) {
    return is_computing_alone(Span<const Seen>(ranks), change);
  };
  EXPECT_TRUE(of({{.inside = 0.02, .inside_before = 0.01}, {.inside = 0.01, .inside_before = 0.01}}, 0.1));
  EXPECT_TRUE(of({{.inside = 0.01, .inside_before = 0.02}}, -0.1));
  EXPECT_FALSE(of({{.inside = 0.01, .inside_before = 0.01}, {.inside = 0.05, .inside_before = 0.01}}, 0.1));
  EXPECT_FALSE(of({{.inside = 0.01, .inside_before = 0.05}}, -0.1));
  EXPECT_FALSE(of({{.inside = 0.01, .inside_before = -1}}, 0.1)) << "not known";
}

TEST(RanksThatChanged, AreThoseWhoseExchangeDoesNotShowTheChange) {
  using Ranks = std::vector<std::size_t>;
  const auto of = [](const std::vector<double>& inside, double change) {
    std::vector<Seen> seen;
    for (const double one : inside) seen.push_back({.inside = one, .inside_before = 0.01});
    return ranks_that_changed(Span<const Seen>(seen), change);
  };
  EXPECT_EQ(of({0.11, 0.01}, 0.1), Ranks({1}));
  EXPECT_EQ(of({0.11, 0.01, 0.02, 0.10}, 0.1), Ranks({1, 2}));
  EXPECT_EQ(of({0.11, 0.11}, 0.1), Ranks()) << "the network";
  EXPECT_EQ(of({0.11, 0.01}, 1.0), Ranks()) << "so little explains nothing";
}

/// Of 0.1 s that another system's step took, 0.02 s were computing.
TEST(ExpectedOver, TheNetworksPartChangesAlone) {
  EXPECT_DOUBLE_EQ(expected_over(0.1, {.step = 0.03, .inside = 0.01}, 0.5), 0.02 + 0.04);
  EXPECT_DOUBLE_EQ(expected_over(0.01, {.step = 0.03, .inside = 0.01}, 0.5), 0.02);
}

}  // namespace
}  // namespace thinwire::looks_test
