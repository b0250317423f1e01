// The stage `guard` in front of real systems.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "thinwire/in_process.h"
#include "thinwire/session.h"

namespace thinwire::guard_test {
namespace {

constexpr std::size_t kElements = 9000;  // more than the least sample
constexpr int kWorkers = 3;

std::vector<float> gradient_of(int rank, std::uint64_t step) {
  std::vector<float> gradient(kElements);
  for (std::size_t i = 0; i < kElements; ++i) {
    gradient[i] =
        std::sin(static_cast<float>(i) * 0.37f + static_cast<float>(rank) + 2.1f * static_cast<float>(step));
  }
  return gradient;
}

void add_bucket(Session& session) {
  session.add_bucket({{"fc.weight", kElements - 100, 89}, {"fc.bias", 100, 100}});
}

struct Trace {
  std::vector<std::vector<float>> means;  // of rank 0, by step
  std::vector<double> errors;             // the report's, -1 where it was not measured
  std::vector<double> cosines;            // the report's, -2 where it was not measured
  std::string explained;
  std::vector<Change> changes;
  std::uint64_t times_changed = 0;
};

/// spoilt: a step in which one rank has a value that is not finite. resumed: before this step all ranks go on
/// with the saved state in new sessions.
Trace train(const std::string& spec, std::uint64_t steps, int spoilt = -1, int resumed = -1) {
  Trace trace;
  run_in_process(kWorkers, [&](Communicator& communicator) {
    auto session = std::make_unique<Session>(spec, communicator, SessionOptions{.undoes_steps = true});
    add_bucket(*session);
    for (std::uint64_t step = 0; step < steps; ++step) {
      if (static_cast<int>(step) == resumed) {
        StateWriter writer;
        session->save(writer);
        session = std::make_unique<Session>(spec, communicator, SessionOptions{.undoes_steps = true});
        add_bucket(*session);
        session->load(StateReader(std::move(writer)));
      }
      std::vector<float> gradient = gradient_of(communicator.rank(), step);
      if (static_cast<int>(step) == spoilt && communicator.rank() == 1) {
        gradient[7] = std::numeric_limits<float>::infinity();
      }
      const StepReport& report = session->synchronize(0, gradient);
      const double error = report.relative_error;
      const double cosine = report.cosine;
      const std::uint64_t times_changed = report.changes;
      session->next_step();
      if (communicator.rank() != 0) continue;
      trace.times_changed += times_changed;
      trace.means.push_back(std::move(gradient));
      trace.errors.push_back(error);
      trace.cosines.push_back(cosine);
    }
    if (communicator.rank() != 0) return;
    trace.explained = session->explain();
    trace.changes = session->changes();
  });
  return trace;
}

TEST(Guard, TakesTheOtherSystemAfterALargeErrorAndTriesAgainMoreSeldom) {
  const Trace dense = train("dense", 40);
  const Trace guarded = train("guard:every=8+top_k:ratio=0.01+zen", 40);
  for (std::uint64_t step = 0; step < 40; ++step) {
    // Measured in its 4th step, 8 steps of dense, in its 4th step again, 16 steps of dense.
    const bool measured = step == 3 || step == 15 || step == 35;
    EXPECT_EQ(guarded.errors[step] > 0.25, measured) << step;
    EXPECT_EQ(guarded.errors[step] == -1, !measured) << step;
    const bool by_dense = (step >= 4 && step < 12) || (step >= 16 && step < 32) || step >= 36;
    const bool residual_left = step == 4 || step == 16 || step == 36;
    EXPECT_EQ(guarded.means[step] == dense.means[step], by_dense && !residual_left) << step;
  }
  ASSERT_EQ(guarded.changes.size(), 5) << guarded.explained;
  EXPECT_EQ(guarded.times_changed, 5);
  const std::string bucket = "guard: bucket of fc.weight and 1 more: ";
  for (std::size_t i = 0; i < 5; ++i) {
    const Change& change = guarded.changes[i];
    EXPECT_EQ(change.step, (std::array<std::uint64_t, 5>{3, 12, 15, 32, 35})[i]);
    const std::string expected = bucket + (i == 1   ? "tried again 8 steps after it was given up for dense"
                                           : i == 3 ? "tried again 16 steps after it was given up for dense"
                                                    : "the mean that arrives is off by ");
    EXPECT_EQ(change.reason.substr(0, expected.size()), expected);
  }
  EXPECT_TRUE(guarded.changes[4].reason.ends_with(
      " times the batches' noise, more than 0.50, so dense in its place for 32 steps"));
  EXPECT_EQ(guarded.explained, to_text(guarded.changes)) << "the last measurement is the last change";
}

TEST(Guard, TellsOfNoChangeInAStepThatDoesNotCount) {
  // In the 4th step both errors are too large, but the second bucket is not finite.
  run_in_process(2, [&](Communicator& communicator) {
    Session session("guard:every=8+top_k:ratio=0.01+zen", communicator, {.undoes_steps = true});
    add_bucket(session);
    session.add_bucket({{"other", 100, 10}});
    for (std::uint64_t step = 0; step < 8; ++step) {
      std::vector<float> gradient = gradient_of(communicator.rank(), step), other(100, 1.0f);
      if (step == 3) other[5] = std::numeric_limits<float>::infinity();
      EXPECT_EQ(session.synchronize(0, gradient).changes, step == 3 || step == 7 ? 1 : 0) << step;
      session.synchronize(1, other);
      EXPECT_EQ(session.next_step(), step != 3);
      EXPECT_EQ(session.changes().size(), step == 7 ? 2 : 0) << step << ", both buckets'";
    }
    EXPECT_EQ(session.changes()[0].step, 7);
  });
}

TEST(Guard, LeavesASystemAloneThatKeepsToTheBound) {
  const std::string inner = "qsgd:bits=8:feedback=on";
  const Trace alone = train(inner, 20);
  const Trace guarded = train("guard:every=8+" + inner, 20);
  EXPECT_EQ(guarded.means, alone.means);
  EXPECT_EQ(guarded.explained.substr(0, 48), "step 17: guard: bucket of fc.weight and 1 more: ")
      << guarded.explained;
  EXPECT_TRUE(guarded.explained.ends_with(" times the batches' noise, allowed are 0.50"))
      << guarded.explained;
  for (std::uint64_t step = 0; step < 20; ++step) {
    const bool measured = step == 3 || step == 7 || step == 17;
    EXPECT_EQ(guarded.errors[step] >= 0, measured) << step;
    EXPECT_LT(guarded.errors[step], 0.05);
  }
}

TEST(Guard, MeasuresBucketsInTurn) {
  run_in_process(kWorkers, [&](Communicator& communicator) {
    Session session("guard:every=8+qsgd:bits=8:feedback=on", communicator);
    constexpr BucketId kBuckets = 5;
    for (BucketId bucket = 0; bucket < kBuckets; ++bucket) {
      session.add_bucket({{"fc." + std::to_string(bucket), kElements, 100}});
    }
    std::array<std::vector<std::uint64_t>, kBuckets> measured;
    for (std::uint64_t step = 0; step < 33; ++step) {
      for (BucketId bucket = 0; bucket < kBuckets; ++bucket) {
        std::vector<float> gradient = gradient_of(communicator.rank(), step + bucket);
        if (session.synchronize(bucket, gradient).relative_error >= 0) measured[bucket].push_back(step);
      }
      session.next_step();
    }
    // All in the fourth step. Then each in one of every eight, two steps later from round to round.
    EXPECT_EQ(measured[0], (std::vector<std::uint64_t>{3, 7, 17, 27}));
    EXPECT_EQ(measured[1], (std::vector<std::uint64_t>{3, 9, 19, 29, 31}));
    EXPECT_EQ(measured[2], (std::vector<std::uint64_t>{3, 11, 21, 23}));
    EXPECT_EQ(measured[3], (std::vector<std::uint64_t>{3, 13, 15, 25}));
    EXPECT_EQ(measured[4], measured[0]) << "there are four turns";
  });
}

/// Steps in which a system sends everything have no error. They come every fifth time, and the guard looks
/// every tenth time, by turns: it must not see those alone.
TEST(Guard, SeesMoreThanTheExactStepsOfASystem) {
  run_in_process(kWorkers, [&](Communicator& communicator) {
    Session session("guard:every=10:noise=1000+marsit:full_every=5", communicator);
    constexpr BucketId kBuckets = 5;
    for (BucketId bucket = 0; bucket < kBuckets; ++bucket) {
      session.add_bucket({{"fc." + std::to_string(bucket), kElements, 100}});
    }
    std::array<int, kBuckets> seen{};
    for (std::uint64_t step = 0; step < 70; ++step) {
      for (BucketId bucket = 0; bucket < kBuckets; ++bucket) {
        std::vector<float> gradient = gradient_of(communicator.rank(), step + bucket);
        const double error = session.synchronize(bucket, gradient).relative_error;
        seen[bucket] += step >= 10 && error > 0.01 ? 1 : 0;
      }
      session.next_step();
    }
    for (const int times : seen) EXPECT_GE(times, 3);
  });
}

/// Of a system without a residual, beside what this test computes of all elements.
TEST(Guard, ReportsTheCosineOfTheMeanAndTheExactOne) {
  for (const char* system : {"dense", "signsgd", "terngrad"}) {
    const Trace trace = train(std::string("guard:every=10:noise=1000000+") + system, 5);
    std::vector<std::vector<float>> gradients;
    for (int rank = 0; rank < kWorkers; ++rank) gradients.push_back(gradient_of(rank, 3));
    double squares = 0;
    double delivered = 0;
    double product = 0;
    for (std::size_t i = 0; i < kElements; ++i) {
      double exact = 0;
      for (const auto& gradient : gradients) exact += gradient[i] / kWorkers;
      squares += exact * exact;
      delivered += trace.means[3][i] * trace.means[3][i];
      product += exact * trace.means[3][i];
    }
    // The guard knows a sample of the elements.
    EXPECT_NEAR(trace.cosines[3], product / std::sqrt(squares * delivered), 0.03) << system;
    EXPECT_EQ(trace.cosines[2], -2) << system;  // it was not measured
  }
}

/// A loss scale multiplies gradients, and the residual with them: what is left out stays the same share.
TEST(Guard, ANewLossScaleIsNoTrouble) {
  run_in_process(kWorkers, [&](Communicator& communicator) {
    const std::string inner = "qsgd:bits=4:feedback=on";
    Session scaled("guard:every=8+" + inner, communicator);
    Session plain("guard:every=8+" + inner, communicator);
    add_bucket(scaled);
    add_bucket(plain);
    float before = 1;
    for (std::uint64_t step = 0; step < 40; ++step) {
      const float scale = step < 10 ? 65536.0f : step < 23 ? 256.0f : 32768.0f;
      scaled.scale_state(scale / before);
      before = scale;
      std::vector<float> gradient = gradient_of(communicator.rank(), step);
      std::vector<float> large = gradient;
      for (float& value : large) value *= scale;
      const double expected = plain.synchronize(0, gradient).relative_error;
      const double error = scaled.synchronize(0, large).relative_error;
      EXPECT_NEAR(error, expected, 1e-3) << step;
      for (std::size_t i = 0; i < kElements; ++i) ASSERT_NEAR(large[i] / scale, gradient[i], 1e-4);
      plain.next_step();
      scaled.next_step();
    }
    EXPECT_TRUE(scaled.changes().empty()) << scaled.explain();
    EXPECT_EQ(scaled.explain(), plain.explain());
  });
}

/// The residual is of gradients, so a rate that changes a hundredfold does not make what is left out larger.
TEST(Guard, ANewLearningRateIsNoTrouble) {
  for (const std::string inner : {"qsgd:bits=4:feedback=on", "blocks:bits=4"}) {
    run_in_process(kWorkers, [&](Communicator& communicator) {
      Session changing("guard:every=8+" + inner, communicator);
      Session steady("guard:every=8+" + inner, communicator);
      add_bucket(changing);
      add_bucket(steady);
      int measured = 0;
      for (std::uint64_t step = 0; step < 40; ++step) {
        changing.set_learning_rate(step < 10 ? 0.1 : step < 23 ? 0.001 : 1);
        steady.set_learning_rate(0.1);
        std::vector<float> gradient = gradient_of(communicator.rank(), step);
        std::vector<float> same = gradient;
        const double error = changing.synchronize(0, gradient).relative_error;
        EXPECT_EQ(error, steady.synchronize(0, same).relative_error) << inner << ", step " << step;
        measured += error >= 0 ? 1 : 0;
        changing.next_step();
        steady.next_step();
      }
      EXPECT_GT(measured, 2) << inner;
      EXPECT_TRUE(changing.changes().empty()) << inner << ": " << changing.explain();
      EXPECT_EQ(changing.explain(), steady.explain()) << inner;
    });
  }
}

/// The error of a system that delivers nothing of half of the elements is known.
TEST(Guard, MeasuresTheErrorOfTheMean) {
  const Trace none = train("guard:every=8:noise=9+s2_reducer:lambda=exact:feedback=on", 4);
  EXPECT_NEAR(none.errors[3], 0, 1e-4);
  run_in_process(kWorkers, [&](Communicator& communicator) {
    Session session("guard:every=8:noise=9+top_k:ratio=0.5:feedback=off+zen", communicator);
    add_bucket(session);
    for (std::uint64_t step = 0; step < 4; ++step) {
      // Every other element is too small to be sent, and the same on all ranks.
      std::vector<float> gradient(kElements);
      for (std::size_t i = 0; i < kElements; ++i) gradient[i] = i % 2 == 0 ? 1.0f : 0.5f;
      const double error = session.synchronize(0, gradient).relative_error;
      session.next_step();
      if (step == 3) {
        EXPECT_NEAR(error, std::sqrt(0.25 / 1.25), 0.01);
      }
    }
  });
}

/// Ranks that see other examples have means that are noise: what is small beside it is no failure.
TEST(Guard, MindsLessWhereRanksDiffer) {
  for (const bool alike : {true, false}) {
    run_in_process(kWorkers, [&](Communicator& communicator) {
      Session session("guard:every=8:noise=0.5+qsgd:bits=3:feedback=on", communicator);
      add_bucket(session);
      for (std::uint64_t step = 0; step < 4; ++step) {
        std::vector<float> gradient = gradient_of(alike ? 0 : communicator.rank(), step);
        session.synchronize(0, gradient);
        session.next_step();
      }
      EXPECT_EQ(session.explain().find("more than 0.50") != std::string::npos, alike) << session.explain();
    });
  }
}

TEST(Guard, AStepWithoutEffectMeasuresNothing) {
  const Trace guarded = train("guard:every=8+top_k:ratio=0.01+zen", 8, 3);
  EXPECT_EQ(guarded.errors[3], -1);
  EXPECT_GT(guarded.errors[7], 0.25) << "measured in the 8th step instead";
}

TEST(Guard, ARestartChangesNothing) {
  for (const int resumed : {2, 6, 14, 20}) {
    const std::string spec = "guard:every=8:with=qsgd/bits=8+top_k:ratio=0.01+zen";
    EXPECT_EQ(train(spec, 40, -1, resumed).means, train(spec, 40).means) << resumed;
  }
}

/// The guard counts its steps from the end of the warm-up on. What it tells counts all.
TEST(Guard, BehindAWarmUpItTellsTheStepsOfTheTraining) {
  const Trace alone = train("guard:every=8+top_k:ratio=0.01+zen", 40);
  const Trace warmed = train("warm_up:steps=5+guard:every=8+top_k:ratio=0.01+zen", 45);
  ASSERT_EQ(warmed.changes.size(), alone.changes.size());
  for (std::size_t i = 0; i < alone.changes.size(); ++i) {
    EXPECT_EQ(warmed.changes[i].step, alone.changes[i].step + 5);
  }
  EXPECT_EQ(warmed.explained, to_text(warmed.changes));
}

TEST(Guard, RefusesWhatCannotBeCompared) {
  run_in_process(1, [&](Communicator& communicator) {
    const std::vector<std::pair<std::string, std::string>> refused = {
        {"guard+mc:momentum=0.5+top_k:ratio=0.1+zen", "put guard behind mc"},
        {"guard+sketched_sgd:momentum=0.9:lr_after=on", "set its momentum=0"},
        {"guard+sketched_sgd", "set its lr_after=on"},
        {"guard+demo", "take another system"},
        {"guard+marsit:eta_s=theorem:horizon=9", "give it another eta_s"},
        {"guard+momentum+casq", "put momentum in front"},
        {"guard+decay+casq", "put decay in front"},
        {"guard+auto", "it guards by itself"},
        {"guard:with=demo+casq", "take another system"},
        {"guard:with=sketched_sgd/momentum=0.9/lr_after=on+casq", "set its momentum=0"},
        {"top_k:ratio=0.1+guard+zen", "put guard in front"},
        {"guard:with=power_sgd+casq", "keeps a state of its own; give one of s2_reducer, dense, "},
    };
    for (const auto& [spec, words] : refused) {
      try {
        Session session(spec, communicator);
        ADD_FAILURE() << spec;
      } catch (const std::invalid_argument& error) {
        EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << spec << ": " << error.what();
      }
    }
    for (const std::string accepted : {"mc:momentum=0.5+guard+top_k:ratio=0.1+zen", "momentum+guard+casq",
                                       "guard+sketched_sgd:lr_after=on", "guard+marsit", "decay+guard+casq",
                                       "guard+warm_up+casq", "warm_up+guard+casq"}) {
      EXPECT_NO_THROW(Session(accepted, communicator)) << accepted;
    }
  });
}

}  // namespace
}  // namespace thinwire::guard_test
