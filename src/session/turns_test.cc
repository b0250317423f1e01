// Long messages go one sender at a time to each receiver, whatever the ranks think of their links, and change
// no result.

#include "core/turns.h"

#include <gtest/gtest.h>

#include <cctype>
#include <chrono>
#include <map>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "tests/tapped_communicator.h"
#include "thinwire/in_process.h"
#include "thinwire/session.h"

namespace thinwire::turns_test {
namespace {

using Sending = Communicator::Sending;

constexpr double kFast = 1e12;  // bytes per second: nothing is long
constexpr std::size_t kRows = 65536;
constexpr std::size_t kWidth = 16;

/// Has it see this rate until it takes it for the link's.
void believe(Communicator& communicator, double bytes_per_second) {
  for (int i = 0; i < 1000; ++i) {
    communicator.saw_inflow(bytes_per_second, 1, Sending::in_turns);
    communicator.saw_inflow(bytes_per_second, 1, Sending::at_once);
  }
  ASSERT_EQ(communicator.inflow(Sending::in_turns), bytes_per_second);
  ASSERT_EQ(communicator.inflow(Sending::at_once), bytes_per_second);
}

/// The ranks that are awaited before and after a message of `bytes` to self + 3 of 5 ranks, in their order.
struct Awaited {
  std::vector<std::size_t> before;
  std::vector<std::size_t> after;
};

Awaited awaited(int world, std::size_t bytes, double inflow) {
  Awaited awaited;
  run_in_process(world, [&](Communicator& communicator) {
    if (communicator.rank() != 1) return;
    believe(communicator, inflow);
    Turns turns(communicator);
    const auto last = static_cast<std::size_t>(world - 2);
    turns.before(last, bytes, [&](std::size_t peer) { awaited.before.push_back(peer); });
    turns.rest([&](std::size_t peer) { awaited.after.push_back(peer); });
  });
  return awaited;
}

TEST(Turns, ALongMessageWaitsForThoseThatGoAhead) {
  using Ranks = std::vector<std::size_t>;
  const Awaited waits = awaited(5, 1 << 20, 1e6);
  EXPECT_EQ(waits.before, (Ranks{0, 4}));
  EXPECT_EQ(waits.after, (Ranks{3, 2}));
}

TEST(Turns, WhatTheQueueHoldsDoesNotWait) {
  const std::size_t bytes = 1 << 20;
  // What 4 others send at once fills the link for 20 ms at this rate.
  const double rate = 4 * bytes / 0.02;
  EXPECT_EQ(awaited(5, bytes, 1.01 * rate).before.size(), 0u);
  EXPECT_EQ(awaited(5, bytes, 0.99 * rate).before.size(), 2u);
  EXPECT_EQ(awaited(5, Turns::kShortBytes - 1, 1).before.size(), 0u);
  EXPECT_EQ(awaited(3, Turns::kShortBytes, 1).before.size(), 0u) << "the first message waits for nobody";
}

/// A rank that comes late finds all messages there, and one that waits for it sees hardly any.
TEST(Turns, FewExchangesWithALateRankDoNotChangeTheRate) {
  run_in_process(1, [](Communicator& communicator) {
    constexpr auto kTurns = Sending::in_turns;
    EXPECT_EQ(communicator.inflow(), 0);
    communicator.saw_inflow(1e12, 1, kTurns);
    EXPECT_EQ(communicator.inflow(), Communicator::kFirstInflow);
    believe(communicator, 1e9);
    for (int i = 0; i < 20; ++i) {
      communicator.saw_inflow(1e12, 1, kTurns);
      communicator.saw_inflow(1e9, 1, kTurns);
      communicator.saw_inflow(1e9, 1, kTurns);
      communicator.saw_inflow(1e6, 1, kTurns);
    }
    EXPECT_NEAR(communicator.inflow(kTurns), 1e9, 0.2e9);
    for (int i = 0; i < 300; ++i) communicator.saw_inflow(1e7, 1, kTurns);
    EXPECT_EQ(communicator.inflow(kTurns), 1e7);
  });
}

/// How many of so many long exchanges go in turns where these and the others see these rates.
int in_turns(int exchanges, double turns, double at_once) {
  int found = 0;
  run_in_process(1, [&](Communicator& communicator) {
    for (int i = 0; i < exchanges; ++i) {
      const Sending how = communicator.choose_sending();
      found += how == Sending::in_turns;
      communicator.saw_inflow(how == Sending::in_turns ? turns : at_once, 1, how);
    }
  });
  return found;
}

TEST(Turns, AreTakenWhereTheyBringMore) {
  EXPECT_GE(in_turns(1000, 1e8, 4e7), 940) << "packets are lost otherwise";
  EXPECT_GE(in_turns(1000, 1e8, 1e8), 940) << "as good";
  EXPECT_LE(in_turns(1000, 4e7, 1e8), 150) << "a link of much latency";
}

TEST(Turns, AreTakenAgainWhereTheLinkHasChanged) {
  run_in_process(1, [&](Communicator& communicator) {
    int last = 0;
    for (int i = 0; i < 3000; ++i) {
      const bool changed = i >= 1000;
      const Sending how = communicator.choose_sending();
      if (i >= 2500) last += how == Sending::in_turns;
      const bool good = (how == Sending::in_turns) == changed;
      communicator.saw_inflow(good ? 1e8 : 4e7, 1, how);
    }
    EXPECT_GE(last, 470);
  });
}

/// What one rank saw of its messages.
class Journal {
 public:
  explicit Journal(Communicator& engine)
      : world_(static_cast<std::size_t>(engine.size())), self_(static_cast<std::size_t>(engine.rank())) {}

