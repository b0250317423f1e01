#include "comm/wait_watch.h"

#include <gtest/gtest.h>

#include <atomic>
#include <functional>

#include "tests/memory_store.h"

namespace thinwire::wait_watch_test {
namespace {

using Seconds = WaitWatch::Seconds;
using testing::eventually;
using testing::MemoryStore;
using Ranks = std::vector<int>;

constexpr Seconds kNever{1000};

/// Connections that do what a test says.
struct FakeLinks final : Links {
  struct Script {
    std::mutex mutex;
    std::vector<LinkState> states;
    std::vector<int> lost{};
    bool moves = false;  ///< A byte at every look, on all or on those to one rank.
    int moving_rank = -2;
    bool retries = true;  ///< What is not answered is sent again now and then.
    int looks = 0;
    std::vector<long> patience{};            ///< Of each call of probe().
    std::function<void(Script&)> at_look{};  ///< Changes something; called first, with the lock.

    void set(std::vector<LinkState> now) {
      std::lock_guard lock(mutex);
      states = std::move(now);
    }
    int seen() {
      std::lock_guard lock(mutex);
      return looks;
    }
  };
  explicit FakeLinks(std::shared_ptr<Script> the_script) : script(std::move(the_script)) {}
  std::string describe() const override { return {}; }
  std::vector<int> lost() const override {
    std::lock_guard lock(script->mutex);
    return script->lost;
  }
  void identify(const std::string&, int) override {}
  void probe(std::chrono::seconds, std::chrono::seconds patience) override {
    std::lock_guard lock(script->mutex);
    script->patience.push_back(patience.count());
  }
  std::vector<LinkState> look() override {
    std::lock_guard lock(script->mutex);
    ++script->looks;
    if (script->at_look) script->at_look(*script);
    for (LinkState& state : script->states) {
      state.moved += script->moves || script->moving_rank == state.rank ? 1 : 0;
      // As a retransmission now and then.
      state.tries += state.unanswered && script->retries && script->looks % 2 == 0 ? 1 : 0;
    }
    return script->states;
  }
  std::shared_ptr<Script> script;
};

LinkState link(int rank) {
  LinkState state;
  state.rank = rank;
  state.remote = "10.0.0." + std::to_string(rank + 1) + ":80";
  return state;
}

LinkState unanswered(int rank, double seconds) {
  LinkState state = link(rank);
  state.unanswered = true;
  state.tries = 2;
  state.since_answer = seconds;
  return state;
}

struct CountedCall final : WaitWatch::Call {
  void end() noexcept override { ++count; }
  std::atomic<int> count{0};
};

/// Rank 0 of three under a watch; ranks 1 and 2 are boards that beat.
struct Watched {
  explicit Watched(int store_host = 1, Seconds deadline = Seconds(1)) {
    for (int rank = 0; rank < 3; ++rank) {
      boards.push_back(std::make_unique<FaultBoard>(
          store, FaultBoard::Options{.rank = rank, .size = 3, .store_host = store_host}));
      boards.back()->set_grace(Seconds(0.3));
    }
    script->states = {link(1), link(2)};
    watch = std::make_unique<WaitWatch>(
        *boards[0], std::make_unique<FakeLinks>(script),
        WaitWatch::Options{.rank = 0, .size = 3, .store_host = store_host, .deadline = deadline});
  }
  void freeze(int rank) {
    boards[static_cast<std::size_t>(rank)].reset();
    store->set("thinwire/fault/note/" + std::to_string(rank), "busy 1 ");
  }
  /// Waits for rank `peer` until the watch has ended it.
  std::optional<Ending> wait(int peer, const WaitWatch::Limits& limits) {
    watch->begins(peer, limits, 0, &call);
    EXPECT_TRUE(eventually([&] { return watch->ended(); }));
    EXPECT_EQ(call.count, 1);
    return watch->ends();
  }
  /// So many looks from now.
  bool looks(int count) {
    const int until = script->seen() + count;
    return eventually([&] { return script->seen() >= until; });
  }

