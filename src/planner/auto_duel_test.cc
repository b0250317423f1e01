// `auto` where a milder candidate takes a little longer than the fastest one: the two by turns.

#include <algorithm>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "planner/auto_training.h"

namespace thinwire::auto_test {
namespace {

constexpr const char* kOfPowerSgd = " times those with power_sgd:rank=32:bits=8)";

/// Four pairs: turns go there and back, the first step of one does not count where another candidate ran, and
/// the last time is known a step later.
constexpr int kShortest = 12;
/// Twelve pairs.
constexpr int kLongest = 32;

/// With so much computing dense takes 1.064 of power_sgd's step and half 1.028, or 1.021 where the guard
/// measures.
constexpr double kJustTooLong = 7.5;
/// 1.016 and 1.007.
constexpr double kWithin = 30;

/// A trial in which steps of dense take `more` seconds longer. What is computed before a step counts for the
/// one before it.
void run_with_long_trial(Training& training, double compute, double more) {
  training.run(kTrial - 3, compute);
  training.run(3, compute + more);
}

TEST(AutoDuel, AMilderOneThatIsSlowerThanAllowedIsNotTaken) {
  std::map<int, std::string> explained;
  run_virtual(kWorkers, kSlow, [&](VirtualCommunicator& communicator) {
    Training training(communicator);
    training.run(kTrial + 2 * kShortest + 3, kJustTooLong);
    EXPECT_EQ(training.system(), "power_sgd") << training.session().explain();
    explained[communicator.rank()] = training.session().explain();
  });
  EXPECT_NE(explained[0].find("with dense (by 4 pairs of steps 1.06"), std::string::npos) << explained[0];
  EXPECT_NE(explained[0].find(kOfPowerSgd), std::string::npos) << explained[0];
  EXPECT_NE(explained[0].find("bf16:feedback=on (by 4 pairs of steps 1.02"), std::string::npos);
  EXPECT_NE(explained[0].find("Of those that take at most 2 % more"), std::string::npos) << explained[0];
  for (const auto& [rank, text] : explained) EXPECT_EQ(text, explained[0]) << rank;
}

/// As where other work slows the machine down while dense is tried.
TEST(AutoDuel, AMilderOneThatSeemedSlowIsTaken) {
  run_virtual(kWorkers, kSlow, [&](VirtualCommunicator& communicator) {
    Training training(communicator);
    run_with_long_trial(training, kWithin, 1);
    training.run(kShortest + 3, kWithin);
    EXPECT_EQ(training.system(), "dense") << training.session().explain();
    EXPECT_NE(training.session().explain().find("dense (by 4 pairs of steps 1.01"), std::string::npos)
        << training.session().explain();
  });
}

/// Steps of dense take a tenth more than others, but for one of the two that the trial counts.
TEST(AutoDuel, AMilderOneThatSeemedFastIsNotTaken) {
  constexpr double kCompute = 0.01;
  std::map<int, std::string> explained;
  run_virtual(kWorkers, kFast, [&](VirtualCommunicator& communicator) {
    Training training(communicator, "auto:settle=2:steps=2:interval=60");
    std::ptrdiff_t fast = 0;
    for (int i = 0; i < kTrial + kLongest; ++i) {
      const bool dense = !training.used().empty() && training.system() == "dense";
      const bool disturbed = dense && training.count("dense") != 2;
      fast += dense && !disturbed ? 1 : 0;
      training.run(1, disturbed ? 1.1 * kCompute : kCompute);
    }
    EXPECT_EQ(fast, 1);
    EXPECT_EQ(training.system(), "half") << training.session().explain();
    explained[communicator.rank()] = training.session().explain();
  });
  EXPECT_NE(explained[0].find("with dense (by 4 pairs of steps 1.1"), std::string::npos) << explained[0];
  for (const auto& [rank, text] : explained) EXPECT_EQ(text, explained[0]) << rank;
}

/// Of each four steps one takes a tenth more, whoever has it.
TEST(AutoDuel, WhereStepsVaryItTakesMoreOfThem) {
  for (const double compute : {kJustTooLong, kWithin}) {
    run_virtual(kWorkers, kSlow, [&](VirtualCommunicator& communicator) {
      Training training(communicator, "auto:settle=2:steps=2:interval=60");
      run_with_long_trial(training, compute, compute == kWithin ? 1 : 0);
      for (int i = 0; i < 2 * kLongest; ++i) training.run(1, i % 4 == 0 ? 1.1 * compute : compute);
      EXPECT_EQ(training.system(), compute == kWithin ? "dense" : "power_sgd")
          << training.session().explain();
      EXPECT_NE(training.session().explain().find("pairs of steps"), std::string::npos);
      EXPECT_EQ(training.session().explain().find("a trial goes on"), std::string::npos);
    });
  }
}

TEST(AutoDuel, AStepOfItThatDoesNotCountIsNoPair) {
  run_virtual(kWorkers, kSlow, [&](VirtualCommunicator& communicator) {
    Training training(communicator);
    run_with_long_trial(training, kWithin, 1);
    for (int i = 0; i < 5; ++i) {
      training.run(4, kWithin);
      std::vector<float> bad(kElements, std::numeric_limits<float>::quiet_NaN());
      training.session().synchronize(0, bad);
      EXPECT_FALSE(training.session().next_step());
    }
    training.run(kLongest, kWithin);
    EXPECT_EQ(training.system(), "dense") << training.session().explain();
    EXPECT_NE(training.session().explain().find("pairs of steps 1.01"), std::string::npos)
        << training.session().explain();
  });
}

/// Times are lost: where a candidate has none at a round's end, all are tried again.
TEST(AutoDuel, ARunThatIsResumedInTheMidstOfItComesToAChoice) {
  for (int stop = kTrial; stop < kTrial + kShortest; stop += 2) {
    run_virtual(kWorkers, kSlow, [&](VirtualCommunicator& communicator) {
      Training training(communicator);
      run_with_long_trial(training, kWithin, 1);
      training.run(stop - kTrial, kWithin);
      Training resumed(communicator);
      resumed.session().load(state_of(training.session()));
      resumed.run(1, kWithin);
      training.run(1, kWithin);
      EXPECT_EQ(resumed.used().back(), training.used().back()) << stop;
      resumed.run(kTrial + kLongest, kWithin);
      EXPECT_EQ(resumed.system(), "dense") << stop << resumed.session().explain();
      EXPECT_EQ(resumed.session().explain().find("a trial goes on"), std::string::npos);
    });
  }
}

TEST(AutoDuel, ThereIsNoneForAnotherLinkNorWhereOneRoundWasAskedFor) {
  run_virtual(kWorkers, kSlow, [&](VirtualCommunicator& communicator) {
    for (const std::string option : {":rounds=1", ":link=8Mbit:100us"}) {
      Training training(communicator, kSpec + option);
      training.run(kTrial + 6, kJustTooLong);
      // For another link computing is timed by this machine's clock, so that what is chosen may vary.
      if (option == ":rounds=1") {
        EXPECT_EQ(training.system(), "power_sgd");
      }
      EXPECT_EQ(training.session().explain().find("pairs of steps"), std::string::npos) << option;
    }
  });
}

}  // namespace
}  // namespace thinwire::auto_test
