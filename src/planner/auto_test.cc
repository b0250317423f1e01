// The system `auto` on networks whose time is computed, so that every run decides alike.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "planner/auto_training.h"
#include "tests/sanitized.h"
#include "thinwire/session.h"
#include "thinwire/virtual_network.h"

namespace thinwire::auto_test {
namespace {

TEST(Auto, WhatLeavesTooMuchOutIsGivenUp) {
  run_virtual(kWorkers, kSlow, [&](VirtualCommunicator& communicator) {
    Training training(communicator, kSpec, kElements);  // noise of full rank
    training.run(kTrial + 70, 0.01);
    const std::string explained = training.session().explain();
    EXPECT_NE(explained.find("bucket of a and 2 more: the mean that arrives is off by 1."), std::string::npos)
        << explained;
    EXPECT_GE(training.count("power_sgd"), 4) << "the fastest, before anything was measured";
    EXPECT_EQ(training.system(), "ecsq") << "a quarter of the bytes of half";
    const std::vector<Change> changes = training.session().changes();
    EXPECT_TRUE(std::is_sorted(changes.begin(), changes.end(),
                               [](const Change& a, const Change& b) { return a.step < b.step; }));
    for (const std::string part : {"power_sgd:rank=32:bits=8. Undisturbed, a step takes",
                                   "so ecsq:step=0.1 in its place for", "tried again"}) {
      EXPECT_TRUE(std::any_of(changes.begin(), changes.end(), [&](const Change& one) {
        return one.reason.find(part) != std::string::npos;
      })) << part;
    }
  });
}

TEST(Auto, WhatWasGivenUpIsPutToTheTestAgain) {
  run_virtual(kWorkers, kSlow, [&](VirtualCommunicator& communicator) {
    // Noise of full rank, which the guard does not let pass. With this budget no codes either.
    Training training(communicator, kSpec + ":budget=0.2", kElements);
    training.run(kTrial + 40, 0.01);
    ASSERT_EQ(training.system(), "half") << "power_sgd is no faster than dense where the guard takes that";
    training.become(16);
    training.run((12 + 24 + 48) * 4 + kTrial, 0.01);  // the third test is among all
    EXPECT_EQ(training.system(), "power_sgd") << training.session().explain();
    EXPECT_NE(training.session().explain().find(" steps ago: the candidates are tried again"),
              std::string::npos);
    EXPECT_EQ(training.session().explain().find("a trial goes on"), std::string::npos);
  });
}

TEST(Auto, APauseInTheTrialIsNotTheCandidates) {
  for (int paused = 0; paused < kTrial; paused += kSanitized ? 6 : 1) {
    run_virtual(kWorkers, kSlow, [&](VirtualCommunicator& communicator) {
      Training training(communicator);
      training.run(paused, 0.01);
      communicator.advance(100);  // an evaluation
      training.run(kTrial + 3 - paused, 0.01);
      EXPECT_EQ(training.system(), "power_sgd") << "a pause before step " << paused;
    });
  }
}

/// The guard gives the small bucket to codes: a step takes longer by more than a quarter, over a network that
/// is as it was. Nothing milder was as fast, so nothing is tried.
TEST(Auto, WhatTheGuardChangesIsNotTheNetworks) {
  for (const bool elsewhere : {false, true}) {
    run_virtual(kWorkers, kSlow, [&](VirtualCommunicator& communicator) {
      Session first(kSpec, communicator), second(kSpec, communicator);
      first.add_bucket({{"a", kElements, 300}});
      // As large as the other one in codes, and of full rank later.
      (elsewhere ? second : first).add_bucket({{"b", 10'000, 100}});
      const auto step = [&](std::size_t rank) {
        communicator.advance(0.01);
        std::vector<float> large = gradient_of(communicator, first.step(), kElements, 16);
        std::vector<float> small = gradient_of(communicator, first.step(), 10'000, rank);
        first.synchronize(0, large);
        Session& other = elsewhere ? second : first;
        const StepReport report = other.synchronize(elsewhere ? 0 : 1, small);
        ASSERT_TRUE(first.next_step());
        if (!elsewhere) return;
        ASSERT_TRUE(second.next_step());
        second.follow(first.decisions());
        if (report.changes > 0) first.others_changed();
      };
      for (int i = 0; i < kTrial + 12; ++i) step(16);
      for (int i = 0; i < 60; ++i) step(10'000);
      const Session& guarded = elsewhere ? second : first;
      EXPECT_NE(guarded.explain().find("so ecsq:step=0.1 in its place for"), std::string::npos)
          << guarded.explain();
      EXPECT_EQ(first.explain().find("candidates are tried again"), std::string::npos) << first.explain();
    });
  }
}

TEST(Auto, WhatTheGuardDidInTheTrialIsNoReasonAfterwards) {
  const VirtualLink of_much_latency{.bytes_per_second = 1e8, .latency_seconds = 5e-3};
  run_virtual(kWorkers, of_much_latency, [&](VirtualCommunicator& communicator) {
    // Noise of full rank, which the guard does not let pass. With this budget no codes either.
    Training training(communicator, kSpec + ":budget=0.2", kElements);
    training.run(17, 0.01);
    ASSERT_EQ(training.system(), "half") << training.session().explain();
    training.run(12, 0.2);
    const std::string explained = training.session().explain();
    EXPECT_NE(explained.find("so dense in its place for"), std::string::npos) << explained;
    EXPECT_EQ(explained.find("since the guard changed"), std::string::npos) << explained;
    // Its fourth step in a row is measured, and the fifth one goes by dense: the last of four, and the only
    // one that counts.
    EXPECT_NE(explained.find(" with power_sgd:rank=32:bits=8 (with dense in 1 of 4 steps, and by these). Of"),
              std::string::npos)
        << explained;
  });
}

/// The times of steps before the guard took a bucket are no longer the candidate's. Over a link that is given
/// the choice is made once, so it would stay.
TEST(Auto, WhereTheGuardTakesDenseALinkThatIsGivenDoesNotKeepTheCandidate) {
  run_virtual(kWorkers, kSlow, [&](VirtualCommunicator& communicator) {
    Training training(communicator, kSpec + ":budget=0.2:link=10Mbit:50us", kElements);
    training.run(kTrial + 40, 0.01);
    EXPECT_EQ(training.system(), "half") << training.session().explain();
  });
}

TEST(Auto, TheBudgetIsTheGuards) {
  // Noise of full rank: the default allows no such error, another budget does.
  run_virtual(kWorkers, kSlow, [&](VirtualCommunicator& communicator) {
    Training training(communicator, kSpec + ":budget=9", kElements);
    training.run(kTrial + 40, 0.01);
    EXPECT_EQ(training.system(), "power_sgd");
    EXPECT_NE(training.session().explain().find(", allowed are 9.00"), std::string::npos);
    for (const char* useless : {":budget=-1", ":budget=0", ":budget=0.005", ":lossless:budget=0.1"}) {
      try {
        Session(kSpec + useless, communicator);
        ADD_FAILURE() << useless;
      } catch (const std::invalid_argument& error) {
        EXPECT_NE(std::string(error.what()).find("budget"), std::string::npos) << error.what();
      }
    }
  });
}

TEST(Auto, OverAThinWireCompressionPays) {
  std::map<int, std::string> explained;
  run_virtual(kWorkers, kSlow, [&](VirtualCommunicator& communicator) {
    Training training(communicator);
    training.run(kTrial + 3, 0.01);
    EXPECT_EQ(training.used().front().substr(0, 5), "half:");
    EXPECT_EQ(training.system(), "power_sgd");
    EXPECT_EQ(training.count("half"), 4) << "far behind after one round";
    EXPECT_EQ(training.count("dense"), 0) << "which would send twice as much";
    explained[communicator.rank()] = training.session().explain();
  });
  for (const std::string part : {"step 7: power_sgd", "at least 497.1 ms with dense (not tried: it sends"}) {
    EXPECT_NE(explained[0].find(part), std::string::npos) << explained[0];
  }
  for (const auto& [rank, text] : explained) EXPECT_EQ(text, explained[0]) << rank;
}

TEST(Auto, WhereTheWireIsNotTheBottleneckItStaysOff) {
  run_virtual(kWorkers, kFast, [&](VirtualCommunicator& communicator) {
    Training training(communicator);
    training.run(kTrial + 3, 0.01);
    EXPECT_EQ(training.system(), "dense");
    EXPECT_EQ(training.session().report(0).residual_norm, 0) << "all is delivered";
  });
}

/// As where a model is compiled, or data come late: steps of half were long, and the exchange was not.
TEST(Auto, LongFirstStepsAreNoReasonToLeaveDenseOut) {
  run_virtual(kWorkers, kFast, [&](VirtualCommunicator& communicator) {
    Training training(communicator);
    training.run(4, 1.0);
    training.run(kTrial + 8, 0.01);
    EXPECT_EQ(training.system(), "dense") << training.session().explain();
  });
  // One rank's alone: the others wait for it in the exchange.
  run_virtual(kWorkers, kFast, [&](VirtualCommunicator& communicator) {
    Training training(communicator);
    training.run(4, communicator.rank() == 1 ? 1.0 : 0.01);
    training.run(kTrial + 8, 0.01);
    EXPECT_EQ(training.system(), "dense") << training.session().explain();
  });
}

/// Dense takes 0.54 s of wire for a step, half 0.27 s.
TEST(Auto, TheMildestWithinTheBoundIsTaken) {
  run_virtual(kWorkers, kSlow, [&](VirtualCommunicator& communicator) {
    Training training(communicator, "auto:settle=2:steps=2:within=0.1");
    training.run(kTrial + 3, 3.0);
    EXPECT_EQ(training.system(), "half");
  });
}

TEST(Auto, OneRankAloneNeedsNoCompression) {
  run_virtual(1, kSlow, [&](VirtualCommunicator& communicator) {
    Training training(communicator);
    training.run(kTrial + 3, 0.01);
    EXPECT_EQ(training.system(), "dense");
    EXPECT_TRUE(training.session().explain().ends_with(": dense: one rank sends nothing"));
  });
}

TEST(Auto, ExactSystemsAloneWhereToldSo) {
  run_virtual(kWorkers, kSlow, [&](VirtualCommunicator& communicator) {
    Training training(communicator, kSpec + ":lossless=on");
    training.run(kTrial + 3, 0.01);
    for (const std::string& used : training.used()) {
      EXPECT_TRUE(used.starts_with("dense") || used.starts_with("zen")) << used;
    }
    EXPECT_EQ(training.system(), "dense") << "no value is 0";
  });
}

TEST(Auto, WhereMostValuesAreZerosAnExactSparseSystemIsTaken) {
  run_virtual(kWorkers, kSlow, [&](VirtualCommunicator& communicator) {
    Training training(communicator, kSpec + ":lossless=on");
    training.keep_one_in(50);
    training.run(kTrial + 3, 0.01);
    EXPECT_EQ(training.system(), "zen") << training.session().explain();
    EXPECT_EQ(training.count("dense") + training.count("zen"), kTrial + 3);
  });
}

/// As if the network became ten times faster next to what is computed.
TEST(Auto, WhenStepsTakeAnotherTimeTheCandidatesAreTriedAgain) {
  run_virtual(kWorkers, kSlow, [&](VirtualCommunicator& communicator) {
    Training training(communicator);
    training.run(kTrial + 12, 0.01);
    EXPECT_EQ(training.system(), "power_sgd");
    EXPECT_NE(training.session().explain().find("guard: bucket"), std::string::npos);
    training.run(40, 100.0);
    EXPECT_EQ(training.system(), "dense");
    const std::string explained = training.session().explain();
    EXPECT_NE(explained.find("tried again"), std::string::npos);
    EXPECT_EQ(explained.find("guard: bucket"), std::string::npos) << explained;
    training.run(40, 0.01);
    EXPECT_EQ(training.system(), "power_sgd");
  });
}

/// Dense takes 0.55 s. A step of 0.1 s in place of 0.07 says nothing for it.
TEST(Auto, LongerStepsAreNoReasonToTryWhatIsFarBehind) {
  run_virtual(kWorkers, kSlow, [&](VirtualCommunicator& communicator) {
    Training training(communicator);
    training.run(kTrial + 12, 0.01);
    ASSERT_EQ(training.system(), "power_sgd");
    training.run(40, 0.05);
    EXPECT_EQ(training.count("power_sgd"), 52 + kTrial - 4) << "all but half's first four";
    EXPECT_NE(training.session().explain().find(": computing takes 40.0 ms longer than it did, the exchange "
                                                "does not. power_sgd:rank=32:bits=8 stays"),
              std::string::npos)
        << training.session().explain();
  });
}

TEST(Auto, ShorterStepsAreNoReasonToTryWhatIsFarBehind) {
  run_virtual(kWorkers, {.bytes_per_second = 2e5, .latency_seconds = 1e-4},
              [&](VirtualCommunicator& communicator) {
                Training training(communicator);
                training.run(kTrial + 12, 0.2);
                ASSERT_EQ(training.system(), "power_sgd");
                const auto before = training.count("dense");
                training.run(40, 0.01);  // training alone computes less
                EXPECT_EQ(training.count("dense"), before);
                EXPECT_NE(training.session().explain().find("no other candidate is near"), std::string::npos)
                    << training.session().explain();
              });
}

TEST(Auto, AFewSlowStepsChangeNothing) {
  run_virtual(kWorkers, kSlow, [&](VirtualCommunicator& communicator) {
    Training training(communicator);
    training.run(kTrial + 12, 0.01);
    for (int i = 0; i < 4; ++i) {
      training.run(1, 30.0);  // an evaluation, a checkpoint
      training.run(6, 0.01);
    }
    EXPECT_EQ(training.system(), "power_sgd");
    EXPECT_EQ(training.session().explain().find("tried again"), std::string::npos);
  });
}

/// sum of gradients = W * sum of means + sum of residuals, over all candidates and what comes between them.
TEST(Auto, NothingIsLostWhereCandidatesChange) {
  std::vector<double> given(kElements), mean(kElements), left(kElements);
  run_virtual(2, kSlow, [&](VirtualCommunicator& communicator) {
    Session session("auto:settle=1:rounds=1:steps=1:interval=2", communicator);
    session.add_bucket({{"a", kElements, 300}});
    for (int step = 0; step < 30; ++step) {
      communicator.advance(step < 16 ? 0.01 : 50.0);  // back to dense
      std::vector<float> gradient(kElements);
      for (std::size_t i = 0; i < kElements; ++i) {
        gradient[i] =
            std::sin(static_cast<float>(i * 7 + static_cast<std::size_t>(step * 13 + communicator.rank())));
        given[i] += static_cast<double>(gradient[i]);
      }
      session.synchronize(0, gradient);
      ASSERT_TRUE(session.next_step());
      if (communicator.rank() != 0) continue;
      for (std::size_t i = 0; i < kElements; ++i) mean[i] += static_cast<double>(gradient[i]);
    }
    const auto residual = session.residual(0);
    for (std::size_t i = 0; i < residual.size(); ++i) left[i] += static_cast<double>(residual[i]);
    EXPECT_NE(session.explain().find("power_sgd"), std::string::npos);
  });
  for (std::size_t i = 0; i < kElements; ++i) ASSERT_NEAR(given[i], 2 * mean[i] + left[i], 2e-3) << i;
}

/// Stands for a gradient in 16 bits. Its values are floats, so that nothing is lost by rounding.
class SixteenBits final : public TypedGradient {
 public:
  explicit SixteenBits(std::vector<float> values) : values_(std::move(values)) {}
  std::size_t size() const override { return values_.size(); }
  std::size_t element_bytes() const override { return 2; }
  std::string_view type() const override { return "Half"; }
  bool sums() const override { return true; }
  bool sum(Step& step) override {
    summed_ = true;
    for (float& value : values_) value /= static_cast<float>(step.communicator.size());
    step.communicator.all_reduce_sum(values_);
    return true;
  }
  Span<float> floats() override { return values_; }

  bool was_summed() const { return summed_; }
  const std::vector<float>& values() const { return values_; }

 private:
  std::vector<float> values_;
  bool summed_ = false;
};

struct SumsInType {
  std::vector<bool> summed{};       ///< Of each step: whether it was summed in the type.
  std::vector<std::string> used{};  ///< Of each step, where the system says so.
  std::vector<double> lost{};       ///< Of each element.
};

SumsInType train_in_16_bits(const std::string& spec, VirtualCommunicator& communicator, int steps) {
  Session session(spec, communicator);
  session.add_bucket({{"a", kElements, 300}});
  SumsInType result;
  result.lost.assign(kElements, 0);
  for (int step = 0; step < steps; ++step) {
    communicator.advance(0.01);
    std::vector<float> values(kElements);
    for (std::size_t i = 0; i < kElements; ++i) {
      values[i] = std::sin(static_cast<float>(i * 7 + static_cast<std::size_t>(step * 13)));
      result.lost[i] += static_cast<double>(values[i]);
    }
    SixteenBits gradient(values);  // the same on all ranks, and so is each rank's residual
    const StepReport& report = session.synchronize(0, gradient);
    EXPECT_EQ(report.raw_bytes, 2 * kElements);
    if (gradient.was_summed()) {
      EXPECT_EQ(report.formula_bytes, communicator.ring_sent_bytes(kElements, 2));
    }
    EXPECT_TRUE(session.next_step());
    result.summed.push_back(gradient.was_summed());
    result.used.emplace_back(report.scheme == nullptr ? "" : report.scheme);
    for (std::size_t i = 0; i < kElements; ++i) result.lost[i] -= static_cast<double>(gradient.values()[i]);
  }
  const auto residual = session.residual(0);
  for (std::size_t i = 0; i < residual.size(); ++i) result.lost[i] -= static_cast<double>(residual[i]);
  return result;
}

TEST(Auto, ItsDenseSumsSixteenBitsInTheirType) {
  for (const VirtualLink& link : {kFast, kSlow}) {
    run_virtual(kWorkers, link, [&](VirtualCommunicator& communicator) {
      const SumsInType result = train_in_16_bits(kSpec, communicator, kTrial + 10);
      EXPECT_FALSE(result.summed[0]) << "a residual may be there that nothing has delivered";
      for (std::size_t i = 1; i < result.summed.size(); ++i) {
        // What another system left undelivered goes with the first step of dense.
        const bool expected = result.used[i] == "dense" && result.used[i - 1] == "dense";
        EXPECT_EQ(result.summed[i], expected) << i;
      }
      EXPECT_EQ(result.summed.back(), link.latency_seconds == kFast.latency_seconds);
      EXPECT_GE(std::ranges::count(result.used, "dense"), 3) << "which sends no more than half here";
      for (const double one : result.lost) ASSERT_NEAR(one, 0, 1e-3);
    });
  }
}

TEST(Session, SixteenBitsAreSummedInTheirTypeWhereNothingElseIsToBeAdded) {
  run_virtual(2, kFast, [&](VirtualCommunicator& communicator) {
    for (const auto& [spec, expected] :
         {std::pair("dense", true), {"dense:sum=float32", false}, {"half:feedback=on", false}}) {
      const SumsInType result = train_in_16_bits(spec, communicator, 3);
      for (const bool one : result.summed) EXPECT_EQ(one, expected) << spec;
      for (const double one : result.lost) ASSERT_NEAR(one, 0, 1e-3) << spec;
    }
  });
}

TEST(Auto, AGivenLinkTakesThePlaceOfTheNetwork) {
  const auto chosen = [](const std::string& link, const VirtualLink& network) {
    std::string system, explained;
    run_virtual(kWorkers, network, [&](VirtualCommunicator& communicator) {
      Training training(communicator, kSpec + ":link=" + link);
      training.run(kTrial + 10, 0.01);
      training.run(50, 30.0);  // steps take another time, and the link is still the one that was given
      EXPECT_EQ(training.session().explain().find("tried again"), std::string::npos);
      if (communicator.rank() != 0) return;
      system = training.system();
      explained = training.session().explain();
    });
    EXPECT_NE(explained.find("Over " + link + " a step takes "), std::string::npos) << explained;
    return system;
  };
  EXPECT_EQ(chosen("8Mbit:100us", kFast), "power_sgd");
  EXPECT_EQ(chosen("8Mbit:100us", kSlow), "power_sgd");
  EXPECT_EQ(chosen("8000Gbit:1us", kSlow), "dense");
  EXPECT_EQ(chosen("8000Gbit:1us", kFast), "dense");
}

TEST(Auto, ALinkThatIsNoneIsRefused) {
  run_virtual(kWorkers, kFast, [&](VirtualCommunicator& communicator) {
    for (const std::string link : {"1Gbit", "1Gbit:50", "fast:1us", "0Gbit:1us", "1Gbit:50us:3"}) {
      try {
        Session("auto:link=" + link, communicator);
        ADD_FAILURE() << link;
      } catch (const std::invalid_argument& error) {
        EXPECT_NE(std::string(error.what()).find("link '" + link + "' is not RATE:LATENCY"),
                  std::string::npos)
            << error.what();
      }
    }
  });
}

/// Looks come every 4 steps; the second one that sees other times begins the trial.
TEST(Auto, AnotherNetworkIsFoundWithinFiftySteps) {
  run_virtual(kWorkers, kSlow, [&](VirtualCommunicator& communicator) {
    Training training(communicator, "auto");
    training.run(30, 0.01);
    EXPECT_EQ(training.system(), "power_sgd");
    // Looks at 37 and 44 see another time, and the trial begins.
    training.run(22, 30.0);
    EXPECT_NE(training.session().explain().find("a trial goes on, in which this step ran "),
              std::string::npos)
        << training.session().explain();
    training.run(28, 30.0);
    EXPECT_EQ(training.system(), "dense");
    EXPECT_EQ(training.session().explain().find("a trial goes on"), std::string::npos);
    training.run(50, 0.01);
    EXPECT_EQ(training.system(), "power_sgd");
  });
}

/// Of each three steps one is short. The trial may know its choice by the short ones alone.
TEST(Auto, StepsOfUnevenLengthAreTriedAgainOnceAtMost) {
  for (int first = 0; first < (kSanitized ? 1 : 3); ++first) {
    run_virtual(kWorkers, kSlow, [&](VirtualCommunicator& communicator) {
      Training training(communicator);
      for (int step = first; step < first + 300; ++step) training.run(1, step % 3 == 0 ? 0.02 : 0.3);
      EXPECT_EQ(training.system(), "power_sgd");
      EXPECT_LE(trials_for_a_reason(training.session()), 1) << training.session().explain();
    });
  }
}

/// Other work disturbs the machine for three looks, again and again.
TEST(Auto, FalseAlarmsBecomeRare) {
  run_virtual(kWorkers, kSlow, [&](VirtualCommunicator& communicator) {
    Training training(communicator);
    training.run(kTrial + 12, 0.01);
    constexpr int kTimes = kSanitized ? 8 : 16;
    for (int i = 0; i < kTimes; ++i) {
      // One rank after the other, for which the others wait in the exchange.
      for (int k = 0; k < 21; ++k)
        training.run(1, k % kWorkers == communicator.rank() ? 0.3 * (1 + i % 3) : 0.01);
      training.run(42, 0.01);
    }
    EXPECT_EQ(training.system(), "power_sgd");
    const std::size_t trials = trials_for_a_reason(training.session());
    EXPECT_GE(trials, 1);
    EXPECT_LE(trials, 4) << training.session().explain();
  });
}

TEST(Auto, ARankThatIsSlowIsNamedAndNoSystemIsBlamed) {
  run_virtual(kWorkers, kSlow, [&](VirtualCommunicator& communicator) {
    Training training(communicator);
    training.run(kTrial + 12, 0.01);
    EXPECT_EQ(training.system(), "power_sgd");
    const std::ptrdiff_t dense = training.count("dense");
    training.run(30, communicator.rank() == 2 ? 3.0 : 0.01);
    EXPECT_NE(training.session().explain().find("by rank 2 alone"), std::string::npos)
        << training.session().explain();
    training.run(30, 0.01);
    EXPECT_EQ(training.count("dense"), dense) << training.session().explain();
    EXPECT_EQ(trials_for_a_reason(training.session()), 0);
  });
}

/// As under DDP, where rank 0 sends the model's buffers before forward and the others wait for it there.
TEST(Auto, ARankForWhichOthersWaitBeforeTheExchangeIsNamed) {
  for (const bool told : {true, false}) {
    run_virtual(kWorkers, kSlow, [&](VirtualCommunicator& communicator) {
      Training training(communicator);
      training.run(kTrial + 12, 0.01);
      ASSERT_EQ(training.system(), "power_sgd");
      if (told && communicator.rank() != 0) training.session().set_waited(0.3);
      training.run(30, 0.31);
      const std::string said = training.session().explain();
      EXPECT_EQ(said.find("by rank 0 alone, for which the others wait") != std::string::npos, told) << said;
      EXPECT_EQ(said.find("the exchange does not") != std::string::npos, !told) << said;
      EXPECT_EQ(trials_for_a_reason(training.session()), 0) << said;
    });
  }
}

}  // namespace
}  // namespace thinwire::auto_test
