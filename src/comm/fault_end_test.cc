// Fault boards at a process's end: what it tells, and for whom the store's host stays.
#include "comm/fault_board.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <thread>

#include "tests/fault_world.h"

namespace thinwire::fault_end_test {
namespace {

using Ranks = std::vector<int>;
using Seconds = FaultBoard::Seconds;
using testing::eventually;
using testing::kGrace;
using testing::World;

TEST(FaultBoard, TheHostStaysUntilTheOthersKnow) {
  World world(3);
  world.is_dead(1);
  auto host = world.fails(0, {1});
  auto late = world.fails(2, {0}, kGrace * 1.5);  // after the host's own verdict
  EXPECT_EQ(host.get().culprits, Ranks{1});
  world.store->die();  // as the host's process ends
  EXPECT_EQ(late.get().culprits, Ranks{1});
}

TEST(FaultBoard, TheHostStaysForALiveRankWhoseWaitBeganLater) {
  World world(3);
  world.is_dead(1);
  auto host = std::async(std::launch::async, [&] {
    world.boards[0]->report({1}, kGrace, /*deadline=*/Seconds(1000));
    return world.boards[0]->judge();
  });
  EXPECT_TRUE(eventually([&] { return world.store->get("thinwire/fault/culprit").has_value(); }));
  EXPECT_EQ(host.wait_for(3 * kGrace), std::future_status::timeout);
  EXPECT_EQ(world.fails(2, {0}).get().culprits, Ranks{1});
  EXPECT_EQ(host.get().culprits, Ranks{1});
}

TEST(FaultBoard, TheHostDoesNotStayForRanksThatDoNotLive) {
  World world(4);
  for (const int rank : {1, 2, 3}) world.is_dead(rank);
  world.boards[0]->report({1}, kGrace, /*deadline=*/Seconds(1000));
  EXPECT_EQ(world.boards[0]->judge().culprits, Ranks{1});  // not after 1000 s
}

TEST(FaultBoard, TheHostDoesNotStayForRanksThatHaveLeft) {
  World world(3);
  world.is_dead(2);
  world.boards[1]->leave_alone();
  world.boards[0]->report({2}, kGrace, /*deadline=*/Seconds(1000));
  EXPECT_EQ(world.boards[0]->judge().culprits, Ranks{2});  // not after 1000 s, though rank 1 still beats
}

TEST(FaultBoard, TheHostDoesNotStayForARankThatHasToldWhomItBlames) {
  World world(3);
  world.is_dead(2);
  world.boards[1]->tell({{2}, "another lane of this process has lost it"});
  world.boards[0]->report({2}, kGrace, /*deadline=*/Seconds(1000));
  EXPECT_EQ(world.boards[0]->judge().culprits, Ranks{2});  // not after 1000 s, though rank 1 still beats
}

TEST(FaultBoard, AWaitingRankHearsThatAnotherHasConcluded) {
  World world(3);
  world.boards[0]->waits_for({2}, Seconds(0.05));
  EXPECT_TRUE(eventually([&] { return world.boards[0]->hear(kGrace).store_answers > 3; }));
  EXPECT_FALSE(world.boards[0]->hear(kGrace).concluded);
  world.boards[2]->report({1}, kGrace);
  world.boards[2]->judge({{1}, "its machine does not answer"});
  EXPECT_TRUE(eventually([&] { return world.boards[0]->hear(kGrace).concluded; }));
}

TEST(FaultBoard, ARankThatEndsForAnotherReasonSaysWhoIsToBlame) {
  World world(3);
  world.boards[1]->tell({{2}, "its machine does not answer"});
  EXPECT_TRUE(eventually([&] { return world.store->get("thinwire/fault/culprit").has_value(); }));
  world.is_dead(1);
  // Left to itself it would blame rank 1, which has closed its connections and is gone.
  EXPECT_EQ(world.fails(0, {1}).get().culprits, Ranks{2});
}

TEST(FaultBoard, ARankThatFailsSaysWhyAndEndsOthersWaitsAndItsOwn) {
  World world(3);
  for (const int rank : {0, 1}) world.boards[rank]->waits_for({2}, Seconds(0.05));
  world.boards[1]->tell({.culprits = {1}, .reason = "no memory: 7\n", .failed = true});
  for (const int rank : {0, 1})
    EXPECT_TRUE(eventually([&] { return world.boards[rank]->hear(kGrace).concluded; }));
  world.is_dead(1);
  const Verdict heard = world.fails(0, {2}).get();
  EXPECT_EQ(heard.culprits, Ranks{1});
  EXPECT_EQ(heard.reason, "no memory: 7?");
  EXPECT_TRUE(heard.failed);
}

TEST(FaultBoard, WhatARankTellsAtItsEndIsTold) {
  World world(3);
  for (int i = 0; i < 20; ++i) world.boards[1]->tell({{2}, "its machine does not answer"});
  world.boards[1].reset();
  EXPECT_TRUE(world.store->get("thinwire/fault/culprit").has_value());
}

TEST(FaultBoard, WhatBlamesNobodyIsToldToo) {
  World world(3);
  world.boards[0]->waits_for({2}, Seconds(0.05));
  world.boards[1]->report({2}, kGrace);
  const Verdict own = world.boards[1]->judge({{}, "on rank 1 a step has no end\n"});
  EXPECT_EQ(own.reason, "on rank 1 a step has no end\n");
  EXPECT_TRUE(eventually([&] { return world.boards[0]->hear(kGrace).concluded; }));
  world.boards[0]->report({2}, kGrace);
  for (const int rank : {1, 2}) world.is_dead(rank);
  const Verdict heard = world.boards[0]->judge();
  EXPECT_TRUE(heard.culprits.empty());
  EXPECT_EQ(heard.reason, "on rank 1 a step has no end?");
}

TEST(FaultBoard, LeavingWaitsForAllWithinBounds) {
  World world(3);
  std::atomic<int> gone{0};
  std::vector<std::thread> ranks;
  for (auto& board : world.boards) {
    ranks.emplace_back([&] {
      board->leave(Seconds(30));
      ++gone;
    });
  }
  for (auto& rank : ranks) rank.join();
  EXPECT_EQ(gone, 3);

  EXPECT_EQ(world.store->gets("thinwire/fault/left/"), 0u);  // one counter, however many ranks there are

  World abandoned(2);
  abandoned.boards[0]->leave(Seconds(0.1));  // rank 1 never comes; this returns nevertheless
}

TEST(FaultBoard, TheHostThatLeavesStaysForARankThatAsks) {
  World world(3);
  world.is_dead(2);
  auto verdict = world.fails(1, {2});
  ASSERT_TRUE(eventually([&] {
    const auto note = world.store->get("thinwire/fault/note/1");
    return note && note->starts_with("failed");
  }));
  world.boards[0]->leave(kGrace / 2);
  world.boards[0]->stay_for_those_who_ask(kGrace / 2, Seconds(0));
  world.store->die();
  EXPECT_EQ(verdict.get().culprits, Ranks{2});
}

TEST(FaultBoard, TheHostThatLeavesStaysForARankThatWaitsForALongDeadline) {
  World world(3);
  world.is_dead(2);
  world.boards[1]->waits_for({2}, kGrace / 4);
  ASSERT_TRUE(eventually([&] {
    const auto note = world.store->get("thinwire/fault/note/1");
    return note && note->starts_with("waiting");
  }));
  auto verdict = world.fails(1, {2}, 8 * kGrace);  // later than an inquiry ends
  world.boards[0]->leave(kGrace);
  world.boards[0]->stay_for_those_who_ask(kGrace, 10 * kGrace);
  world.store->die();
  EXPECT_EQ(verdict.get().culprits, Ranks{2});
}

TEST(FaultBoard, TheHostThatLeavesDoesNotStayForRanksThatDoNotLiveNorForBusyOnes) {
  World world(3);
  world.is_dead(1);
  world.store->set("thinwire/fault/note/1", "waiting 1 2");
  world.boards[0]->leave(kGrace);
  // For ever, if it did.
  world.boards[0]->stay_for_those_who_ask(kGrace, Seconds(1e6));
}

}  // namespace
}  // namespace thinwire::fault_end_test
