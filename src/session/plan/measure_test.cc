#include "session/plan/measure.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <numeric>
#include <stdexcept>

namespace thinwire::plan_measure_test {
namespace {

/// Where ranks of all networks meet that compute at the same time.
struct Meeting {
  Meeting(int ranks, int failing_call) : expected(ranks), throws_at(failing_call) {}

  int expected;
  int throws_at;  // -1: no call fails
  std::mutex mutex;
  std::condition_variable changed;
  int calls = 0;
  int inside = 0;
  int most = 0;

  void call() {
    std::unique_lock lock(mutex);
    if (calls++ == throws_at) throw std::logic_error("one network fails");
    most = std::max(most, ++inside);
    changed.notify_all();
    if (throws_at < 0) changed.wait_for(lock, std::chrono::seconds(60), [&] { return most >= expected; });
    --inside;
  }
};

class Meets final : public Synchronizer {
 public:
  explicit Meets(Meeting& meeting) : meeting_(meeting) {}
  void synchronize(BucketId, Span<float>, Span<float>, Step&) override { meeting_.call(); }
  std::uint64_t payload_bytes(const Workload&) const override { return 0; }

 private:
  Meeting& meeting_;
};

CodecTime time_meeting(Meeting& meeting, int at_once) {
  Registry registry;
  SystemInfo info;
  info.name = "meets";
  info.make = [&](const Options&, Inner) -> std::unique_ptr<Synchronizer> {
    return std::make_unique<Meets>(meeting);
  };
  registry.add(info);
  return time_codec("meets", {{"a", 100, 10}}, {.at_once = at_once, .registry = &registry});
}

TEST(PlanMeasure, AsManyRanksComputeAtTheSameTimeAsWereAskedFor) {
  for (const int at_once : {1, 3}) {
    Meeting meeting(at_once, -1);
    time_meeting(meeting, at_once);
    EXPECT_EQ(meeting.most, at_once);
  }
}

TEST(PlanMeasure, ANetworkThatFailsEndsTheTiming) {
  Meeting meeting(3, 30);
  EXPECT_THROW(time_meeting(meeting, 3), std::logic_error);
  EXPECT_THROW(time_codec("nonsense", {{"a", 100, 10}}, {.at_once = 2}), std::invalid_argument);
}

TEST(PlanMeasure, SumsWithinAHostAreTimed) {
  const CodecTime time = time_codec("dense", {{"a", 1 << 20, 1 << 10}}, {.at_once = 2, .ranks_per_host = 2});
  EXPECT_GT(time.seconds, 1e-5);
  EXPECT_GE(time.spread, 0);
}

const BucketLayout kMatrix = {{"a", 10'000, 100}};

/// A ring's messages wait for each other as they are; those of owners wait where they take turns.
TEST(PlanMeasure, RoundsMessagesAndTurnsAreCounted) {
  const Exchanges dense = count_exchanges("dense", kMatrix, 1, 5);
  const double stamps = 4;
  EXPECT_EQ(dense.rounds, 2 * 4 + 1);
  EXPECT_EQ(dense.messages, 2 * 4 + stamps);
  EXPECT_EQ(dense.turns, 0);
  const Exchanges half = count_exchanges("half", kMatrix, 1, 5);
  EXPECT_EQ(half.rounds, 2 + 1);
  EXPECT_EQ(half.messages, 2 * 4 + stamps);
  EXPECT_EQ(half.turns, 2 * (5 - 2));
}

TEST(PlanMeasure, WhatManyRanksSendIsExtrapolated) {
  for (const char* spec : {"dense", "half", "power_sgd:rank=4:bits=8"}) {
    const Exchanges counted = count_exchanges(spec, kMatrix, 1, 24);
    const Exchanges found =
        extrapolated({count_exchanges(spec, kMatrix, 1, 4), count_exchanges(spec, kMatrix, 1, 8),
                      count_exchanges(spec, kMatrix, 1, 16)},
                     24);
    EXPECT_EQ(found.rounds, counted.rounds) << spec;
    EXPECT_EQ(found.messages, counted.messages) << spec;
    EXPECT_EQ(found.turns, counted.turns) << spec;
  }
}

TEST(PlanMeasure, PartsOfAHostMakeTheBucket) {
  const auto parts = parts_of_host({{"a", 1'000'000, 1000}, {"v", 300, 300}, {"w", 400'000, 100}}, 4);
  ASSERT_EQ(parts.size(), 4u);
  const auto all =
      std::accumulate(parts.begin(), parts.end(), std::size_t{0},
                      [](std::size_t sum, const BucketLayout& part) { return sum + elements_of(part); });
  EXPECT_EQ(all, 1'400'300u);
  EXPECT_EQ(
      std::ranges::count_if(parts, [](const BucketLayout& part) { return elements_of(part) >= 100'000; }), 4);
}

}  // namespace
}  // namespace thinwire::plan_measure_test
