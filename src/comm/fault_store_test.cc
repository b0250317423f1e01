// Fault boards whose store is gone, is silent for a while or answers late.
#include "comm/fault_board.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <thread>

#include "tests/fault_world.h"

namespace thinwire::fault_store_test {
namespace {

using Ranks = std::vector<int>;
using Seconds = FaultBoard::Seconds;
using testing::eventually;
using testing::kGrace;
using testing::MemoryStore;
using testing::World;

TEST(FaultBoard, ADeadStoreMeansItsHost) {
  World world(3);
  world.store->die();
  EXPECT_EQ(world.fails(2, {1}).get().culprits, Ranks{0});
}

TEST(FaultBoard, WhatWasReadBeforeTheStoreDiedStands) {
  World world(4);
  FaultBoard& board = *world.boards[3];
  board.waits_for({2}, Seconds(0.01));
  world.is_dead(1);
  EXPECT_EQ(world.fails(2, {1}).get().culprits, Ranks{1});
  ASSERT_TRUE(eventually([&] { return board.hear(kGrace).concluded; }));
  world.store->die();
  EXPECT_EQ(world.fails(3, {2}).get().culprits, Ranks{1});
}

TEST(FaultBoard, BeatsGoOnWhenTheStoreIsBack) {
  World world(2);
  world.store->die();
  EXPECT_TRUE(eventually([&] { return world.store->refused() >= 8; }));
  world.store->revive();
  for (const char* key : {"thinwire/fault/note/0", "thinwire/fault/note/1"}) {
    const auto before = world.store->get(key);
    EXPECT_TRUE(eventually([&] { return world.store->get(key) != before; })) << key;
  }
}

TEST(FaultBoard, AFrozenStoreMeansItsHost) {
  World world(3);
  world.store->freeze();
  auto one = world.fails(1, {2});
  auto two = world.fails(2, {});
  EXPECT_EQ(one.get().culprits, Ranks{0});
  EXPECT_EQ(two.get().culprits, Ranks{0});
  // Boards end while their threads are still stuck in the store.
  world.boards.clear();
}

/// Ticks of a watch on a board of rank 1 while an operation of the store is under way.
void pass(FaultBoard& board, int ticks, Seconds deadline) {
  EXPECT_TRUE(eventually([&] { return board.hear(Seconds(1)).asks_store; }));
  for (int i = 0; i < ticks; ++i) board.time_passes(Seconds(0.25), Seconds(0.25), deadline);
}

/// Rank 0, the store's host, is away for a while. Rank 2 gives up meanwhile and goes, and its note stands
/// still. Whom rank 1 blames, whose wait ends when the store is back.
Ranks blamed_after_an_absence(int ticks, double out_of_reach = 0) {
  World world(3);
  world.is_dead(2);
  FaultBoard& board = *world.boards[1];
  world.store->freeze();
  pass(board, 4, Seconds(3));
  if (out_of_reach > 0) board.out_of_reach_for(out_of_reach);
  pass(board, ticks - 4, Seconds(3));
  world.store->thaw();
  board.report({2}, kGrace, /*deadline=*/Seconds(1000));
  return board.judge().culprits;
}

TEST(FaultBoard, WhileTheStoreIsSilentForTheDeadlineItsHostIsAway) {
  EXPECT_EQ(blamed_after_an_absence(12), Ranks{0});
  EXPECT_EQ(blamed_after_an_absence(11), Ranks{2});
  // What an outage of the network explains is no absence.
  EXPECT_EQ(blamed_after_an_absence(16, /*out_of_reach=*/1), Ranks{2});
}

TEST(FaultBoard, AStoreThatAnswersNowAndThenIsNotAway) {
  World world(3);
  world.is_dead(2);
  FaultBoard& board = *world.boards[1];
  for (int pause = 0; pause < 3; ++pause) {
    world.store->freeze();
    pass(board, 8, Seconds(3));
    const auto answers = board.hear(Seconds(1)).store_answers;
    world.store->thaw();
    EXPECT_TRUE(eventually([&] { return board.hear(Seconds(1)).store_answers > answers; }));
    board.time_passes(Seconds(0.25), Seconds(0.25), Seconds(3));
  }
  board.report({2}, kGrace, Seconds(1000));
  EXPECT_EQ(board.judge().culprits, Ranks{2});
}

TEST(FaultBoard, AnAbsenceLongAgoExplainsNothing) {
  World world(3);
  world.is_dead(2);
  FaultBoard& board = *world.boards[1];
  board.time_passes(Seconds(7), Seconds(0.5), Seconds(3));
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  board.report({2}, kGrace, /*deadline=*/Seconds(0.01));
  EXPECT_EQ(board.judge().culprits, Ranks{2});
}

TEST(FaultBoard, ARankThatWasAwayItselfBlamesNobodyElse) {
  World world(3);
  for (const int rank : {1, 2}) world.is_dead(rank);
  FaultBoard& board = *world.boards[0];
  board.time_passes(Seconds(7.04), Seconds(0.5), Seconds(3));
  board.report({1}, kGrace, Seconds(1000));
  auto host = std::async(std::launch::async, [&] { return board.judge(); });
  EXPECT_TRUE(eventually([&] { return world.store->get("thinwire/fault/culprit") == "0"; }));
  const Verdict verdict = host.get();
  EXPECT_EQ(verdict.culprits, Ranks{0});
  EXPECT_EQ(verdict.reason, "this process itself was stopped for 7 s");
}

TEST(FaultBoard, ARankThatWasAwayUntilTheStoreWasGoneBlamesNobodyElse) {
  for (const bool noticed_before : {true, false}) {
    World world(3);
    FaultBoard& board = *world.boards[1];
    world.store->die();
    const auto wakes = [&] { board.time_passes(Seconds(20), Seconds(0.5), Seconds(10)); };
    if (noticed_before) wakes();
    board.report({0}, kGrace, Seconds(1000));
    auto woken = std::async(std::launch::async, [&] { return board.judge(); });
    if (!noticed_before) {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      wakes();
    } else {
      board.time_passes(Seconds(0.25), Seconds(0.25), Seconds(10));
    }
    const Verdict verdict = woken.get();
    EXPECT_EQ(verdict.culprits, Ranks{1});
    EXPECT_EQ(verdict.reason, "this process itself was stopped for 20 s");
  }
}

/// Pauses once in an inquiry, so that a last look comes just after the store is back. Rank 2's note moves
/// again a little later, and rank 1's all the time.
class PausingStore final : public MemoryStore {
 public:
  std::optional<std::string> get(const std::string& key) override {
    if (key.ends_with("note/1")) return busy(++beats_);
    if (!key.ends_with("note/2")) return MemoryStore::get(key);
    const int read = ++reads_;
    if (read == 2) std::this_thread::sleep_for(0.95 * kGrace);
    return busy(read < 4 ? 1 : 2);
  }

 private:
  static std::string busy(std::uint64_t beat) {
    return FaultNote{.state = FaultNote::State::busy, .awaited = {}, .beat = beat}.encode();
  }

  std::atomic<int> reads_{0};
  std::atomic<std::uint64_t> beats_{0};
};

TEST(FaultBoard, WhatAPauseOfTheStoreExplainsIsNoSilence) {
  FaultBoard board(std::make_shared<PausingStore>(),
                   FaultBoard::Options{.rank = 0, .size = 3, .store_host = -1});
  board.set_grace(kGrace);
  board.report({2}, kGrace);
  const Verdict verdict = board.judge();
  EXPECT_EQ(verdict.culprits, Ranks{2});
  EXPECT_TRUE(verdict.alive);
}

TEST(FaultBoard, AStoreOutsideOfTheRanksBlamesNone) {
  World world(2, /*store_host=*/-1);
  world.store->die();
  const Verdict verdict = world.fails(1, {0}).get();
  EXPECT_TRUE(verdict.culprits.empty());
  EXPECT_NE(verdict.reason.find("store"), std::string::npos);
}

}  // namespace
}  // namespace thinwire::fault_store_test
