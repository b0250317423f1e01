// The system `auto` on networks whose time is computed, so that every run decides alike.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "planner/auto_parts.h"
#include "tests/sanitized.h"
#include "thinwire/session.h"
#include "thinwire/virtual_network.h"

namespace thinwire::auto_test {
namespace {

constexpr std::size_t kElements = 90'000;
constexpr int kWorkers = 4;
/// Dense for 4 steps, the others for 3 each, and where none is far behind 2, 3 and 3 on the way back: the
/// choice is made in step 18 and is used from the next one on.
const std::string kSpec = "auto:settle=2:steps=2:interval=4";
constexpr int kTrial = 19;

constexpr VirtualLink kSlow{.bytes_per_second = 1e6, .latency_seconds = 1e-4};
constexpr VirtualLink kFast{.bytes_per_second = 1e12, .latency_seconds = 1e-6};

/// Of this rank; others have another one. Matrices of rank `most` at most: with 16 nothing is left out that
/// the guard would mind.
std::vector<float> gradient_of(const Communicator& communicator, std::uint64_t step, std::size_t elements,
                               std::size_t most) {
  std::vector<float> values(elements);
  std::uint32_t random =
      static_cast<std::uint32_t>(step) * 7919 + static_cast<std::uint32_t>(communicator.rank()) * 104729 + 1;
  for (std::size_t i = 0; i < elements; ++i) {
    random = random * 1664525u + 1013904223u;
    values[i] =
        i < most ? static_cast<float>(static_cast<std::int32_t>(random)) * 0x1p-31f : values[i - most];
  }
  return values;
}

/// A training whose ranks hold different gradients.
class Training {
 public:
  explicit Training(VirtualCommunicator& communicator, const std::string& spec = kSpec, std::size_t rank = 16)
      : communicator_(communicator), session_(spec, communicator), rank_(rank) {
    session_.add_bucket({{"a", kElements / 3, 100}, {"b", kElements / 3, 300}, {"c", kElements / 3}});
    session_.add_bucket({{"d", 700}});
  }

  /// Of which rank gradients are from now on.
  void become(std::size_t rank) { rank_ = rank; }
  /// What gradients are multiplied by from now on.
  void scale(float factor) { factor_ = factor; }
  /// From now on one value in so many is not 0.
  void keep_one_in(std::size_t few) { few_ = few; }

  /// Steps that take `compute` seconds beside the network.
  void run(int steps, double compute) {
    for (int i = 0; i < steps; ++i) {
      communicator_.advance(compute);
      std::vector<float> large = gradient(kElements);
      std::vector<float> small = gradient(700);
      session_.synchronize(0, large);
      session_.synchronize(1, small);
      ASSERT_TRUE(session_.next_step());
      used_.push_back(session_.report(0).scheme);
    }
  }

  Session& session() { return session_; }
  /// Of each step.
  const std::vector<std::string>& used() const { return used_; }
  /// Steps with this system.
  std::ptrdiff_t count(const std::string& system) const {
    return std::count_if(used_.begin(), used_.end(),
                         [&](const auto& one) { return one.starts_with(system); });
  }
  std::string system() const { return used_.back().substr(0, used_.back().find(':')); }

 private:
  std::vector<float> gradient(std::size_t elements) {
    std::vector<float> values = gradient_of(communicator_, session_.step(), elements, rank_);
    for (std::size_t i = 0; i < elements; ++i) values[i] *= i % few_ == 0 ? factor_ : 0.0f;
    return values;
  }

