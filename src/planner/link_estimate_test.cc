#include "planner/link_estimate.h"

#include <gtest/gtest.h>

namespace thinwire::link_estimate_test {
namespace {

constexpr VirtualLink kLink{.bytes_per_second = 1e6, .latency_seconds = 0.01};

BucketCost cost(double codec, double bytes, double rounds) {
  return {.codec_seconds = codec, .link_bytes = bytes, .rounds = rounds};
}

TEST(LinkEstimate, KnowsNothingOfWhatDidNotRun) {
  LinkEstimate estimate(kLink, 1);
  EXPECT_TRUE(estimate.seconds(0).empty());
  estimate.begin_step(1);
  estimate.add({0, 1, cost(1, 0, 0)});
  EXPECT_TRUE(estimate.seconds(1).empty()) << "the step has not ended";
  estimate.end_step(2, true);
  EXPECT_TRUE(estimate.seconds(0).empty());
  EXPECT_EQ(estimate.seconds(1).size(), 1u);
}

TEST(LinkEstimate, PutsTheLinkInThePlaceOfTheNetwork) {
  LinkEstimate estimate(kLink, 1);
  estimate.begin_step(0);
  // 3 s, of which the codec took 0.5; then 2 s of other work.
  estimate.add({10, 13, cost(0.5, 1e6, 2)});
  estimate.end_step(5, true);
  EXPECT_NEAR(estimate.seconds(0).at(0), 0.5 + 1 + 2 * 0.01 + 2, 1e-9);
}

TEST(LinkEstimate, HidesBehindBackwardWhatFitsThere) {
  LinkEstimate estimate(kLink, 1);
  estimate.begin_step(0);
  estimate.add({0, 0.1, cost(0, 3e6, 0)});
  estimate.add({4, 4.1, cost(0, 1e6, 0)});
  estimate.end_step(4.1, true);
  // The first bucket's 3 s fit into the 4 until the second one is ready.
  EXPECT_NEAR(estimate.seconds(0).at(0), 4 + 1, 1e-9);
}

TEST(LinkEstimate, TakesFromEachStepWhatIsTrainingsOwn) {
  LinkEstimate estimate(kLink, 1);
  // The network at hand is slow: the second bucket waited for the first, and training for the second.
  estimate.begin_step(0);
  estimate.add({0, 8, cost(0, 2e6, 0)});
  estimate.add({8, 16, cost(0, 2e6, 0)});
  estimate.end_step(17, true);
  // With few bytes it shows that backward has the second one ready after 1 s.
  estimate.begin_step(1);
  estimate.add({20, 20.2, cost(0.2, 0, 0)});
  estimate.add({21, 21.2, cost(0.2, 0, 0)});
  estimate.end_step(2.2, true);
  EXPECT_NEAR(estimate.seconds(0).at(0), 2 + 2 + 1, 1e-9);
  EXPECT_NEAR(estimate.seconds(1).at(0), 1 + 0.2 + 1, 1e-9);
}

TEST(LinkEstimate, HasEachUsualStep) {
  LinkEstimate estimate(kLink, 1);
  for (const auto& [codec, bytes] : {std::pair{0.3, 9e6}, {0.1, 1e6}, {0.2, 2e6}}) {
    estimate.begin_step(0);
    estimate.add({0, 1, cost(codec, bytes, 0)});
    estimate.end_step(1, bytes < 9e6);
  }
  const std::vector<double> seconds = estimate.seconds(0);
  ASSERT_EQ(seconds.size(), 2u);
  EXPECT_NEAR(seconds[0], 1.1, 1e-9);
  EXPECT_NEAR(seconds[1], 2.2, 1e-9);
}

TEST(LinkEstimate, WhereAGuardTookABucketStepsBeforeThatSayNothing) {
  LinkEstimate estimate(kLink, 1);
  for (const auto& [bytes, replaced] : {std::pair{1e6, false}, {4e6, true}, {5e6, true}, {6e6, false}}) {
    estimate.begin_step(0);
    estimate.add({0, 1, cost(0, bytes, 0)});
    estimate.end_step(1, true, replaced);
  }
  const std::vector<double> seconds = estimate.seconds(0);
  ASSERT_EQ(seconds.size(), 3u);
  EXPECT_NEAR(seconds[0], 4, 1e-9);
  EXPECT_NEAR(seconds[2], 6, 1e-9);
}

TEST(LinkEstimate, SharesTheLink) {
  LinkEstimate estimate(kLink, 2);
  estimate.begin_step(0);
  estimate.add({0, 1, cost(0, 1e6, 0)});
  estimate.end_step(1, true);
  EXPECT_NEAR(estimate.seconds(0).at(0), 2, 1e-9);
}

TEST(LinkEstimate, BeginsAnewWithOtherBuckets) {
  LinkEstimate estimate(kLink, 1);
  estimate.begin_step(0);
  estimate.add({0, 1, cost(0, 1e6, 0)});
  estimate.end_step(1, true);
  estimate.begin_step(1);
  estimate.add({0, 1, cost(0, 1e6, 0)});
  estimate.add({1, 2, cost(0, 1e6, 0)});
  estimate.end_step(2, true);
  EXPECT_TRUE(estimate.seconds(0).empty());
  EXPECT_NEAR(estimate.seconds(1).at(0), 2, 1e-9);
}

}  // namespace
}  // namespace thinwire::link_estimate_test
