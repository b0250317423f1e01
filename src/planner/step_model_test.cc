#include "planner/step_model.h"

#include <gtest/gtest.h>

#include <random>
#include <stdexcept>

namespace thinwire::step_model_test {
namespace {

constexpr StepResources kAlone{.bytes_per_second = 100, .latency_seconds = 0.5, .cores = 8, .lanes = 1};

/// Two buckets of 200 bytes, each 2 s on the link, 1 s for its latencies and 1 s for its codec.
const std::vector<BucketCost> kTwo(2, {.codec_seconds = 1, .link_bytes = 200, .rounds = 2});

TEST(StepModel, WhatComesAfterBackwardIsExposed) {
  const StepCost cost = step_cost({kTwo[0]}, {.ready = {10}, .backward_end = 10, .rest = 3}, kAlone);
  EXPECT_DOUBLE_EQ(cost.step, 17);
  EXPECT_DOUBLE_EQ(cost.compute, 13);
  EXPECT_DOUBLE_EQ(cost.codec, 1);
  EXPECT_DOUBLE_EQ(cost.wire, 2);
  EXPECT_DOUBLE_EQ(cost.wait, 1);
}

TEST(StepModel, WhatBackwardCoversIsNot) {
  const StepCost hidden = step_cost({kTwo[0]}, {.ready = {2}, .backward_end = 10, .rest = 3}, kAlone);
  EXPECT_DOUBLE_EQ(hidden.step, 13);
  EXPECT_DOUBLE_EQ(hidden.exposed(), 0);
  // The first takes from 2 to 6, the second from 6 to 10.
  EXPECT_DOUBLE_EQ(step_cost(kTwo, {.ready = {2, 3}, .backward_end = 7}, kAlone).step, 10);
}

TEST(StepModel, NothingToSynchronizeCostsNothing) {
  EXPECT_DOUBLE_EQ(step_cost({}, {.backward_end = 2, .rest = 1}, kAlone).step, 3);
  EXPECT_DOUBLE_EQ(step_cost({{}, {}}, {.ready = {1, 2}, .backward_end = 2, .rest = 1}, kAlone).step, 3);
}

/// Codecs and latencies of two lanes pass at the same time, transfers share the link.
TEST(StepModel, LanesShareTheLink) {
  StepResources resources = kAlone;
  resources.lanes = 2;
  const StepCost cost = step_cost(kTwo, {.ready = {10, 10}, .backward_end = 10}, resources);
  EXPECT_DOUBLE_EQ(cost.step, 10 + 0.5 + 1 + 4 + 0.5);
  EXPECT_DOUBLE_EQ(cost.wire, 4);
}

TEST(StepModel, ACodecTakesTimeOfACoreThatAlsoTrains) {
  StepResources resources = kAlone;
  resources.cores = 1;
  const BucketCost codec{.codec_seconds = 4};
  const StepCost shared = step_cost({codec}, {.ready = {2}, .backward_end = 10}, resources);
  EXPECT_DOUBLE_EQ(shared.step, 14);
  EXPECT_DOUBLE_EQ(shared.codec, 4);
  EXPECT_DOUBLE_EQ(step_cost({codec}, {.ready = {2}, .backward_end = 10, .threads = 0}, resources).step, 10)
      << "a device computes";
  // Two threads of training and one codec on two cores: the codec gets two thirds of a core for 6 seconds.
  resources.cores = 2;
  EXPECT_DOUBLE_EQ(step_cost({codec}, {.ready = {2}, .backward_end = 10, .threads = 2}, resources).step, 12);
  // Two ranks on one core, timed so: training has half of it for itself, and then each of two threads a
  // quarter.
  resources.cores = 0.5;
  EXPECT_DOUBLE_EQ(step_cost({codec}, {.ready = {2}, .backward_end = 4}, resources).step, 4 + 8);
}

TEST(StepModel, PartsAddUpAndNothingIsFasterThanComputing) {
  std::mt19937 random(7);
  const auto draw = [&](double most) { return std::uniform_real_distribution<double>(0, most)(random); };
  for (int run = 0; run < 2000; ++run) {
    StepCompute compute{.rest = draw(0.1), .threads = static_cast<double>(random() % 4)};
    std::vector<BucketCost> buckets(random() % 12);
    double alone = 0;
    for (BucketCost& bucket : buckets) {
      compute.backward_end += draw(0.05);
      compute.ready.push_back(compute.backward_end);
      bucket = {.codec_seconds = draw(0.02), .link_bytes = draw(1e6), .rounds = draw(9)};
      alone += bucket.codec_seconds + bucket.link_bytes / 1e7 + bucket.rounds * 1e-4;
    }
    compute.backward_end += draw(0.02);
    const StepResources resources{
        .bytes_per_second = 1e7, .latency_seconds = 1e-4, .cores = 0.5 + draw(4), .lanes = 1 + random() % 4};
    const StepCost cost = step_cost(buckets, compute, resources);
    EXPECT_NEAR(cost.step, cost.compute + cost.codec + cost.wire + cost.wait, 1e-9);
    EXPECT_GE(cost.step, compute.backward_end + compute.rest - 1e-9);
    const double slowest = std::max(1.0, compute.threads / resources.cores);
    EXPECT_LE(cost.step, (compute.backward_end + alone) * slowest / std::min(1.0, resources.cores) +
                             compute.rest + alone * 4 + 1e-9);
  }
}

TEST(StepModel, RefusesWhatCannotBe) {
  const StepCompute compute{.ready = {1}, .backward_end = 2};
  EXPECT_THROW(step_cost({}, compute, kAlone), std::invalid_argument);
  EXPECT_THROW(step_cost({{.codec_seconds = -1}}, compute, kAlone), std::invalid_argument);
  EXPECT_THROW(step_cost({{}}, {.ready = {3}, .backward_end = 2}, kAlone), std::invalid_argument);
  EXPECT_THROW(step_cost({{}, {}}, {.ready = {2, 1}, .backward_end = 2}, kAlone), std::invalid_argument);
  EXPECT_THROW(step_cost({{}}, compute, {.bytes_per_second = 0}), std::invalid_argument);
  EXPECT_THROW(step_cost({{}}, compute, {.bytes_per_second = 1, .cores = 0}), std::invalid_argument);
  EXPECT_THROW(step_cost({{}}, compute, {.bytes_per_second = 1, .lanes = 0}), std::invalid_argument);
}

}  // namespace
}  // namespace thinwire::step_model_test
