#include "comm/fault_board.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
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

}  // namespace
}  // namespace thinwire::fault_board_test
