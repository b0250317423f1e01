#include "planner/suspicion.h"

#include <gtest/gtest.h>

namespace thinwire::planner::suspicion_test {
namespace {

constexpr std::size_t kMixed = 4;  // member 2 with dense for some buckets

/// One that does not count, after which dense has the next one.
void fail(Suspicion& suspicion) {
  suspicion.begin_step(false);
  suspicion.does_not_count(kMixed, 2);
  EXPECT_TRUE(suspicion.dense_is_next());
}

void run_dense(Suspicion& suspicion, bool counts) {
  suspicion.begin_step(false);
  EXPECT_TRUE(suspicion.dense_runs());
  counts ? suspicion.counts(0) : suspicion.does_not_count(0, 0);
}

TEST(Suspicion, LeavesOutWhatFailsBeforeAndAfterAStepOfDenseThatCounts) {
  Suspicion suspicion;
  fail(suspicion);
  run_dense(suspicion, true);
  EXPECT_FALSE(suspicion.leaves_out(2));
  fail(suspicion);
  EXPECT_TRUE(suspicion.leaves_out(2));
  EXPECT_EQ(suspicion.left_out(), 1);
}

TEST(Suspicion, BlamesNobodyWhereDenseFailsAsWell) {
  Suspicion suspicion;
  fail(suspicion);
  run_dense(suspicion, false);
  EXPECT_FALSE(suspicion.dense_is_next());
  fail(suspicion);
  EXPECT_EQ(suspicion.left_out(), 0);
}

TEST(Suspicion, EndsWithAStepOfItsThatCounts) {
  Suspicion suspicion;
  fail(suspicion);
  run_dense(suspicion, true);
  suspicion.begin_step(false);
  suspicion.counts(kMixed);
  fail(suspicion);
  EXPECT_EQ(suspicion.left_out(), 0);
}

/// As where a rank failed for another reason than its values.
TEST(Suspicion, AStepThatWasGivenUpAndComesAgainNeedsNoDense) {
  Suspicion suspicion;
  fail(suspicion);
  suspicion.begin_step(true);
  EXPECT_FALSE(suspicion.dense_runs());
}

}  // namespace
}  // namespace thinwire::planner::suspicion_test
