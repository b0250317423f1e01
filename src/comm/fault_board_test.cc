#include "comm/fault_board.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <map>
#include <thread>

#include "tests/fault_world.h"

namespace thinwire::fault_board_test {
namespace {

using Notes = std::vector<std::optional<FaultNote>>;
using Ranks = std::vector<int>;
using Seconds = FaultBoard::Seconds;
using testing::eventually;
using testing::kGrace;
using testing::MemoryStore;
using testing::World;

FaultNote failed(Ranks awaited) {
  return {.state = FaultNote::State::failed, .awaited = std::move(awaited), .beat = 0};
}

TEST(FaultNote, SurvivesTheStore) {
  for (const FaultNote& note : {failed({}), failed({3}), failed({0, 2}),
                                FaultNote{.state = FaultNote::State::waiting, .awaited = {1}, .beat = 7},
                                FaultNote{.state = FaultNote::State::busy, .awaited = {}, .beat = 8}}) {
    const auto parsed = FaultNote::parse(note.encode(), 4);
    ASSERT_TRUE(parsed.has_value()) << note.encode();
    EXPECT_EQ(parsed->state, note.state);
    EXPECT_EQ(parsed->awaited, note.awaited);
    EXPECT_EQ(parsed->beat, note.beat);
  }
}

TEST(FaultNote, RefusesWhatIsNone) {
  for (const char* text : {"", "failed", "1", "dead 0 1", "waiting x"}) {
    EXPECT_FALSE(FaultNote::parse(text, 4).has_value()) << text;
  }
  // Ranks outside of the world could index out of bounds; such a list counts as unknown.
  for (const char* text : {"failed 0 4", "failed 0 -1", "failed 0 1,99"}) {
    const auto note = FaultNote::parse(text, 4);
    ASSERT_TRUE(note.has_value()) << text;
    EXPECT_TRUE(note->awaited.empty()) << text;
  }
}

FaultNote busy() {
  return {.state = FaultNote::State::busy, .awaited = {}, .beat = 1};
}

ChainEnds ends_of(int self, const Ranks& awaited, const Notes& notes) {
  return follow_chain(self, static_cast<int>(notes.size()), awaited,
                      [&](int rank) { return notes[static_cast<std::size_t>(rank)]; });
}

Ranks silent_ranks(int self, const Ranks& awaited, const Notes& notes) {
  return ends_of(self, awaited, notes).silent;
}

TEST(SilentRanks, FollowsTheChain) {
  // 3 awaits 2, 2 awaits 1, 1 is silent; 0 is silent too, but nobody awaits it.
  const Notes notes{std::nullopt, std::nullopt, failed({1}), failed({2})};
  EXPECT_EQ(silent_ranks(3, {2}, notes), Ranks{1});
  EXPECT_EQ(silent_ranks(2, {1}, notes), Ranks{1});
}

TEST(SilentRanks, UnknownAwaitedIsAnyOther) {
  const Notes notes{failed({}), std::nullopt, failed({}), failed({2})};
  for (const int self : {0, 2, 3}) EXPECT_EQ(silent_ranks(self, {}, notes), Ranks{1}) << self;
  EXPECT_EQ(silent_ranks(3, {2}, notes), Ranks{1});
}

TEST(SilentRanks, NearestFirst) {
  const Notes notes{std::nullopt, failed({0}), std::nullopt, failed({2, 1})};
  EXPECT_EQ(silent_ranks(3, {2, 1}, notes), (Ranks{2, 0}));
}

TEST(SilentRanks, InACollectiveThoseThatGaveUpFirstDoNotHideTheOneThatIsGone) {
  // Rank 1 is frozen. Rank 3 gives up first and closes its connections, then rank 2, then rank 0.
  const Ranks three = awaited_in_collective({}, {2, 0}, 4);
  const Ranks two = awaited_in_collective({3}, {1, 3}, 4);
  const Ranks zero = awaited_in_collective({2, 3}, {3, 1}, 4);
  const Notes notes{failed(zero), std::nullopt, failed(two), failed(three)};
  EXPECT_EQ(silent_ranks(3, three, notes), Ranks{1});
  EXPECT_EQ(silent_ranks(2, two, notes), Ranks{1});
  EXPECT_EQ(silent_ranks(0, zero, notes), Ranks{1});
  // This rank's own network may be what is broken: that says nothing of the others.
  EXPECT_EQ(awaited_in_collective({0, 1, 3}, {1, 3}, 4), (Ranks{1, 3}));
}

TEST(SilentRanks, CyclesEnd) {
  const Notes notes{failed({1}), failed({2}), failed({0})};
  for (int self = 0; self < 3; ++self) EXPECT_TRUE(silent_ranks(self, {(self + 1) % 3}, notes).empty());
}

TEST(SilentRanks, ABusyRankEndsTheChainAndIsNotSilent) {
  const Notes notes{busy(), failed({0}), failed({1}), std::nullopt};
  const ChainEnds ends = ends_of(2, {1}, notes);
  EXPECT_TRUE(ends.silent.empty());
  EXPECT_EQ(ends.busy, Ranks{0});
}

TEST(FaultGrace, StaysWithinItsBounds) {
  EXPECT_DOUBLE_EQ(fault_grace(Seconds(0.1)).count(), 1.0);
  EXPECT_DOUBLE_EQ(fault_grace(Seconds(12)).count(), 3.0);
  EXPECT_DOUBLE_EQ(fault_grace(Seconds(300)).count(), 5.0);
}

TEST(NameRanks, ReadsAsEnglish) {
  EXPECT_EQ(name_ranks({1}), "rank 1");
  EXPECT_EQ(name_ranks({1, 3}), "ranks 1 and 3");
  EXPECT_EQ(name_ranks({0, 1, 3}), "ranks 0, 1 and 3");
}

/// Rank 2's note comes slowly, and each time leads to another rank: the last is rank 1, whose note stands
/// still.
class SlowStore final : public MemoryStore {
 public:
  std::optional<std::string> get(const std::string& key) override {
    if (!key.ends_with("note/2")) return MemoryStore::get(key);
    std::this_thread::sleep_for(kGrace / 3);
    const int read = ++reads_;
    return failed({read < 5 ? 2 + read : 1}).encode();
  }

