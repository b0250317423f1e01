#include "apps/train/over_seeds.h"

#include <gtest/gtest.h>

#include <cmath>

namespace thinwire::train {
namespace {

RunResult run_of(const std::string& label, std::uint64_t seed, double accuracy, bool failed = false) {
  RunResult result;
  result.label = label;
  result.seed = seed;
  result.system = system_name(label);
  result.epochs = {{.epoch = 1, .test_accuracy = accuracy}};
  result.costs = {{.steps = 10, .bytes_sent = 1000}};
  if (failed) result.failure = "diverged: x";
  return result;
}

TEST(OverSeeds, MeanAndDeviationOfASample) {
  EXPECT_EQ(spread_of({}).mean, -1);
  EXPECT_EQ(spread_of({3}).mean, 3);
  EXPECT_EQ(spread_of({3}).deviation, -1);
  EXPECT_DOUBLE_EQ(spread_of({1, 2, 6}).mean, 3);
  EXPECT_DOUBLE_EQ(spread_of({1, 2, 6}).deviation, std::sqrt(7.0));
}

TEST(OverSeeds, RunsOfASystemBelongTogetherInTheOrderOfTheFirst) {
  const std::vector<RunResult> results = {run_of("marsit", 1, 0.7), run_of("dense", 1, 0.9),
                                          run_of("marsit", 2, 0.8), run_of("dense", 2, 0.9)};
  const auto systems = over_seeds(results);
  ASSERT_EQ(systems.size(), 2u);
  EXPECT_EQ(measure_of(systems[0]), "0.7500 +- 0.0707");
  EXPECT_EQ(measure_of(systems[1]), "0.9000 +- 0.0000");
  const auto json = to_json(systems[0]);
  EXPECT_EQ(json["seeds"], (std::vector<int>{1, 2}));
  EXPECT_EQ(json["finished"], 2);
  EXPECT_DOUBLE_EQ(json["test_accuracy_mean"].get<double>(), 0.75);
  EXPECT_NEAR(json["test_accuracy_deviation"].get<double>(), 0.1 / std::sqrt(2), 1e-12);
  EXPECT_TRUE(json["perplexity_mean"].is_null());
  const std::string text = table(results);
  EXPECT_NE(text.find("0.7500 +- 0.0707"), std::string::npos) << text;
  EXPECT_NE(text.find("100.00 %"), std::string::npos) << text;
}

TEST(OverSeeds, AFailureIsSaidAndNotAveraged) {
  const std::vector<RunResult> results = {run_of("ssdm", 1, 0.1, true), run_of("ssdm", 2, 0.8),
                                          run_of("ssdm", 3, 0.6)};
  const auto systems = over_seeds(results);
  EXPECT_EQ(measure_of(systems[0]), "diverged (1 of 3)");
  EXPECT_EQ(to_json(systems[0])["finished"], 2);
  EXPECT_DOUBLE_EQ(to_json(systems[0])["test_accuracy_mean"].get<double>(), 0.7);
}

TEST(OverSeeds, OneSeedHasNoDeviation) {
  const std::vector<RunResult> results = {run_of("dense", 1, 0.5)};
  const auto systems = over_seeds(results);
  EXPECT_EQ(measure_of(systems[0]), "0.5000");
  EXPECT_TRUE(to_json(systems[0])["test_accuracy_deviation"].is_null());
}

}  // namespace
}  // namespace thinwire::train