  std::shared_ptr<MemoryStore> store = std::make_shared<MemoryStore>();
  std::shared_ptr<FakeLinks::Script> script = std::make_shared<FakeLinks::Script>();
  std::vector<std::unique_ptr<FaultBoard>> boards;
  CountedCall call;
  std::unique_ptr<WaitWatch> watch;
};

TEST(WaitWatch, SilenceForTheDeadlineEndsAWait) {
  Watched rank;
  const auto ending = rank.wait(1, {Seconds(0.5), kNever, kNever});
  ASSERT_TRUE(ending.has_value());
  EXPECT_EQ(ending->what, "nothing arrived within 0.5 s");
  EXPECT_TRUE(ending->evidence.culprits.empty());  // the board has to ask
}

TEST(WaitWatch, AClosedConnectionOfAnAwaitedRankEndsAWaitWithinSeconds) {
  Watched rank;
  rank.script->set({link(2)});
  rank.script->lost = {1};
  const auto ending = rank.wait(1, {Seconds(4), kNever, kNever});
  ASSERT_TRUE(ending.has_value());
  EXPECT_EQ(ending->what, "the connection to rank 1 is closed");
  EXPECT_TRUE(ending->evidence.culprits.empty());  // it may have given up for another rank: the board asks
}

TEST(WaitWatch, AClosedConnectionEndsNoWaitForAnotherRankNorWhileBytesMove) {
  Watched rank;
  rank.script->set({link(2)});
  rank.script->lost = {1};
  rank.watch->begins(2, {Seconds(4), kNever, kNever}, 0, &rank.call);
  std::this_thread::sleep_for(Seconds(2.5));
  EXPECT_FALSE(rank.watch->ended());
  EXPECT_FALSE(rank.watch->ends().has_value());
  rank.script->moving_rank = 2;
  rank.watch->begins(-1, {Seconds(1), kNever, kNever}, 0, &rank.call);
  EXPECT_TRUE(rank.looks(20));  // twice the deadline
  EXPECT_FALSE(rank.watch->ended());
  EXPECT_FALSE(rank.watch->ends().has_value());
}

TEST(WaitWatch, ANeighbourThatHasLeftInGoodOrderIsNeitherLostNorSilentWhileTheOtherMayCome) {
  Watched rank;
  rank.boards[1]->leave_alone();
  ASSERT_TRUE(eventually([&] { return rank.store->get("thinwire/fault/left/1").has_value(); }));
  rank.boards[1].reset();
  rank.script->set({link(2)});
  rank.script->lost = {1};
  rank.watch->begins(-1, {Seconds(8), Seconds(4), kNever}, 0, &rank.call);
  std::this_thread::sleep_for(Seconds(6));  // a closed connection is waited for 2 s, and a beat for 4
  ASSERT_FALSE(rank.watch->ended()) << rank.watch->ends()->what;
  // Now nobody is left who could bring anything.
  rank.boards[2]->leave_alone();
  rank.script->set({});
  {
    std::lock_guard lock(rank.script->mutex);
    rank.script->lost = {1, 2};
  }
  EXPECT_TRUE(eventually([&] { return rank.watch->ended(); }));
  const auto ending = rank.watch->ends();
  ASSERT_TRUE(ending.has_value());
  EXPECT_TRUE(ending->what.ends_with(" is closed")) << ending->what;
}

TEST(WaitWatch, BytesThatMoveAreNoSilence) {
  Watched rank;
  rank.script->moves = true;
  rank.watch->begins(1, {Seconds(0.3), kNever, kNever}, 0, &rank.call);
  EXPECT_TRUE(rank.looks(15));  // twice the deadline at least
  EXPECT_FALSE(rank.watch->ended());
  EXPECT_FALSE(rank.watch->ends().has_value());
}

TEST(WaitWatch, ConnectionsThatNobodySharesDoNotCount) {
  // As those of the store's server, over which beats come.
  Watched rank;
  rank.script->moving_rank = -1;
  rank.script->set({link(1), link(-1)});
  const auto ending = rank.wait(1, {Seconds(0.5), kNever, kNever});
  ASSERT_TRUE(ending.has_value());
  EXPECT_EQ(ending->what, "nothing arrived within 0.5 s");
}

TEST(WaitWatch, MovementElsewhereIsNoSilence) {
  Watched rank;
  rank.watch->begins(1, {Seconds(1), kNever, kNever}, 0, &rank.call);
  for (int i = 0; i < 8; ++i) {
    rank.boards[2]->announce_movement();
    EXPECT_TRUE(rank.looks(2));
  }
  EXPECT_FALSE(rank.watch->ends().has_value());
}

TEST(WaitWatch, AStepHasALimitAlthoughBytesMove) {
  Watched rank;
  rank.script->moves = true;
  const auto ending = rank.wait(1, {Seconds(0.5), kNever, Seconds(1)});
  ASSERT_TRUE(ending.has_value());
  EXPECT_TRUE(ending->is_certain);
  EXPECT_NE(ending->what.find("more than 1 s in all"), std::string::npos) << ending->what;
  EXPECT_NE(ending->what.find("rank 1, though bytes still move"), std::string::npos) << ending->what;
}

TEST(WaitWatch, TheStepsLimitCountsItsWaitsTogetherAndThoseOfOthersNot) {
  Watched rank;
  rank.script->moves = true;
  const WaitWatch::Limits limits{Seconds(0.5), kNever, Seconds(1)};
  for (int step = 0; step < 4; ++step) {
    rank.watch->begins(1, limits, static_cast<std::uint64_t>(step), &rank.call);
    EXPECT_TRUE(rank.looks(6));
    EXPECT_FALSE(rank.watch->ends().has_value()) << step;
  }
  bool ended = false;
  for (int part = 0; part < 40 && !ended; ++part) {
    rank.watch->begins(1, limits, 9, &rank.call);
    EXPECT_TRUE(eventually([&, until = rank.script->seen() + 2] {
      return rank.watch->ended() || rank.script->seen() >= until;
    }));
    ended = rank.watch->ends().has_value();
  }
  EXPECT_TRUE(ended);
}

TEST(WaitWatch, AFrozenProcessIsNamedBeforeTheDeadline) {
  Watched rank;
  rank.freeze(2);
  const auto ending = rank.wait(2, {Seconds(2), Seconds(0.5), kNever});
  ASSERT_TRUE(ending.has_value());
  EXPECT_EQ(ending->evidence.culprits, Ranks{2});
  EXPECT_EQ(ending->what, "no sign of life for 0.5 s");
}

TEST(WaitWatch, OnABusyNetworkMissingBeatsMeanNothing) {
  Watched rank;
  rank.freeze(2);
  rank.script->moves = true;
  rank.watch->begins(2, {Seconds(0.5), Seconds(0.5), kNever}, 0, &rank.call);
  EXPECT_TRUE(rank.looks(20));
  EXPECT_FALSE(rank.watch->ends().has_value());
}

TEST(WaitWatch, ACollectiveAwaitsBothNeighbours) {
  Watched rank;
  rank.freeze(2);
  const auto ending = rank.wait(-1, {Seconds(3), Seconds(1), kNever});
  ASSERT_TRUE(ending.has_value());
  EXPECT_EQ(ending->evidence.culprits, Ranks{2});
}

TEST(WaitWatch, AFrozenStoreMeansItsHost) {
  Watched rank;
  rank.watch->begins(2, {Seconds(2), Seconds(0.5), kNever}, 0, &rank.call);
  EXPECT_TRUE(rank.looks(1));
  rank.store->freeze();
  EXPECT_TRUE(eventually([&] { return rank.watch->ended(); }));
  const auto ending = rank.watch->ends();
  ASSERT_TRUE(ending.has_value());
  EXPECT_EQ(ending->evidence.culprits, Ranks{1});
}

TEST(WaitWatch, IdleConnectionsAreProbedFromTheFirstWaitOn) {
  Watched rank;
  const auto patience = [&] {
    std::lock_guard lock(rank.script->mutex);
    return rank.script->patience;
  };
  EXPECT_TRUE(patience().empty());  // the deadline is not known yet
  for (int step = 0; step < 2; ++step) {
    rank.watch->begins(1, {Seconds(4), kNever, kNever}, 0, &rank.call);
    EXPECT_FALSE(rank.watch->ends().has_value());
    EXPECT_TRUE(eventually([&] { return !patience().empty(); }));
  }
  EXPECT_EQ(patience(), std::vector<long>{22});
  EXPECT_EQ(rank.script->seen(), 0);  // none of the waits was long
}

TEST(WaitWatch, AnOutageShorterThanTheDeadlineIsSurvived) {
  Watched rank;
  // Its own connections and its store are out of reach, and so the others' beats.
  rank.freeze(1);
  rank.script->set({unanswered(1, 0.5), unanswered(2, 0.5)});
  rank.watch->begins(1, {Seconds(0.6), Seconds(0.6), kNever}, 0, &rank.call);
  EXPECT_TRUE(rank.looks(12));
  EXPECT_FALSE(rank.watch->ended());
  // What was lost may come as late again as the outage was long.
  rank.script->set({link(1), link(2)});
  EXPECT_TRUE(rank.looks(5));
  EXPECT_FALSE(rank.watch->ended());
  // But not for ever.
  EXPECT_TRUE(eventually([&] { return rank.watch->ended(); }));
}

TEST(WaitWatch, AConnectionThatIsDeadForTheDeadlineIsNamed) {
  Watched rank;
  rank.script->set({link(1), unanswered(2, 5)});
  const auto ending = rank.wait(1, {Seconds(1), kNever, kNever});
  ASSERT_TRUE(ending.has_value());
  EXPECT_EQ(ending->what, "nothing has moved on the connection from rank 2 for 1 s");
  EXPECT_EQ(ending->evidence.culprits, Ranks{2});
}

TEST(WaitWatch, WhereAllConnectionsAreDeadItIsThisRanksNetwork) {
  Watched rank;
  rank.script->set({unanswered(1, 5), unanswered(2, 5)});
  const auto ending = rank.wait(1, {Seconds(1), kNever, kNever});
  ASSERT_TRUE(ending.has_value());
  EXPECT_TRUE(ending->is_certain);
  EXPECT_NE(ending->what.find("its own network"), std::string::npos) << ending->what;
}

TEST(WaitWatch, AConnectionIsNotDeadBeforeOneMoreRetransmission) {
  Watched rank;
  rank.script->retries = false;
  rank.script->set({link(1), unanswered(2, 0.6)});
  rank.watch->begins(1, {Seconds(0.5), kNever, kNever}, 0, &rank.call);
  EXPECT_TRUE(rank.looks(15));
  EXPECT_FALSE(rank.watch->ended());
  // It is not waited for without an end.
  rank.script->set({link(1), unanswered(2, 1.1)});
  EXPECT_TRUE(eventually([&] { return rank.watch->ended(); }));
  const auto ending = rank.watch->ends();
  ASSERT_TRUE(ending.has_value());
  EXPECT_EQ(ending->evidence.culprits, Ranks{2});
}

TEST(WaitWatch, TheFirstDeadConnectionDoesNotSpeakForAll) {
  Watched rank;
  rank.script->set({unanswered(1, 0.6), unanswered(2, 0.4)});
  rank.watch->begins(1, {Seconds(0.5), kNever, kNever}, 0, &rank.call);
  EXPECT_TRUE(rank.looks(15));
  EXPECT_FALSE(rank.watch->ended());
  rank.script->set({unanswered(1, 0.7), unanswered(2, 0.5)});
  EXPECT_TRUE(eventually([&] { return rank.watch->ended(); }));
  const auto ending = rank.watch->ends();
  ASSERT_TRUE(ending.has_value());
  EXPECT_NE(ending->what.find("its own network"), std::string::npos) << ending->what;
}

TEST(WaitWatch, ADeadConnectionEndsAWaitAlthoughOthersCarryBytes) {
  Watched rank;
  rank.script->moving_rank = 1;
  rank.script->set({link(1), unanswered(2, 5)});
  const auto ending = rank.wait(2, {Seconds(0.5), kNever, kNever});
  ASSERT_TRUE(ending.has_value());
  EXPECT_EQ(ending->evidence.culprits, Ranks{2});
}

TEST(WaitWatch, AnInterruptedNetworkIsKnownWithoutTheStore) {
  // Before anybody could say which connections are whose.
  Watched rank;
  rank.store->freeze();
  rank.script->set({unanswered(-1, 5), unanswered(-1, 5)});
  const auto ending = rank.wait(1, {Seconds(0.5), kNever, kNever});
  ASSERT_TRUE(ending.has_value());
  EXPECT_TRUE(ending->is_certain);
  EXPECT_NE(ending->what.find("its own network"), std::string::npos) << ending->what;
}

TEST(WaitWatch, TheStoresHostIsNamedWhereItsMachineDoesNotAnswer) {
  Watched rank;
  rank.script->retries = false;
  rank.script->set({link(-1), unanswered(-1, 0.3)});
  rank.watch->begins(2, {Seconds(0.5), kNever, kNever}, 0, &rank.call);
  EXPECT_TRUE(rank.looks(1));
  rank.store->freeze();
  EXPECT_TRUE(rank.looks(20));
  EXPECT_FALSE(rank.watch->ended());
  rank.script->set({link(-1), unanswered(-1, 1)});
  EXPECT_TRUE(eventually([&] { return rank.watch->ended(); }));
  const auto ending = rank.watch->ends();
  ASSERT_TRUE(ending.has_value());
  EXPECT_EQ(ending->evidence.culprits, Ranks{1});
  EXPECT_NE(ending->what.find("store does not answer"), std::string::npos) << ending->what;
}

TEST(WaitWatch, AConnectionThatEndsIsNoMovement) {
  Watched rank;
  LinkState busy = link(2);
  busy.moved = 1000;
  rank.script->set({link(1), busy});
  rank.watch->begins(1, {Seconds(1), kNever, kNever}, 0, &rank.call);
  EXPECT_TRUE(rank.looks(7));
  rank.script->set({link(1)});
  EXPECT_TRUE(eventually([&] { return rank.watch->ended(); }));
  EXPECT_TRUE(rank.watch->ends().has_value());
  // Were it movement, there would be ten looks from then on.
  EXPECT_LT(rank.script->seen(), 15);
}

TEST(WaitWatch, TheLastBytesOfAConnectionThatEndsAreNoMovement) {
  Watched rank;
  // A rank that gives up sends something before it closes, and a look may come between.
  rank.script->at_look = [](FakeLinks::Script& script) {
    if (script.looks == 7) script.states[1].moved += 48;
    if (script.looks == 8) script.states.pop_back();
  };
  const auto ending = rank.wait(1, {Seconds(1), kNever, kNever});
  ASSERT_TRUE(ending.has_value());
  EXPECT_EQ(ending->what, "nothing arrived within 1 s");
  EXPECT_LT(rank.script->seen(), 15);
}

TEST(WaitWatch, AHostOfTheStoreThatWasAwayIsNamedWhenItIsBack) {
  Watched rank;  // rank 1 serves the store
  rank.watch->begins(2, {Seconds(0.5), kNever, kNever}, 0, &rank.call);
  EXPECT_TRUE(rank.looks(2));
  rank.store->freeze();
  EXPECT_TRUE(eventually([&] { return rank.watch->ended(); }));
  // While it was away rank 2 has given up, and gone.
  EXPECT_TRUE(rank.watch->ends().has_value());
  rank.boards[2].reset();
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  rank.store->thaw();
  rank.boards[0]->report({2}, Seconds(0.3), Seconds(1000));
  EXPECT_EQ(rank.boards[0]->judge().culprits, Ranks{1});
}

TEST(WaitWatch, BeforeTheFirstWaitTheDeadlineHoldsAsLater) {
  Watched patient(/*store_host=*/1, kNever);
  Watched hasty(/*store_host=*/1, Seconds(0.5));
  for (Watched* rank : {&patient, &hasty}) rank->store->freeze();
  EXPECT_TRUE(eventually([&] { return hasty.boards[0]->others_have_ended(); }));
  std::this_thread::sleep_for(std::chrono::milliseconds(1500));
  EXPECT_FALSE(patient.boards[0]->others_have_ended());
}

TEST(WaitWatch, TheNextRankIsWatchedBeforeTheFirstWait) {
  Watched rank(/*store_host=*/-1, Seconds(0.4));
  rank.freeze(1);
  EXPECT_TRUE(eventually([&] { return rank.boards[0]->others_have_ended(); }));
  EXPECT_EQ(rank.store->get("thinwire/fault/culprit"), "1");
}

TEST(WaitWatch, WhenAnotherRankHasGivenUpNobodyWaits) {
  Watched rank;
  rank.script->moves = true;
  rank.boards[2]->report({1}, Seconds(0.3));
  EXPECT_EQ(rank.boards[2]->judge({{1}, "its machine does not answer"}).culprits, Ranks{1});
  const auto ending = rank.wait(1, {Seconds(5), kNever, kNever});
  ASSERT_TRUE(ending.has_value());
  EXPECT_EQ(ending->what, "another rank has given up");
  EXPECT_TRUE(ending->evidence.culprits.empty());
  rank.boards[0]->report({2}, Seconds(0.3));
  EXPECT_EQ(rank.boards[0]->judge(ending->evidence).culprits, Ranks{1});
}

}  // namespace
}  // namespace thinwire::wait_watch_test
