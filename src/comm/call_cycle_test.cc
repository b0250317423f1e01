#include "comm/call_cycle.h"

#include <gtest/gtest.h>

#include <vector>

namespace thinwire::call_cycle_test {
namespace {

using Step = std::vector<std::uint64_t>;

/// Makes the calls of a step; how many of them were expected.
int make(CallCycle& cycle, std::uint64_t step, const Step& calls) {
  int expected = 0;
  for (const std::uint64_t call : calls) {
    expected += cycle.begin(call, step) ? 1 : 0;
    cycle.end(call);
  }
  return expected;
}

TEST(CallCycle, ExpectsWhatTwoStepsHaveDone) {
  CallCycle cycle;
  EXPECT_EQ(make(cycle, 5, {1, 2, 3}), 0);
  EXPECT_EQ(make(cycle, 6, {1, 2, 3}), 0);
  EXPECT_EQ(make(cycle, 7, {1, 2, 3}), 3);
  EXPECT_EQ(make(cycle, 8, {1, 2, 3}), 3);
}

TEST(CallCycle, ExpectsNothingAfterAStepThatEndedEarly) {
  CallCycle cycle;
  for (std::uint64_t step = 0; step < 3; ++step) make(cycle, step, {1, 2, 3});
  EXPECT_EQ(make(cycle, 3, {1, 2}), 2);
  EXPECT_EQ(make(cycle, 4, {1, 2, 3}), 0);
  EXPECT_EQ(make(cycle, 5, {1, 2, 3}), 0);
  EXPECT_EQ(make(cycle, 6, {1, 2, 3}), 3);
}

TEST(CallCycle, ExpectsNothingElseThanTheNextCallOfTheStepBefore) {
  for (const Step& other : {Step{2, 1, 3}, Step{1, 3}, Step{1, 2, 2}, Step{1, 2, 3, 4}, Step{4}}) {
    CallCycle cycle;
    for (std::uint64_t step = 0; step < 3; ++step) make(cycle, step, {1, 2, 3});
    bool as_before = true;
    for (std::size_t i = 0; i < other.size(); ++i) {
      as_before = as_before && i < 3 && other[i] == i + 1;
      EXPECT_EQ(cycle.begin(other[i], 3), as_before);
      cycle.end(other[i]);
    }
    EXPECT_EQ(make(cycle, 4, {1, 2, 3}), 0);
  }
}

TEST(CallCycle, ExpectsNothingAfterAStepThatWasLeftOutOrMadeTwice) {
  for (const std::uint64_t step : {1, 2, 4, 90}) {
    CallCycle cycle;
    for (std::uint64_t before = 0; before < 3; ++before) make(cycle, before, {1, 2});
    EXPECT_EQ(make(cycle, step, {1, 2}), 0) << step;
  }
}

TEST(CallCycle, ExpectsNothingAfterACallThatFailed) {
  CallCycle cycle;
  for (std::uint64_t step = 0; step < 3; ++step) make(cycle, step, {1, 2});
  EXPECT_TRUE(cycle.begin(1, 3));
  cycle.forget();
  EXPECT_EQ(make(cycle, 3, {2}), 0);
  EXPECT_EQ(make(cycle, 4, {1, 2}), 0);
}

}  // namespace
}  // namespace thinwire::call_cycle_test