 private:
  std::atomic<int> reads_{0};
};

TEST(FaultBoard, ARankThatIsHeardOfLateIsAskedTwice) {
  const auto store = std::make_shared<SlowStore>();
  for (const int rank : {3, 4, 5, 6}) {
    store->set("thinwire/fault/note/" + std::to_string(rank), failed({2}).encode());
  }
  store->set("thinwire/fault/note/1",
             FaultNote{.state = FaultNote::State::waiting, .awaited = {2}, .beat = 7}.encode());
  FaultBoard board(store, FaultBoard::Options{.rank = 0, .size = 8, .store_host = -1});
  board.set_grace(kGrace);
  board.report({2}, kGrace);
  EXPECT_EQ(board.judge().culprits, Ranks{1});
}

TEST(FaultBoard, AllNameTheSilentRankOfARing) {
  World world(4);
  world.is_dead(1);
  auto two = world.fails(2, {1});
  auto three = world.fails(3, {2});
  auto zero = world.fails(0, {3});
  EXPECT_EQ(zero.get().culprits, Ranks{1});
  EXPECT_EQ(two.get().culprits, Ranks{1});
  EXPECT_EQ(three.get().culprits, Ranks{1});
}

TEST(FaultBoard, AllNameTheSilentRankOfANativeCollective) {
  World world(4);
  world.is_dead(2);
  auto zero = world.fails(0, {});
  auto one = world.fails(1, {0}, kGrace / 3);  // woken by rank 0, which gave up first
  auto three = world.fails(3, {});
  EXPECT_EQ(zero.get().culprits, Ranks{2});
  EXPECT_EQ(one.get().culprits, Ranks{2});
  EXPECT_EQ(three.get().culprits, Ranks{2});
}

TEST(FaultBoard, InALargeWorldOneRankAsksForAll) {
  constexpr int kRanks = 70;
  constexpr Seconds kPatience{1.5};
  World world(kRanks, /*store_host=*/-1);
  world.is_dead(7);
  std::vector<std::future<Verdict>> verdicts;
  for (int rank = 0; rank < kRanks; ++rank) {
    if (rank == 7) continue;
    verdicts.push_back(
        std::async(std::launch::async, [&board = *world.boards[static_cast<std::size_t>(rank)]] {
          board.report({}, kPatience);
          return board.judge();
        }));
  }
  for (auto& verdict : verdicts) EXPECT_EQ(verdict.get().culprits, Ranks{7});
  // If every rank asked all others, one round would be as many as this, and there are several.
  EXPECT_LT(world.store->gets(), static_cast<std::size_t>(kRanks * kRanks));
}

TEST(FaultBoard, InALargeWorldOthersAskWhenTheOneThatAskedIsGone) {
  World world(70, /*store_host=*/-1);
  for (const int rank : {3, 9}) world.is_dead(rank);
  world.store->set("thinwire/fault/asks", "9");
  EXPECT_EQ(world.fails(0, {3}).get().culprits, Ranks{3});
}

TEST(FaultBoard, ALiveRankThatWaitsIsNotBlamed) {
  World world(3, /*store_host=*/2);
  world.is_dead(2);
  // Rank 1 waits for rank 2 and its deadline is far off: only its beats say so.
  world.boards[1]->waits_for({2}, kGrace);
  const Verdict verdict = world.fails(0, {1}).get();
  EXPECT_EQ(verdict.culprits, Ranks{2});
  EXPECT_FALSE(verdict.alive);
}

TEST(FaultBoard, ABusyRankIsNamedAsAlive) {
  World world(3);
  auto one = world.fails(1, {0});
  auto two = world.fails(2, {1});
  for (auto* waiting : {&one, &two}) {
    const Verdict verdict = waiting->get();
    EXPECT_EQ(verdict.culprits, Ranks{0});
    EXPECT_TRUE(verdict.alive);
    EXPECT_NE(verdict.reason.find("its process is alive"), std::string::npos) << verdict.reason;
  }
}

TEST(FaultBoard, EvidenceIsEveryonesVerdict) {
  World world(4);
  auto& board = *world.boards[3];
  board.report({0}, kGrace);
  EXPECT_EQ(board.judge({{1}, "its machine does not answer"}).culprits, Ranks{1});
  EXPECT_EQ(world.fails(2, {0}).get().culprits, Ranks{1});
}

TEST(FaultBoard, AFrozenStoreDoesNotHoldUpEvidence) {
  World world(3);
  world.store->freeze();
  auto& board = *world.boards[2];
  board.report({1}, kGrace);
  const Verdict verdict = board.judge({{1}, "its machine does not answer"});
  EXPECT_EQ(verdict.culprits, Ranks{1});
  EXPECT_EQ(verdict.reason, "its machine does not answer");
}

TEST(FaultBoard, HearsWhoBeatsAndWhatMoves) {
  World world(3);
  auto& board = *world.boards[2];
  world.is_dead(1);
  world.store->set("thinwire/fault/note/1", busy().encode());
  board.waits_for({0, 1}, Seconds(0.05));
  EXPECT_TRUE(eventually([&] { return board.hear(Seconds(1)).silent == Ranks{1}; }));
  world.boards[0]->announce_movement();
  EXPECT_TRUE(eventually([&] { return board.hear(Seconds(1)).movements == 1; }));
  // What an outage explains is no silence.
  board.out_of_reach_for(1e6);
  EXPECT_TRUE(board.hear(Seconds(1)).silent.empty());
}

TEST(FaultBoard, EveryRankLearnsWhoseItsConnectionsAre) {
  constexpr int kRanks = 20;
  auto store = std::make_shared<MemoryStore>();
  std::vector<std::unique_ptr<FaultBoard>> boards;
  // A ring: rank r shares "link r" with the next one.
  const auto token = [](int rank) {
    const std::string text = "link" + std::to_string(rank);
    return text + std::string(16 - text.size(), '.');
  };
  for (int rank = 0; rank < kRanks; ++rank) {
    const std::string links = token(rank) + token((rank + kRanks - 1) % kRanks);
    boards.push_back(std::make_unique<FaultBoard>(
        store, FaultBoard::Options{.rank = rank, .size = kRanks, .links = links}));
    boards.back()->set_grace(kGrace);
  }
  for (int rank = 0; rank < kRanks; ++rank) {
    std::optional<std::string> owners;
    EXPECT_TRUE(eventually([&] {
      owners = boards[static_cast<std::size_t>(rank)]->take_link_owners();
      return owners.has_value();
    }));
    const int next = (rank + 1) % kRanks;
    const int previous = (rank + kRanks - 1) % kRanks;
    EXPECT_EQ(owners, std::to_string(next) + " " + std::to_string(previous) + " ");
  }
  // Rank 0 reads each list once, and again one that was not there yet; nobody else reads any.
  EXPECT_LE(store->gets("thinwire/fault/links/"), 3u * kRanks);
}

TEST(FaultBoard, ARankFrozenWhileItWaitedIsBlamed) {
  World world(3, /*store_host=*/2);
  world.is_dead(1);
  world.store->set("thinwire/fault/note/1",
                   FaultNote{.state = FaultNote::State::waiting, .awaited = {2}, .beat = 5}.encode());
  EXPECT_EQ(world.fails(0, {1}).get().culprits, Ranks{1});
}

TEST(FaultBoard, LaterFailuresAdoptTheVerdict) {
  World world(4);
  EXPECT_EQ(world.fails(2, {1}).get().culprits, Ranks{1});
  // On its own it would have blamed rank 0, which has written nothing either.
  EXPECT_EQ(world.fails(3, {0}).get().culprits, Ranks{1});
  const Verdict own = world.fails(1, {0}).get();
  EXPECT_EQ(own.culprits, Ranks{1});
  EXPECT_NE(own.reason.find("gave up on this rank"), std::string::npos) << own.reason;
}

TEST(FaultBoard, TwoThatConcludeAtTheSameTimeNameTheSameRank) {
  World world(4);
  world.is_dead(0);
  world.is_dead(1);
  world.store->let_conclude_together(2);
  // Left to themselves one would blame rank 1, the other rank 0.
  auto two = world.fails(2, {1});
  auto three = world.fails(3, {0});
  const Verdict of_two = two.get();
  const Verdict of_three = three.get();
  EXPECT_EQ(of_two.culprits, of_three.culprits);
  EXPECT_EQ(of_two.culprits.size(), 1u);
  EXPECT_NE(of_two.reason, of_three.reason);  // one of them has adopted the other's
}

TEST(FaultBoard, ACircleBlamesNobody) {
  World world(2);
  auto zero = world.fails(0, {1});
  auto one = world.fails(1, {0});
  EXPECT_TRUE(zero.get().culprits.empty());
  EXPECT_TRUE(one.get().culprits.empty());
}

TEST(FaultBoard, ADeadStoreMeansItsHost) {
  World world(3);
  world.store->die();
  EXPECT_EQ(world.fails(2, {1}).get().culprits, Ranks{0});
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
}  // namespace thinwire::fault_board_test