  /// Slow enough that the next messages are long as well.
  void arrives(const MessagePlace& place, Span<const std::byte> message) {
    if (message.size() < Turns::kShortBytes) return;
    std::this_thread::sleep_for(std::chrono::duration<double>(Turns::kQueue));
    ++arrived_[{place.peer, place.tag}];
  }
  void leaves(int peer, Communicator::Tag tag, Span<const std::byte> message) {
    if (message.size() < Turns::kShortBytes) return;
    const std::size_t shift = (static_cast<std::size_t>(peer) + world_ - self_) % world_;
    const auto sent = ++sent_[{peer, tag}];
    ++long_;
    if (shift == 1) return;
    const auto ahead = static_cast<int>((self_ + world_ - shift + 1) % world_);
    if (arrived_[{ahead, tag}] < sent) ++early_;
  }

  int long_messages() const { return long_; }
  /// Of these, those that went before the one of the turn before had come.
  int early() const { return early_; }

 private:
  using Key = std::pair<int, Communicator::Tag>;
  std::size_t world_;
  std::size_t self_;
  std::map<Key, int> arrived_;
  std::map<Key, int> sent_;
  int long_ = 0;
  int early_ = 0;
};

struct Outcome {
  std::vector<float> mean;
  int long_messages = 0;
  int early = 0;
};

/// A table whose gradient has every other row, about.
std::vector<float> gradient_of(int rank) {
  std::vector<float> gradient(kRows * kWidth);
  std::mt19937 random(static_cast<unsigned>(rank) + 1);
  for (std::size_t row = 0; row < kRows; ++row) {
    if (random() % 2 == 0) continue;
    for (std::size_t column = 0; column < kWidth; ++column) {
      gradient[row * kWidth + column] = static_cast<float>(random() % 2001) / 1000 - 1;
    }
  }
  return gradient;
}

/// One bucket among 5 ranks. fast: those that take their links for fast ones.
Outcome exchange(const std::string& spec, const std::set<int>& fast) {
  Outcome outcome;
  std::mutex mutex;
  run_in_process(5, [&](Communicator& engine) {
    Journal journal(engine);
    TappedCommunicator communicator(
        engine, [&](const MessagePlace& place, Span<std::byte> message) { journal.arrives(place, message); },
        [&](int peer, Communicator::Tag tag, Span<const std::byte> message) {
          journal.leaves(peer, tag, message);
        });
    if (fast.contains(engine.rank())) believe(communicator, kFast);
    std::vector<float> gradient = gradient_of(engine.rank());
    Session session(spec, communicator, {.seed = 7});
    session.add_bucket({{"table", gradient.size(), kRows}});
    session.synchronize(0, gradient);
    const std::lock_guard lock(mutex);
    outcome.long_messages += journal.long_messages();
    outcome.early += journal.early();
    if (engine.rank() == 2) outcome.mean = gradient;
  });
  return outcome;
}

/// Where another lane's bucket goes on before, two senders meet at a receiver.
TEST(Turns, NothingIsSentOnceTheTurnIsPassedOn) {
  for (const std::string spec :
       {"half", "blocks:bits=8", "qsgd:bits=8", "power_sgd:rank=4:bits=8", "acp_sgd:rank=4:bits=8"}) {
    run_in_process(3, [&](Communicator& engine) {
      int passed = 0;
      int late = 0;
      TappedCommunicator communicator(
          engine, [](const MessagePlace&, Span<std::byte>) {},
          [&](int, Communicator::Tag, Span<const std::byte>) { late += passed; }, [&] { ++passed; });
      Session session(spec, communicator, {.seed = 7});
      session.add_bucket({{"matrix", 64 * 64, 64}});
      std::vector<float> gradient(64 * 64, 1.0f + static_cast<float>(engine.rank()));
      session.synchronize(0, gradient);
      EXPECT_EQ(passed, 1) << spec;
      EXPECT_EQ(late, 0) << spec;
    });
  }
}

class TurnsOf : public ::testing::TestWithParam<std::string> {};

TEST_P(TurnsOf, EachReceiverHasOneSenderAtATimeAndNoResultChanges) {
  const Outcome turns = exchange(GetParam(), {});
  EXPECT_GE(turns.long_messages, 20);
  EXPECT_EQ(turns.early, 0);
  const Outcome at_once = exchange(GetParam(), {0, 1, 2, 3, 4});
  EXPECT_EQ(at_once.mean, turns.mean);
  EXPECT_EQ(at_once.long_messages, turns.long_messages);
  for (const std::set<int>& fast : {std::set<int>{1}, std::set<int>{0, 3}, std::set<int>{0, 1, 2, 4}}) {
    EXPECT_EQ(exchange(GetParam(), fast).mean, turns.mean);
  }
}

INSTANTIATE_TEST_SUITE_P(Specs, TurnsOf,
                         ::testing::Values("half", "casq:bits=4", "casq:bits=4:downlink=float32",
                                           "blocks:bits=8", "qsgd:bits=8", "agsparse", "zen"),
                         [](const auto& spec) {
                           std::string name = spec.param;
                           for (char& letter : name) letter = std::isalnum(letter) ? letter : '_';
                           return name;
                         });

}  // namespace
}  // namespace thinwire::turns_test