  VirtualCommunicator& communicator_;
  Session session_;
  std::size_t rank_;
  std::size_t few_ = 1;
  float factor_ = 1;
  std::vector<std::string> used_;
};

TEST(Auto, WhatLeavesTooMuchOutIsGivenUp) {
  run_virtual(kWorkers, kSlow, [&](VirtualCommunicator& communicator) {
    Training training(communicator, kSpec, kElements);  // noise of full rank
    training.run(kTrial + 70, 0.01);
    const std::string explained = training.session().explain();
    EXPECT_NE(explained.find("bucket of a and 2 more: the mean that arrives is off by 1."), std::string::npos)
        << explained;
    EXPECT_GE(training.count("power_sgd"), 4) << "the fastest, before anything was measured";
    EXPECT_EQ(training.system(), "blocks") << "half of the bytes of half";
    const std::vector<Change> changes = training.session().changes();
    EXPECT_TRUE(std::is_sorted(changes.begin(), changes.end(),
                               [](const Change& a, const Change& b) { return a.step < b.step; }));
    for (const std::string part : {"power_sgd:rank=32:bits=8. Undisturbed, a step takes",
                                   "so blocks:bits=8 until step", "tried again"}) {
      EXPECT_TRUE(std::any_of(changes.begin(), changes.end(), [&](const Change& one) {
        return one.reason.find(part) != std::string::npos;
      })) << part;
    }
  });
}

TEST(Auto, WhatWasGivenUpIsPutToTheTestAgain) {
  run_virtual(kWorkers, kSlow, [&](VirtualCommunicator& communicator) {
    // Noise of full rank, which the guard does not let pass. With this budget no codes either.
    Training training(communicator, kSpec + ":budget=0.3", kElements);
    training.run(kTrial + 40, 0.01);
    ASSERT_EQ(training.system(), "half") << "power_sgd is no faster than dense where the guard takes that";
    training.become(16);
    training.run(70 * 4 + kTrial, 0.01);
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
      EXPECT_NE(guarded.explain().find("so blocks:bits=8 until step"), std::string::npos)
          << guarded.explain();
      EXPECT_EQ(first.explain().find("candidates are tried again"), std::string::npos) << first.explain();
    });
  }
}

TEST(Auto, TheBudgetIsTheGuards) {
  // Noise of full rank: the default allows no such error, another budget does.
  run_virtual(kWorkers, kSlow, [&](VirtualCommunicator& communicator) {
    Training training(communicator, kSpec + ":budget=9", kElements);
    training.run(kTrial + 40, 0.01);
    EXPECT_EQ(training.system(), "power_sgd");
    EXPECT_NE(training.session().explain().find(", allowed are 9.00"), std::string::npos);
    for (const char* useless : {":budget=-1", ":lossless:budget=0.1"}) {
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
    EXPECT_EQ(training.used().front().substr(0, 5), "dense");
    EXPECT_EQ(training.system(), "power_sgd");
    EXPECT_EQ(training.count("dense"), 4) << "they are far behind after one round";
    EXPECT_EQ(training.count("half"), 3);
    explained[communicator.rank()] = training.session().explain();
  });
  EXPECT_NE(explained[0].find("step 10: power_sgd"), std::string::npos) << explained[0];
  for (const auto& [rank, text] : explained) EXPECT_EQ(text, explained[0]) << rank;
}

TEST(Auto, WhereTheWireIsNotTheBottleneckItStaysOff) {
  run_virtual(kWorkers, kFast, [&](VirtualCommunicator& communicator) {
    Training training(communicator);
    training.run(kTrial + 3, 0.01);
    EXPECT_EQ(training.system(), "dense");
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
    training.run(40, 100.0);
    EXPECT_EQ(training.system(), "dense");
    EXPECT_NE(training.session().explain().find("tried again"), std::string::npos);
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
    const auto before = training.count("dense");
    training.run(40, 0.05);
    EXPECT_NE(training.session().explain().find("tried again"), std::string::npos);
    EXPECT_EQ(training.system(), "power_sgd") << training.session().explain();
    EXPECT_EQ(training.count("dense"), before);
    EXPECT_EQ(training.session().explain().find("a trial goes on"), std::string::npos);
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

StateReader state_of(const Session& session) {
  StateWriter writer;
  session.save(writer);
  return StateReader(std::move(writer));
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

TEST(Auto, AResumedRunKeepsTheChoice) {
  run_virtual(kWorkers, kSlow, [&](VirtualCommunicator& communicator) {
    Training training(communicator);
    training.run(kTrial + 2, 0.01);
    Training resumed(communicator);
    resumed.session().load(state_of(training.session()));
    resumed.run(30, 0.01);
    EXPECT_EQ(resumed.used(), std::vector<std::string>(30, training.used().back()));
    EXPECT_NE(resumed.session().explain().find("as in the state that was loaded"), std::string::npos);
  });
}

TEST(Auto, AChoiceIsNotKeptOnAnotherNetwork) {
  std::string state;
  run_virtual(kWorkers, kSlow, [&](VirtualCommunicator& communicator) {
    Training training(communicator);
    training.run(kTrial + 2, 0.01);
    EXPECT_EQ(training.system(), "power_sgd");
    if (communicator.rank() != 0) return;
    StateWriter writer;
    training.session().save(writer);
    std::ostringstream out;
    writer.write(out);
    state = out.str();
  });
  const auto resume = [&](int workers, const VirtualLink& link, int steps) {
    std::string system, explained;
    run_virtual(workers, link, [&](VirtualCommunicator& communicator) {
      std::istringstream in(state);
      Training resumed(communicator);
      resumed.session().load(StateReader(in));
      resumed.run(steps, 0.01);
      if (communicator.rank() != 0) return;
      system = resumed.system();
      explained = resumed.session().explain();
    });
    EXPECT_NE(explained.find("tried again"), std::string::npos) << explained;
    return system;
  };
  EXPECT_EQ(resume(kWorkers, kFast, 2 * 4 + kTrial), "dense") << "steps take another time than in the state";
  EXPECT_EQ(resume(2, kFast, kTrial), "dense") << "another number of ranks";
}

TEST(Auto, ARunThatIsResumedInTheMidstOfTheTrialGoesOnInItAndTriesAllAgain) {
  run_virtual(kWorkers, kSlow, [&](VirtualCommunicator& communicator) {
    Training training(communicator);
    training.run(6, 0.01);
    Training resumed(communicator);
    resumed.session().load(state_of(training.session()));
    resumed.run(30, 0.01);
    training.run(4, 0.01);
    for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(resumed.used()[i], training.used()[6 + i]) << i;
    EXPECT_EQ(resumed.count("dense"), 3) << "of a trial that begins where the first one ends";
    EXPECT_EQ(resumed.system(), "power_sgd");
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
      std::size_t trials = 0;
      for (const Change& change : training.session().changes())
        trials += change.reason.ends_with("tried again");
      EXPECT_LE(trials, 1) << training.session().explain();
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
      training.run(21, 0.3 * (1 + i % 3));
      training.run(42, 0.01);
    }
    EXPECT_EQ(training.system(), "power_sgd");
    std::size_t trials = 0;
    for (const Change& change : training.session().changes())
      trials += change.reason.ends_with("tried again");
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
    EXPECT_EQ(training.session().explain().find("tried again"), std::string::npos);
  });
}

/// A step that does not count leaves nothing behind of what was decided in it.
TEST(Auto, AStepThatIsUndoneDecidesNothing) {
  run_virtual(kWorkers, kSlow, [&](VirtualCommunicator& communicator) {
    Training training(communicator);
    training.run(10, 0.01);
    EXPECT_EQ(training.session().explain(), "step 9: the candidates are being tried, nothing is chosen yet");
    std::vector<float> large(kElements, std::numeric_limits<float>::quiet_NaN());
    training.session().synchronize(0, large);
    EXPECT_EQ(training.session().explain().find("nothing is chosen yet"), std::string::npos);
    EXPECT_NE(training.session().explain().find("step 10: "), std::string::npos);
    EXPECT_FALSE(training.session().next_step());
    EXPECT_TRUE(
        training.session().explain().ends_with(": the candidates are being tried, nothing is chosen yet"));
    training.run(4, 0.01);
    EXPECT_EQ(training.system(), "power_sgd");
  });
}

/// Beyond what fp16 holds, and below its smallest values.
TEST(Auto, LargeAndTinyGradientsComeThroughEveryCandidate) {
  for (const float factor : {1e8f, 1e-12f}) {
    run_virtual(kWorkers, kSlow, [&](VirtualCommunicator& communicator) {
      Training training(communicator);
      training.scale(factor);
      training.run(kTrial + 3, 0.01);  // every step counts
      EXPECT_EQ(training.system(), "power_sgd") << factor;
      Session half("half:format=bf16:feedback=on", communicator);
      half.add_bucket({{"a", kElements}});
      std::vector<float> values = gradient_of(communicator, 0, kElements, kElements);
      for (float& value : values) value *= factor;
      const std::vector<float> before = values;
      half.synchronize(0, values);
      double squares = 0, left = 0;
      for (const float value : before) squares += static_cast<double>(value) * static_cast<double>(value);
      for (const float value : half.residual(0))
        left += static_cast<double>(value) * static_cast<double>(value);
      EXPECT_LT(std::sqrt(left / squares), 0.01) << factor;
    });
  }
}

/// Sends nothing, takes no time, and no step of its counts.
class Broken final : public Synchronizer {
 public:
  void synchronize(BucketId, Span<float>, Span<float>, Step& step) override {
    step.communicator.commit_exchange();
    step.report.finite = false;
  }
  std::uint64_t payload_bytes(const Workload&) const override { return 0; }
};

Registry with_a_broken_candidate() {
  Registry registry;
  SystemInfo info;
  info.name = "auto_with_broken";
  info.state = {planner::kPlan};
  info.undoes_steps = true;
  info.make = [](const Options&, Inner) -> std::unique_ptr<Synchronizer> {
    planner::Auto::Rules rules;
    rules.trial = {.candidates = 2 + planner::kQuarters - 1, .settle = 2, .rounds = 2, .steps = 2};
    rules.within = 0.02;
    rules.interval = 4;
    std::vector<Pipeline> members;
    members.push_back(builtin_registry().make("dense"));
    members.push_back(builtin_registry().make("dense"));
    members.back().synchronizer = std::make_unique<Broken>();
    return std::make_unique<planner::Auto>(rules, std::vector<std::string>{"dense", "broken"},
                                           std::move(members));
  };
  registry.add(info);
  return registry;
}

TEST(Auto, ACandidateThatFailsWhereDenseDoesNotIsLeftOut) {
  const Registry registry = with_a_broken_candidate();
  run_virtual(kWorkers, kSlow, [&](VirtualCommunicator& communicator) {
    Session session("auto_with_broken", communicator, {.registry = &registry});
    session.add_bucket({{"a", 1000}});
    std::vector<int> lost;
    for (int i = 0; i < 40; ++i) {
      communicator.advance(0.01);
      std::vector<float> values(1000, 1.0f);
      session.synchronize(0, values);
      if (!session.next_step()) lost.push_back(i);
    }
    ASSERT_EQ(lost.size(), 2) << session.explain();
    EXPECT_EQ(lost[1], lost[0] + 2) << "between them dense had a step, which counts";
    EXPECT_NE(session.explain().find("broken is left out: "), std::string::npos) << session.explain();
    EXPECT_NE(session.explain().find("ms with dense. "), std::string::npos) << session.explain();
  });
}

/// As where a loss scale has grown too large, once in a while: nobody is to blame.
TEST(Auto, StepsWithoutEffectNowAndThenBlameNobody) {
  run_virtual(kWorkers, kSlow, [&](VirtualCommunicator& communicator) {
    Training training(communicator);
    training.run(kTrial + 2, 0.01);
    for (int i = 0; i < 4; ++i) {
      std::vector<float> bad(kElements, std::numeric_limits<float>::infinity());
      training.session().synchronize(0, bad);
      EXPECT_FALSE(training.session().next_step());
      training.run(1, 0.01);
      EXPECT_EQ(training.system(), "dense") << "it shows that the gradients are finite";
      training.run(3, 0.01);
      EXPECT_EQ(training.system(), "power_sgd");
    }
    EXPECT_EQ(training.session().explain().find("left out"), std::string::npos);
  });
}

TEST(Auto, AnotherLossScaleIsNoResumedRun) {
  for (const int steps : {7, kTrial + 5}) {
    run_virtual(kWorkers, kSlow, [&](VirtualCommunicator& communicator) {
      Training scaled(communicator), undisturbed(communicator);
      for (int i = 0; i < steps + 40; ++i) {
        if (i >= steps && i % 5 == 0) scaled.session().scale_state(i % 2 == 0 ? 2.0f : 0.5f);
        scaled.run(1, 0.01);
      }
      undisturbed.run(steps + 40, 0.01);
      EXPECT_EQ(scaled.used(), undisturbed.used());
      EXPECT_EQ(scaled.session().explain(), undisturbed.session().explain());
    });
  }
}

/// Four buckets alike. Each takes 0.135 s of wire with dense and 0.007 with power_sgd.
class FourBuckets {
 public:
  explicit FourBuckets(VirtualCommunicator& communicator)
      : communicator_(communicator), session_("auto:settle=2:steps=2:interval=4:within=0.1", communicator) {
    for (const char* name : {"a", "b", "c", "d"}) session_.add_bucket({{name, kElements / 4, 150}});
  }

  /// The systems of the last step's buckets.
  std::vector<std::string> run(int steps, double compute) {
    std::vector<std::string> used;
    for (int i = 0; i < steps; ++i) {
      communicator_.advance(compute);
      used.clear();
      for (BucketId bucket = 0; bucket < 4; ++bucket) {
        std::vector<float> gradient = gradient_of(bucket);
        for (std::size_t k = 0; k < gradient.size(); ++k)
          account_[bucket][k] += static_cast<double>(gradient[k]);
        session_.synchronize(bucket, gradient);
        for (std::size_t k = 0; k < gradient.size(); ++k)
          account_[bucket][k] -= static_cast<double>(gradient[k]);
        const std::string scheme = session_.report(bucket).scheme;
        used.push_back(scheme.substr(0, scheme.find(':')));
        EXPECT_EQ(session_.report(bucket).wire.sent_bytes,
                  session_.report(bucket).formula_bytes + session_.report(bucket).frame_header_bytes);
      }
      EXPECT_TRUE(session_.next_step());
    }
    return used;
  }

  Session& session() { return session_; }

  /// Of each element what went in, less what came out, less what this rank has not delivered: nothing, summed
  /// over ranks.
  std::vector<double> account() const {
    std::vector<double> all;
    for (BucketId bucket = 0; bucket < 4; ++bucket) {
      const auto residual = session_.residual(bucket);
      for (std::size_t k = 0; k < kElements / 4; ++k) {
        all.push_back(account_[bucket][k] - (residual.empty() ? 0 : static_cast<double>(residual[k])));
      }
    }
    return all;
  }

 private:
  /// A matrix of rank 15.
  std::vector<float> gradient_of(BucketId bucket) {
    std::uint32_t random = static_cast<std::uint32_t>(session_.step()) * 7919 + bucket * 31 +
                           static_cast<std::uint32_t>(communicator_.rank()) * 104729 + 1;
    std::vector<float> values(kElements / 4);
    for (std::size_t i = 0; i < values.size(); ++i) {
      random = random * 1664525u + 1013904223u;
      values[i] = i < 15 ? static_cast<float>(static_cast<std::int32_t>(random)) * 0x1p-31f : values[i - 15];
    }
    return values;
  }

  VirtualCommunicator& communicator_;
  Session session_;
  std::vector<std::vector<double>> account_{4, std::vector<double>(kElements / 4)};
};

/// Each member's trial, and one of each of three, two and one quarters.
constexpr int kTrialOfShares = 3 * kTrial;

TEST(Auto, BucketsForWhichThereIsTimeAreExact) {
  const std::vector<std::string> with_one = {"dense", "power_sgd", "power_sgd", "power_sgd"};
  const std::vector<std::string> with_none(4, "power_sgd");
  std::map<int, std::string> explained;
  std::vector<std::vector<double>> accounts(kWorkers);
  run_virtual(kWorkers, kSlow, [&](VirtualCommunicator& communicator) {
    FourBuckets training(communicator);
    // A step may take 0.15 s more than the shortest: one bucket's worth.
    EXPECT_EQ(training.run(kTrialOfShares, 1.5), with_one) << training.session().explain();
    explained[communicator.rank()] = training.session().explain();
    EXPECT_NE(explained[communicator.rank()].find("power_sgd:rank=32:bits=8 (dense for the buckets of the "
                                                  "first 1/4 of the elements). Undisturbed, a step takes"),
              std::string::npos)
        << explained[communicator.rank()];
    // Bit for bit the same choice where the run is resumed, in sessions of other buckets as well.
    FourBuckets resumed(communicator);
    resumed.session().load(state_of(training.session()));
    EXPECT_EQ(resumed.run(2, 1.5), with_one);
    accounts[static_cast<std::size_t>(communicator.rank())] = training.account();
    FourBuckets without_time(communicator);
    EXPECT_EQ(without_time.run(kTrialOfShares, 0.1), with_none) << without_time.session().explain();
  });
  for (const auto& [rank, text] : explained) EXPECT_EQ(text, explained[0]) << rank;
  for (std::size_t i = 0; i < kElements; ++i) {
    double sum = 0;
    for (const auto& account : accounts) sum += account[i];
    ASSERT_NEAR(sum, 0, 1e-3) << i;
  }
}

/// Two sessions for parts of one model, as a process under DDP has them.
TEST(Auto, OneSessionDecidesForAll) {
  run_virtual(kWorkers, kSlow, [&](VirtualCommunicator& communicator) {
    Session first(kSpec, communicator), second(kSpec, communicator);
    first.add_bucket({{"a", kElements, 300}});
    second.add_bucket({{"b", kElements, 300}});
    std::vector<float> gradient(kElements, 1.0f);
    for (int step = 0; step < kTrial; ++step) {
      // The second one alone would see the time of a step otherwise.
      first.synchronize(0, gradient);
      communicator.advance(0.1 * step);
      second.synchronize(0, gradient);
      EXPECT_STREQ(first.report(0).scheme, second.report(0).scheme) << step;
      first.next_step();
      second.next_step();
      second.follow(first.decisions());
    }
    EXPECT_NE(first.explain(), "");
    EXPECT_EQ(second.explain().find("a step takes"), std::string::npos) << "it decides nothing";
    const StateReader state = state_of(second);
    EXPECT_TRUE(state.contains("auto_plan/b")) << "what is saved is the same everywhere";
  });
}

}  // namespace
}  // namespace thinwire::auto_test
