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

TEST(RankThatChanged, IsTheOneWhoseExchangeDoesNotShowTheChange) {
  const std::vector<Seen> ranks = {{.inside = 0.11, .inside_before = 0.01},
                                   {.inside = 0.01, .inside_before = 0.01}};
  EXPECT_EQ(rank_that_changed(Span<const Seen>(ranks), 0.1), 1);
  EXPECT_FALSE(rank_that_changed(Span<const Seen>(ranks), 1.0)) << "so little explains nothing";
}

/// Of 0.1 s that another system's step took, 0.02 s were computing.
TEST(ExpectedOver, TheNetworksPartChangesAlone) {
  EXPECT_DOUBLE_EQ(expected_over(0.1, {.step = 0.03, .inside = 0.01}, 0.5), 0.02 + 0.04);
  EXPECT_DOUBLE_EQ(expected_over(0.01, {.step = 0.03, .inside = 0.01}, 0.5), 0.02);
}

}  // namespace
}  // namespace thinwire::looks_test
