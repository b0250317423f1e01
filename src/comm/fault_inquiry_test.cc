// Who is blamed where the awaited rank waits elsewhere, or has left.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "comm/fault_board.h"
#include "tests/fault_world.h"

namespace thinwire::fault_inquiry_test {
namespace {

using Ranks = std::vector<int>;
using Seconds = FaultBoard::Seconds;
using testing::eventually;
using testing::kGrace;
using testing::World;

/// As where DDP sends buffers by a group of its own: rank 0 waits for rank 2 in that, and its board knows
/// nothing of it.
TEST(FaultInquiry, ABusyRankThatMayWaitForASilentOneIsNotBlamed) {
  World world(4);
  world.is_dead(2);
  auto one = world.fails(1, {0});
  auto three = world.fails(3, {1});
  for (auto* waiting : {&one, &three}) {
    const Verdict verdict = waiting->get();
    EXPECT_EQ(verdict.culprits, Ranks{2});
    EXPECT_FALSE(verdict.alive);
  }
}

TEST(FaultInquiry, ARankThatHasFailedIsNotTheSilentOne) {
  World world(4, /*store_host=*/-1);
  world.boards[2]->report({}, kGrace);  // and says no more
  EXPECT_TRUE(eventually([&] {
    const auto note = world.store->get("thinwire/fault/note/2");
    return note && note->starts_with("failed");
  }));
  EXPECT_EQ(world.fails(1, {0}).get().culprits, Ranks{0});
}

TEST(FaultInquiry, OneThatHasLeftIsBlamedWhereNobodyElseIsSilent) {
  World world(3, /*store_host=*/-1);
  world.boards[1]->leave(Seconds(0));
  world.is_dead(1);
  const Verdict verdict = world.fails(0, {1}).get();
  EXPECT_EQ(verdict.culprits, Ranks{1});
  EXPECT_TRUE(verdict.alive);
  EXPECT_NE(verdict.reason.find("it has left"), std::string::npos) << verdict.reason;
}

TEST(FaultInquiry, WhoAdoptsTheVerdictKnowsTooThatTheRankHasLeft) {
  for (const bool within_step : {false, true}) {
    World world(4, /*store_host=*/-1);
    if (within_step) world.boards[1]->leave_alone();
    if (!within_step) world.boards[1]->leave(Seconds(0));
    ASSERT_TRUE(eventually([&] { return world.store->get("thinwire/fault/left/1").has_value(); }));
    world.is_dead(1);
    const std::string why = within_step ? "an error ended its step" : "it has left";
    for (const int rank : {0, 2}) {  // the second adopts
      const Verdict verdict = world.fails(rank, {1}).get();
      EXPECT_EQ(verdict.culprits, Ranks{1}) << rank;
      EXPECT_TRUE(verdict.alive) << rank;
      EXPECT_NE(verdict.reason.find(why), std::string::npos) << rank << ": " << verdict.reason;
    }
  }
}

TEST(FaultInquiry, OneThatHasLeftIsNotBlamedBesideASilentOne) {
  World world(3, /*store_host=*/-1);
  world.boards[1]->leave(Seconds(0));
  for (const int rank : {1, 2}) world.is_dead(rank);
  EXPECT_EQ(world.fails(0, {1, 2}).get().culprits, Ranks{2});
}

TEST(FaultInquiry, AfterAnErrorElsewhereOneThatHasLeftIsNotMissed) {
  World world(3, /*store_host=*/-1);
  world.boards[1]->leave(Seconds(0));
  world.is_dead(1);
  world.boards[0]->report({1}, kGrace, Seconds(1));
  EXPECT_FALSE(world.boards[0]->judge_lost().says_something());
  EXPECT_FALSE(world.store->get("thinwire/fault/culprit").has_value());
}

TEST(FaultInquiry, ARankThatWaitsForNobodyHearsThatAnotherEndsByAnError) {
  World world(3);
  EXPECT_FALSE(world.boards[0]->others_have_ended());
  world.boards[1]->tell({.culprits = {1}, .reason = "no memory", .failed = true});
  EXPECT_TRUE(eventually([&] { return world.store->get("thinwire/fault/culprit").has_value(); }));
  std::this_thread::sleep_for(kGrace);
  EXPECT_FALSE(world.boards[0]->others_have_ended()) << "a script may catch its error and go on";
  world.boards[1]->tell_end();
  EXPECT_TRUE(eventually([&] { return world.boards[0]->others_have_ended(); }));
}

TEST(FaultInquiry, ARankThatWaitsForNobodyHearsThatAnotherIsGone) {
  World world(3);
  world.boards[1]->tell({{2}, "its machine does not answer"});
  EXPECT_TRUE(eventually([&] { return world.boards[0]->others_have_ended(); }));
}

/// As where all others wait for it in an operation that no board knows of.
TEST(FaultInquiry, TheNextRankIsBlamedOnceItIsSilentForTooLong) {
  World world(3);
  world.is_dead(2);
  world.boards[1]->watch_next(kGrace);
  EXPECT_TRUE(eventually([&] { return world.boards[0]->others_have_ended(); }));
  EXPECT_EQ(world.fails(0, {1}).get().culprits, Ranks{2});
}

TEST(FaultInquiry, SilenceAfterAnErrorThatAScriptMayHaveCaughtIsNoEnd) {
  World world(3, /*store_host=*/-1);
  world.boards[2]->tell({.culprits = {2}, .reason = "no memory", .failed = true});
  EXPECT_TRUE(eventually([&] { return world.store->get("thinwire/fault/culprit").has_value(); }));
  world.is_dead(2);
  world.boards[1]->watch_next(kGrace);
  std::this_thread::sleep_for(5 * kGrace);
  EXPECT_FALSE(world.boards[1]->others_have_ended());
}

TEST(FaultInquiry, ARankWhoseBoardIsNotOpenYetIsNotSilent) {
  World world(3, /*store_host=*/-1);
  world.boards[2].reset();
  world.store->erase("thinwire/fault/note/2");
  world.boards[1]->watch_next(kGrace);
  std::this_thread::sleep_for(5 * kGrace);
  EXPECT_FALSE(world.boards[1]->others_have_ended());
}

/// All have failed and await each other in a circle. One of them may not have come to say why it failed.
TEST(FaultInquiry, ARankThatEndsBeforeItHasItsVerdictIsSilent) {
  for (const bool ends : {false, true}) {
    World world(3, /*store_host=*/-1);
    world.boards[2]->report({0}, kGrace);
    EXPECT_TRUE(eventually(
        [&] { return world.store->get("thinwire/fault/note/2").value_or("").starts_with("failed"); }));
    if (ends) world.boards[2].reset();
    auto first = world.fails(0, {1});
    auto second = world.fails(1, {2});
    EXPECT_EQ(first.get().culprits, ends ? Ranks{2} : Ranks{});
    EXPECT_EQ(second.get().culprits, ends ? Ranks{2} : Ranks{});
  }
}

TEST(FaultInquiry, ARankThatStopsBeforeItsFirstBeatIsSilent) {
  World world(3, /*store_host=*/-1);
  world.boards[2].reset();
  world.store->erase("thinwire/fault/note/2");
  FaultBoard::write_first_note(*world.store, {.rank = 2});
  world.boards[1]->watch_next(kGrace);
  EXPECT_TRUE(eventually([&] { return world.boards[0]->others_have_ended(); }));
}

/// While this rank waits itself, its watch knows more.
TEST(FaultInquiry, TheNextRankIsNotBlamedByOneThatWaits) {
  World world(3, /*store_host=*/-1);
  world.is_dead(2);
  world.boards[1]->waits_for({0}, kGrace / 4);
  world.boards[1]->watch_next(kGrace);
  std::this_thread::sleep_for(5 * kGrace);
  EXPECT_FALSE(world.boards[1]->others_have_ended());
  world.boards[1]->waits_no_more();
  EXPECT_TRUE(eventually([&] { return world.boards[1]->others_have_ended(); }));
}

TEST(FaultInquiry, WhatIsNoListOfRanksBlamesNobody) {
  World world(3);
  for (const char* text : {"1:12", "3", "1,", "1 2", "7x"}) {
    world.store->set("thinwire/fault/culprit", text);
    std::this_thread::sleep_for(kGrace);
    EXPECT_FALSE(world.boards[0]->others_have_ended()) << text;
  }
}

/// On a slow link beats come late, behind large messages.
TEST(FaultInquiry, TheNextRankIsNotBlamedWhileBytesMove) {
  World world(3, /*store_host=*/-1);
  world.is_dead(2);
  world.boards[1]->watch_next(2 * kGrace);
  // Where nothing moves on this communicator's connections, those of the process's other one excuse it.
  World lane(3, /*store_host=*/-1);
  lane.is_dead(2);
  const auto signs = std::make_shared<FaultBoard::Signs>(0);
  for (auto* one : {&world, &lane}) one->boards[1]->share_signs(signs);
  lane.boards[1]->watch_next(2 * kGrace);
  for (int i = 0; i < 18; ++i) {
    world.boards[0]->announce_movement();
    std::this_thread::sleep_for(kGrace / 3);
  }
  EXPECT_FALSE(world.store->get("thinwire/fault/culprit").has_value());
  EXPECT_FALSE(lane.store->get("thinwire/fault/culprit").has_value());
}

TEST(FaultInquiry, TheNextRankIsNotBlamedWhileItBeatsNorWhenItHasLeft) {
  World world(4, /*store_host=*/-1);
  world.boards[0]->watch_next(kGrace);
  world.boards[2]->watch_next(kGrace);
  world.boards[3]->leave(Seconds(0));
  world.is_dead(3);
  std::this_thread::sleep_for(4 * kGrace);
  EXPECT_FALSE(world.store->get("thinwire/fault/culprit").has_value());
}

}  // namespace
}  // namespace thinwire::fault_inquiry_test
