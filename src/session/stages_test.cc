// The stages `whole`, `warm_up` and `decay` in front of real systems.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "thinwire/in_process.h"
#include "thinwire/session.h"

namespace thinwire::stages_test {
namespace {

/// Why there is no such system; empty where there is.
std::string complaint(const std::string& spec) {
  try {
    builtin_registry().make(spec);
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "";
}

constexpr std::size_t kWeight = 64 * 8;
constexpr std::size_t kBias = 64;
constexpr std::size_t kTable = 100;

BucketLayout layout() {
  return {{"fc.weight", kWeight, 64}, {"fc.bias", kBias, kBias}, {"table.weight", kTable, 10}};
}

/// Of a rank and a step; every element differs.
std::vector<float> gradient_of(int rank, std::uint64_t step) {
  std::vector<float> gradient(kWeight + kBias + kTable);
  for (std::size_t i = 0; i < gradient.size(); ++i) {
    gradient[i] =
        std::sin(static_cast<float>(i) * 0.37f + static_cast<float>(rank) + 2.1f * static_cast<float>(step));
  }
  return gradient;
}

/// Rank 0's means of so many steps.
std::vector<std::vector<float>> means_of(const std::string& spec, std::uint64_t steps, int workers = 3) {
  std::vector<std::vector<float>> means;
  run_in_process(workers, [&](Communicator& communicator) {
    Session session(spec, communicator);
    session.add_bucket(layout());
    for (std::uint64_t step = 0; step < steps; ++step) {
      std::vector<float> gradient = gradient_of(communicator.rank(), step);
      session.synchronize(0, gradient);
      session.next_step();
      if (communicator.rank() == 0) means.push_back(std::move(gradient));
    }
  });
  return means;
}

/// Up to the order of a ring's sums, which depends on how long the bucket is.
bool same_part(const std::vector<float>& left, const std::vector<float>& right, std::size_t begin,
               std::size_t count) {
  return std::equal(left.begin() + static_cast<std::ptrdiff_t>(begin),
                    left.begin() + static_cast<std::ptrdiff_t>(begin + count),
                    right.begin() + static_cast<std::ptrdiff_t>(begin),
                    [](float a, float b) { return std::fabs(a - b) < 1e-6f; });
}

TEST(Whole, ChosenParametersAreThoseOfDense) {
  const auto dense = means_of("dense", 4);
  for (const std::string inner :
       {"casq:interval=1", "marsit:full_every=0", "top_k:ratio=0.05+zen", "power_sgd:rank=1"}) {
    const auto vectors = means_of("whole+" + inner, 4);
    const auto named = means_of("whole:vectors=off:names=table*+" + inner, 4);
    const auto small = means_of("whole:below=150+" + inner, 4);
    for (std::size_t step = 0; step < 4; ++step) {
      EXPECT_TRUE(same_part(vectors[step], dense[step], kWeight, kBias)) << inner;
      EXPECT_FALSE(same_part(vectors[step], dense[step], 0, kWeight)) << inner;
      EXPECT_FALSE(same_part(vectors[step], dense[step], kWeight + kBias, kTable)) << inner;
      EXPECT_TRUE(same_part(named[step], dense[step], kWeight + kBias, kTable)) << inner;
      EXPECT_FALSE(same_part(named[step], dense[step], 0, kWeight)) << inner;
      EXPECT_TRUE(same_part(small[step], dense[step], kWeight, kBias + kTable)) << inner;
    }
  }
}

TEST(Whole, AValueThatIsNotFiniteIsToldToAllAndMovesNothing) {
  run_in_process(3, [&](Communicator& communicator) {
    Session session("whole+casq:interval=1", communicator);
    session.add_bucket(layout());
    std::vector<float> gradient = gradient_of(communicator.rank(), 0);
    session.synchronize(0, gradient);
    session.next_step();
    const std::vector<float> before(session.residual(0).begin(), session.residual(0).end());
    gradient = gradient_of(communicator.rank(), 1);
    if (communicator.rank() == 1) gradient[kWeight + 3] = std::numeric_limits<float>::infinity();
    EXPECT_FALSE(session.synchronize(0, gradient).finite);
    EXPECT_EQ(std::vector<float>(session.residual(0).begin(), session.residual(0).end()), before);
  });
}

TEST(WarmUp, IsAnotherSystemUntilItsStep) {
  const auto dense = means_of("dense", 5);
  const auto warmed = means_of("warm_up:steps=3+top_k:ratio=0.1+zen", 5);
  for (std::size_t step = 0; step < 3; ++step) EXPECT_EQ(warmed[step], dense[step]);
  EXPECT_NE(warmed[3], dense[3]);
  // What dense left to the sparsifier is nothing: so its first step is that of one that begins.
  run_in_process(3, [&](Communicator& communicator) {
    Session session("top_k:ratio=0.1+zen", communicator);
    session.add_bucket(layout());
    std::vector<float> gradient = gradient_of(communicator.rank(), 3);
    session.synchronize(0, gradient);
    if (communicator.rank() == 0) {
      EXPECT_EQ(gradient, warmed[3]);
    }
  });
}

TEST(WarmUp, WhatTheFirstSystemLeavesIsDeliveredByTheSecond) {
  const std::string spec = "warm_up:steps=2:with=terngrad/clip=2.5+dense:feedback=on";
  run_in_process(2, [&](Communicator& communicator) {
    Session session(spec, communicator);
    session.add_bucket({{"w", 400}});
    std::vector<double> balance(400);
    for (std::uint64_t step = 0; step < 3; ++step) {
      std::vector<float> gradient = gradient_of(communicator.rank(), step);
      gradient.resize(400);
      std::vector<float> sum = gradient;
      communicator.all_reduce_sum(sum);
      session.synchronize(0, gradient);
      session.next_step();
      for (std::size_t i = 0; i < 400; ++i) balance[i] += sum[i] - 2.0 * gradient[i];
    }
    for (const double open : balance) EXPECT_NEAR(open, 0, 1e-4);
    for (const float left : session.residual(0)) EXPECT_EQ(left, 0);
  });
}

TEST(WarmUp, BytesAreThoseOfTheStepsSystem) {
  run_in_process(4, [&](Communicator& communicator) {
    Session session("warm_up:steps=1+warm_up:steps=1:with=qsgd/bits=2+casq", communicator);
    session.add_bucket({{"w", 4096}});
    std::vector<std::uint64_t> bytes;
    for (const std::string spec : {"dense", "qsgd:bits=2", "casq"}) {
      Session alone(spec, communicator);
      alone.add_bucket({{"w", 4096}});
      bytes.push_back(alone.payload_bytes(0));
    }
    for (std::size_t step = 0; step < 3; ++step) {
      EXPECT_EQ(session.payload_bytes(0), bytes[step]) << step;
      session.next_step();
    }
  });
}

TEST(WarmUp, ARampBehindItBeginsAtItsEnd) {
  run_in_process(2, [&](Communicator& communicator) {
    Session session("warm_up:steps=2+top_k:ratio=0.01:ramp_from=0.16:ramp_steps=2+agsparse", communicator);
    session.add_bucket({{"w", 10'000}});
    std::vector<double> densities;
    for (std::uint64_t step = 0; step < 6; ++step) {
      std::vector<float> gradient = gradient_of(communicator.rank(), step);
      gradient.resize(10'000, 0.5f);
      densities.push_back(session.synchronize(0, gradient).density_in);
      session.next_step();
    }
    EXPECT_EQ(std::vector<double>(densities.begin() + 2, densities.end()),
              (std::vector<double>{0.16, 0.04, 0.01, 0.01}));
  });
}

/// Holds so many steps against the stage's equation, element by element.
void expect_decay(const std::string& spec, double factor, std::uint64_t steps) {
  constexpr int kWorkers = 3;
  constexpr std::size_t kElements = kWeight + kBias + kTable;
  run_in_process(kWorkers, [&](Communicator& communicator) {
    Session session(spec, communicator);
    session.add_bucket(layout());
    EXPECT_FALSE(session.pipeline(0).conserves);
    double waited = 0;
    for (std::uint64_t step = 0; step < steps; ++step) {
      std::vector<float> gradient = gradient_of(communicator.rank(), step);
      std::vector<float> balance(kElements);
      for (std::size_t i = 0; i < kElements; ++i) {
        const double left = static_cast<double>(session.residual(0)[i]);
        balance[i] = static_cast<float>(static_cast<double>(gradient[i]) + factor * left);
        waited += std::fabs(left);
      }
      session.synchronize(0, gradient);
      for (std::size_t i = 0; i < kElements; ++i) balance[i] -= session.residual(0)[i];
      session.next_step();
      communicator.all_reduce_sum(balance);
      for (std::size_t i = 0; i < kElements; ++i) {
        ASSERT_NEAR(balance[i], kWorkers * gradient[i], 1e-4) << spec << ", step " << step << ", " << i;
      }
    }
    EXPECT_GT(waited, 1) << "nothing waited, so nothing was tested";
  });
}

TEST(Decay, MultipliesWhatWaitsAndKeepsTheRest) {
  expect_decay("decay:factor=0.5+top_k:ratio=0.1+zen", 0.5, 5);
  expect_decay("decay:factor=0+casq:interval=1", 0, 4);
  expect_decay("decay:factor=0.9+casq:interval=1", 0.9, 5);
  expect_decay("decay:factor=0.9+power_sgd:rank=1", 0.9, 5);
  expect_decay("decay:factor=0.75+qsgd:bits=2:feedback=on", 0.75, 5);
}

TEST(Decay, OfOneIsNone) {
  for (const std::string inner : {"top_k:ratio=0.1+zen", "casq:interval=1"}) {
    EXPECT_EQ(means_of("decay:factor=1+" + inner, 4), means_of(inner, 4));
    EXPECT_NE(means_of("decay:factor=0.9+" + inner, 4), means_of(inner, 4));
  }
}

TEST(Decay, AStepThatDoesNotCountDecaysNothing) {
  run_in_process(3, [&](Communicator& communicator) {
    Session session("decay:factor=0.5+top_k:ratio=0.1+zen", communicator);
    session.add_bucket(layout());
    std::vector<float> gradient = gradient_of(communicator.rank(), 0);
    session.synchronize(0, gradient);
    session.next_step();
    const std::vector<float> before(session.residual(0).begin(), session.residual(0).end());
    gradient = gradient_of(communicator.rank(), 1);
    if (communicator.rank() == 2) gradient[7] = std::numeric_limits<float>::quiet_NaN();
    EXPECT_FALSE(session.synchronize(0, gradient).finite);
    EXPECT_EQ(std::vector<float>(session.residual(0).begin(), session.residual(0).end()), before);
  });
}

TEST(Decay, RefusesWhereItWouldDoNothing) {
  EXPECT_NE(complaint("decay+dense").find("feedback=on"), std::string::npos);
  EXPECT_NE(complaint("decay+top_k:feedback=off+zen").find("feedback=on"), std::string::npos);
  EXPECT_NE(complaint("top_k+decay+zen:feedback=on").find("put decay in front"), std::string::npos);
  EXPECT_NE(complaint("decay:factor=1.5+casq").find("factor=1.5"), std::string::npos);
  EXPECT_EQ(complaint("decay+dgc+zen"), "");
}

TEST(InnerMomentum, TwiceIsRefused) {
  for (const std::string spec :
       {"momentum+one_bit_adam", "momentum+zero_one_adam", "momentum+momentum+casq"}) {
    try {
      builtin_registry().make(spec);
      ADD_FAILURE() << spec << " was made";
    } catch (const std::invalid_argument& error) {
      EXPECT_NE(std::string(error.what()).find("both keep 'delivered_momentum'; keep one of them"),
                std::string::npos)
          << error.what();
    }
  }
}

TEST(WarmUp, RefusesSystemsThatItCannotRun) {
  EXPECT_NE(complaint("warm_up:with=power_sgd+casq").find("keeps a state of its own"), std::string::npos);
  EXPECT_NE(complaint("warm_up:with=top_k+casq").find("is a stage"), std::string::npos);
  for (const char* momentum : {"warm_up:with=demo+casq", "warm_up:with=sketched_sgd/momentum=0.9+casq"}) {
    const std::string told = complaint(momentum);
    EXPECT_NE(told.find("has a momentum of its own"), std::string::npos) << told;
    const std::string list = told.substr(told.find("give one of"));
    EXPECT_NE(list.find("ecsq"), std::string::npos) << told;
    EXPECT_EQ(list.find("demo"), std::string::npos) << told;
    EXPECT_EQ(list.find("sketched_sgd"), std::string::npos) << "by default it has the rate inside: " << told;
  }
  const std::string compared = complaint("guard:with=alq+casq");
  EXPECT_NE(compared.find("give one of"), std::string::npos) << compared;
  EXPECT_NE(complaint("warm_up:with=global_top_k+casq").find("products of gradients"), std::string::npos);
  EXPECT_EQ(complaint("warm_up:with=global_top_k/lr_after=on+casq"), "");
  EXPECT_EQ(complaint("warm_up+sketched_sgd"), "");
  EXPECT_NE(complaint("warm_up:with=half+sketched_sgd").find("lr_after=on"), std::string::npos);
  EXPECT_NE(complaint("warm_up:with=half+marsit:eta_s=theorem").find("eta_s"), std::string::npos);
  EXPECT_EQ(complaint("warm_up:with=half+sketched_sgd:lr_after=on"), "");
  EXPECT_EQ(compared.find("sketched_sgd"), std::string::npos) << compared;
  for (const char* beside : {"whole+demo", "warm_up+demo", "clip+whole+demo:top=3"}) {
    EXPECT_NE(complaint(beside).find("would deliver means beside signs"), std::string::npos) << beside;
  }
  EXPECT_EQ(complaint("whole+demo:sign=off"), "");
  EXPECT_EQ(complaint("warm_up+demo:sign=off:momentum=1"), "");
  EXPECT_EQ(complaint("clip+demo"), "");
  EXPECT_NE(complaint("warm_up:with=nothing+casq").find("no system is called 'nothing'"), std::string::npos);
  EXPECT_NE(complaint("warm_up:with=blocks:bits=4+casq").find("follow a slash, as in with=qsgd/bits=4"),
            std::string::npos);
  EXPECT_NE(complaint("warm_up:with=qsgd/bits=99+casq").find("bits=99"), std::string::npos);
  EXPECT_NE(complaint("warm_up:steps=-1+casq").find("steps=-1"), std::string::npos);
  EXPECT_EQ(builtin_registry()
                .make("warm_up:with=qsgd/bits=4+casq:bits=4")
                .spec.rfind("warm_up:steps=100:with=qsgd/bits=4+", 0),
            0u);
}

TEST(Names, OfElsewhereLeadToASpec) {
  const std::pair<const char*, const char*> kMeant[] = {
      {"none", "dense"},
      {"all_reduce", "dense"},
      {"FP32", "dense"},
      {"fp16", "half"},
      {"bf16", "half:format=bf16"},
      {"fp8", "blocks:bits=8"},
      {"int8", "blocks:bits=8"},
      {"PowerSGD", "power_sgd"},
      {"topk", "top_k:ratio=0.01+zen"},
      {"one-bit", "one_bit_adam"},
  };
  for (const auto& [name, spec] : kMeant) {
    const std::string told = complaint(name);
    EXPECT_NE(told.find(std::string("(did you mean '") + spec + "'?)"), std::string::npos) << told;
    EXPECT_EQ(complaint(spec), "");
  }
  EXPECT_NE(complaint("half:bf16").find("(did you mean 'half:format=bf16'?)"), std::string::npos);
  EXPECT_EQ(complaint("half:half").find("did you mean"), std::string::npos) << "no value of its format";
  EXPECT_NE(complaint("half:format=fp32").find("must be fp16 or bf16; dense sends 32 bits"),
            std::string::npos);
}

}  // namespace
}  // namespace thinwire::stages_test
