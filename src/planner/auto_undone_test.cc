// `auto` over steps that do not count, states that are resumed, and loss scales that change.

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "planner/auto_parts.h"
#include "planner/auto_training.h"

namespace thinwire::auto_test {
namespace {

std::string text_of(const Session& session) {
  StateWriter writer;
  session.save(writer);
  std::ostringstream out;
  writer.write(out);
  return out.str();
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
    if (communicator.rank() == 0) state = text_of(training.session());
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

/// Over the slower network dense would take 5.9 s, half 3.2 and power_sgd 1.1. Over the other one dense took
/// 1.05, which says nothing now.
TEST(Auto, WhatIsNotTriedAgainIsNotChosenByWhatItTookBefore) {
  std::string state;
  run_virtual(kWorkers, kSlow, [&](VirtualCommunicator& communicator) {
    Training training(communicator);
    training.run(kTrial + 12, 0.5);
    EXPECT_EQ(training.system(), "power_sgd");
    EXPECT_GT(training.count("dense"), 0);
    if (communicator.rank() == 0) state = text_of(training.session());
  });
  run_virtual(kWorkers, {.bytes_per_second = 1e5, .latency_seconds = 1e-3},
              [&](VirtualCommunicator& communicator) {
                std::istringstream in(state);
                Training training(communicator);
                training.session().load(StateReader(in));
                training.run(40, 0.5);
                const std::string explained = training.session().explain();
                EXPECT_NE(explained.find("with dense (in an earlier trial)"), std::string::npos) << explained;
                EXPECT_EQ(training.count("dense"), 0) << explained;
                EXPECT_EQ(training.system(), "power_sgd");
              });
}

/// A step is mostly computing, and takes 0.31 s over the one network and 0.25 s over the other.
TEST(Auto, ALinkThatIsFasterIsNoticedWhereStepsHardlyShowIt) {
  std::string state;
  run_virtual(kWorkers, kSlow, [&](VirtualCommunicator& communicator) {
    Training training(communicator);
    training.run(kTrial + 12, 0.25);
    EXPECT_EQ(training.system(), "power_sgd");
    if (communicator.rank() == 0) state = text_of(training.session());
  });
  run_virtual(kWorkers, kFast, [&](VirtualCommunicator& communicator) {
    std::istringstream in(state);
    Training training(communicator);
    training.session().load(StateReader(in));
    training.run(50, 0.25);
    EXPECT_EQ(training.system(), "dense");
    EXPECT_NE(training.session().explain().find("the exchange takes 0.0 ms of a step and took"),
              std::string::npos)
        << training.session().explain();
  });
}

/// As it would be after a link that took ten times as long: the last of a plan's numbers is what a message
/// took. Steps are as they were, and say nothing.
TEST(Auto, AMessageShowsALinkThatTheChoiceDoesNotShow) {
  run_virtual(kWorkers, kSlow, [&](VirtualCommunicator& communicator) {
    Training training(communicator);
    training.run(kTrial + 20, 0.01);
    EXPECT_EQ(training.system(), "power_sgd");
    const StateReader saved = state_of(training.session());
    StateWriter changed;
    for (const std::string& name : saved.names("")) {
      if (!name.starts_with("auto_plan/")) {
        changed.copy(saved, name);
        continue;
      }
      std::vector<float> numbers(saved.length(name));
      saved.get(name, Span<float>(numbers));
      EXPECT_NEAR(numbers.back(), planner::kProbeBytes / kSlow.bytes_per_second, 0.01);
      numbers.back() *= 10;
      changed.put(name, Span<const float>(numbers));
    }
    Training resumed(communicator);
    resumed.session().load(StateReader(std::move(changed)));
    resumed.run(12, 0.01);
    EXPECT_NE(resumed.session().explain().find("a message of 128 KiB takes 131."), std::string::npos)
        << resumed.session().explain();
    EXPECT_NE(resumed.session().explain().find("the candidates are tried again"), std::string::npos);
    resumed.run(kTrial + 40, 0.01);
    EXPECT_EQ(resumed.system(), "power_sgd") << "the trial confirms it";
    const auto changes = resumed.session().changes();
    EXPECT_EQ(
        std::ranges::count_if(changes, [](const Change& one) { return one.reason.ends_with("tried again"); }),
        1)
        << resumed.session().explain();
  });
}

/// Two buckets for `auto`. Of the second low rank leaves too much out. Beside them a table of which top-k
/// takes one row of eight, so that its guard gives it to dense.
class WithTable {
 public:
  explicit WithTable(VirtualCommunicator& communicator)
      : communicator_(communicator),
        session_("rows=guard:every=8+top_k:ratio=0.1+zen,dense=" + kSpec, communicator,
                 {.undoes_steps = true}) {
    session_.add_bucket({{"a", kElements, 300}});
    session_.add_rows("table", 8, 1);
    session_.add_bucket({{"b", kElements, 300}});
  }

  void run(int steps) {
    const std::vector<std::uint32_t> indices = {0, 1, 2, 3, 4, 5, 6, 7};
    for (int i = 0; i < steps; ++i) {
      communicator_.advance(0.01);
      std::vector<float> gradient = gradient_of(communicator_, session_.step(), kElements, 16);
      std::vector<float> other = gradient_of(communicator_, session_.step(), kElements, kElements);
      session_.synchronize(0, gradient);
      session_.synchronize(2, other);
      const std::vector<float> values(8, 1.0f);
      session_.synchronize_rows(1, {.row_indices = indices, .values = values, .rows = 8, .width = 1});
      ASSERT_TRUE(session_.next_step());
    }
  }

  /// All but the guard's numbers of the table, which no guard wrote.
  StateReader refused_state() const {
    const StateReader saved = state_of(session_);
    StateWriter changed;
    for (const std::string& name : saved.names("")) {
      if (name != "guard/table") {
        changed.copy(saved, name);
        continue;
      }
      const std::vector<float> numbers(saved.length(name), -1.0f);
      changed.put(name, Span<const float>(numbers));
    }
    return StateReader(std::move(changed));
  }

  Session& session() { return session_; }

 private:
  VirtualCommunicator& communicator_;
  Session session_;
};

/// The table's system refuses what `auto` had already taken.
TEST(Auto, ALoadThatAnotherSystemRefusesChangesNothing) {
  run_virtual(kWorkers, kSlow, [&](VirtualCommunicator& communicator) {
    WithTable other(communicator);
    other.run(kTrial + 1);
    const StateReader state = other.refused_state();
    // Within half's turn, and after the choice of power_sgd.
    for (const int steps : {2, kTrial + 4}) {
      WithTable training(communicator);
      training.run(steps);
      const std::string explained = training.session().explain();
      const std::string before = text_of(training.session());
      EXPECT_THROW(training.session().load(state), std::runtime_error);
      EXPECT_EQ(training.session().explain(), explained);
      EXPECT_EQ(text_of(training.session()), before) << steps;
      if (steps < kTrial) continue;
      EXPECT_NE(explained.find("power_sgd:rank=32:bits=8. Undisturbed, a step takes"), std::string::npos)
          << explained;
      for (const char* bucket : {"guard: bucket of table: ", "guard: bucket of b: "})
        EXPECT_NE(explained.find(bucket), std::string::npos) << explained;
      training.run(2);
      EXPECT_EQ(std::string(training.session().report(0).scheme), "power_sgd:rank=32:bits=8");
    }
  });
}

/// What a trial has found, and how patient it has become, is known to a resumed run.
TEST(Auto, AResumedRunKnowsWhatOtherCandidatesTook) {
  run_virtual(kWorkers, kSlow, [&](VirtualCommunicator& communicator) {
    Training training(communicator);
    training.run(kTrial + 12, 0.01);
    Training resumed(communicator);
    resumed.session().load(state_of(training.session()));
    resumed.run(40, 0.05);  // longer steps, which are no reason to try dense, 0.55 s
    EXPECT_EQ(resumed.count("dense"), 0);
    EXPECT_NE(resumed.session().explain().find("tried again"), std::string::npos);
  });
}

TEST(Auto, ARunThatIsResumedInTheMidstOfTheTrialGoesOnInItAndTriesAllAgain) {
  run_virtual(kWorkers, kSlow, [&](VirtualCommunicator& communicator) {
    Training training(communicator);
    training.run(5, 0.01);
    Training resumed(communicator);
    resumed.session().load(state_of(training.session()));
    resumed.run(30, 0.01);
    training.run(3, 0.01);
    for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(resumed.used()[i], training.used()[5 + i]) << i;
    EXPECT_EQ(resumed.count("half"), 3) << "of a trial that begins where the first one ends";
    EXPECT_EQ(resumed.system(), "power_sgd");
  });
}

/// A step that does not count leaves nothing behind of what was decided in it.
TEST(Auto, AStepThatIsUndoneDecidesNothing) {
  run_virtual(kWorkers, kSlow, [&](VirtualCommunicator& communicator) {
    Training training(communicator);
    training.run(7, 0.01);
    EXPECT_EQ(training.session().explain(), "step 6: the candidates are being tried, nothing is chosen yet");
    std::vector<float> large(kElements, std::numeric_limits<float>::quiet_NaN());
    training.session().synchronize(0, large);
    EXPECT_EQ(training.session().explain().find("nothing is chosen yet"), std::string::npos);
    EXPECT_NE(training.session().explain().find("step 7: "), std::string::npos);
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

}  // namespace
}  // namespace thinwire::auto_test
