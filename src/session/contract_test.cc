// What every system promises, held against each of them by name. A new system joins by one line of
// contract_specs.h.

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <map>
#include <mutex>
#include <sstream>

#include "session/contract_specs.h"
#include "session/count_allocations.h"
#include "tests/random_values.h"
#include "tests/sanitized.h"
#include "thinwire/in_process.h"
#include "thinwire/session.h"

namespace thinwire::contract_test {
namespace {

const std::vector<int> kWorlds = kSanitized ? std::vector{1, 2, 3, 5} : std::vector{1, 2, 3, 4, 5, 8};

/// Everything that ranks saw in a run of several steps: [rank][step].
struct Trace {
  std::vector<std::vector<std::vector<float>>> inputs, residuals_before, means, residuals_after;
  std::vector<std::vector<StepReport>> reports;
  bool conserves = false;
};

struct RunOptions {
  int steps = 4;
  int threads = 1;
  std::uint64_t seed = 7;
  /// Changes a gradient before it goes in.
  std::function<void(int rank, int step, std::vector<float>&)> spoil = [](int, int, std::vector<float>&) {};
};

/// normal_values, kept: every spec sees the same ones, and drawing them took a third of these tests.
const std::vector<float>& kept_values(std::size_t elements, std::uint32_t seed) {
  static std::mutex guard;
  static std::map<std::pair<std::size_t, std::uint32_t>, std::vector<float>> kept;
  const std::scoped_lock lock(guard);
  const auto [place, is_new] = kept.try_emplace({elements, seed});
  if (is_new) place->second = normal_values(elements, seed);
  return place->second;
}

Trace run(const std::string& spec, int world, std::size_t elements, const RunOptions& options = {}) {
  Trace trace;
  for (auto* part : {&trace.inputs, &trace.residuals_before, &trace.means, &trace.residuals_after}) {
    part->resize(static_cast<std::size_t>(world));
  }
  trace.reports.resize(static_cast<std::size_t>(world));
  run_in_process(world, [&](Communicator& communicator) {
    const auto rank = static_cast<std::size_t>(communicator.rank());
    Session session(spec, communicator, {.seed = options.seed, .threads = options.threads});
    // Three parameters that end anywhere but at words.
    session.add_bucket(
        {{"a", elements / 3}, {"b", elements / 2}, {"c", elements - elements / 3 - elements / 2}});
    if (rank == 0) trace.conserves = session.pipeline(0).conserves;
    auto residual = [&] {
      const auto span = session.residual(0);
      return std::vector<float>(span.begin(), span.end());
    };
    for (int step = 0; step < options.steps; ++step) {
      std::vector<float> gradient =
          kept_values(elements, static_cast<std::uint32_t>(step * 100 + communicator.rank()));
      options.spoil(communicator.rank(), step, gradient);
      trace.inputs[rank].push_back(gradient);
      trace.residuals_before[rank].push_back(residual());
      trace.reports[rank].push_back(session.synchronize(0, gradient));
      session.next_step();
      trace.means[rank].push_back(gradient);
      trace.residuals_after[rank].push_back(residual());
    }
  });
  return trace;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

/// |residual|.
double norm_of(const std::vector<float>& residual) {
  double squares = 0;
  for (const float value : residual) squares += static_cast<double>(value) * static_cast<double>(value);
  return std::sqrt(squares);
}

/// A report's residual_norm is what the residual has, or -1.
void expect_its_norm(const StepReport& report, const std::vector<float>& residual) {
  if (report.residual_norm == -1) return;
  const double norm = norm_of(residual);
  EXPECT_NEAR(report.residual_norm, norm, 1e-4 * norm + 1e-3);
}

class Contract : public testing::TestWithParam<std::string> {};
/// What is tested in brief.
class LongContract : public Contract {};

TEST_P(Contract, RanksAgreeSumsAreConservedBytesMatchTheFormula) {
  for (const int world : kWorlds) {
    for (const std::size_t elements : {0u, 1u, 63u, 64u, 65u, 1000u, kSanitized ? 5'011u : 30'011u}) {
      SCOPED_TRACE(testing::Message() << world << " ranks, " << elements << " elements");
      const Trace trace = run(GetParam(), world, elements);
      for (std::size_t step = 0; step < trace.means[0].size(); ++step) {
        std::vector<double> delivered(elements, 0.0);
        std::vector<double> magnitude(elements, 1e-6);
        for (std::size_t rank = 0; rank < static_cast<std::size_t>(world); ++rank) {
          ASSERT_TRUE(same_bits(trace.means[rank][step], trace.means[0][step])) << "rank " << rank;
          ASSERT_TRUE(trace.reports[rank][step].finite);
          const StepReport& report = trace.reports[rank][step];
          ASSERT_EQ(report.wire.sent_bytes, report.formula_bytes + report.frame_header_bytes)
              << "rank " << rank;
          ASSERT_LE(report.frame_header_bytes, 64 * report.wire.sent_messages);
          if (world > 1 && elements > 0) {
            ASSERT_GT(report.seconds_wait, 0);
          }
          ASSERT_LE(report.seconds_wait, report.seconds_total);
          expect_its_norm(report, trace.residuals_after[rank][step]);
          if (trace.residuals_after[rank][step].empty()) continue;
          for (std::size_t i = 0; i < elements; ++i) {
            const double in = static_cast<double>(trace.inputs[rank][step][i]) +
                              static_cast<double>(trace.residuals_before[rank][step][i]);
            delivered[i] += in - static_cast<double>(trace.residuals_after[rank][step][i]);
            magnitude[i] += std::fabs(in) + std::fabs(static_cast<double>(trace.means[rank][step][i])) +
                            std::fabs(static_cast<double>(trace.residuals_after[rank][step][i]));
          }
        }
        if (trace.residuals_after[0][step].empty() || !trace.conserves) continue;
        for (std::size_t i = 0; i < elements; ++i) {
          ASSERT_NEAR(delivered[i], world * static_cast<double>(trace.means[0][step][i]), 1e-5 * magnitude[i])
              << i;
        }
      }
    }
  }
}

TEST_P(Contract, ItsCanonicalSpecIsASpec) {
  const SpecPair pair = parse_spec_pair(GetParam());
  for (const std::string& text : {pair.dense, pair.rows}) {
    const std::string canonical = builtin_registry().make(text).spec;
    EXPECT_EQ(builtin_registry().make(canonical).spec, canonical);
  }
}

TEST_P(LongContract, SeveralChunksWorkLikeOne) {
  // Above the chunks in which one-bit systems travel.
  const Trace trace = run(GetParam(), 2, 2'200'001, {.steps = kSanitized ? 1 : 2});
  for (std::size_t step = 0; step < trace.means[0].size(); ++step) {
    ASSERT_TRUE(same_bits(trace.means[0][step], trace.means[1][step]));
    const StepReport& report = trace.reports[0][step];
    ASSERT_EQ(report.wire.sent_bytes, report.formula_bytes + report.frame_header_bytes);
  }
}

TEST_P(LongContract, ThreadsDoNotChangeABit) {
  const Trace one = run(GetParam(), 3, 100'003, {.threads = 1});
  const Trace three = run(GetParam(), 3, 100'003, {.threads = 3});
  for (std::size_t rank = 0; rank < 3; ++rank) {
    for (std::size_t step = 0; step < one.means[rank].size(); ++step) {
      ASSERT_TRUE(same_bits(one.means[rank][step], three.means[rank][step]));
      ASSERT_TRUE(same_bits(one.residuals_after[rank][step], three.residuals_after[rank][step]));
    }
  }
}

TEST_P(LongContract, OneBadValueAnywhereIsToldToEveryRankAndChangesNoState) {
  const float infinity = std::numeric_limits<float>::infinity();
  for (const int world : kSanitized ? std::vector{1, 3} : std::vector{1, 2, 3, 4, 5}) {
    for (const std::size_t elements : {1u, 65u, 5000u}) {
      for (const float bad : {infinity, std::numeric_limits<float>::quiet_NaN()}) {
        SCOPED_TRACE(testing::Message() << world << " ranks, " << elements << " elements, " << bad);
        // Steps 1 and 3 are spoilt, on different ranks and places.
        const Trace trace = run(GetParam(), world, elements,
                                {.steps = 6, .spoil = [&](int rank, int step, std::vector<float>& gradient) {
                                   if (step % 2 == 1 && rank == step % world) {
                                     gradient[static_cast<std::size_t>(step) * 977 % elements] = bad;
                                   }
                                 }});
        for (std::size_t rank = 0; rank < static_cast<std::size_t>(world); ++rank) {
          for (std::size_t step = 0; step < 6; ++step) {
            const bool spoilt = step == 1 || step == 3 || step == 5;
            ASSERT_EQ(trace.reports[rank][step].finite, !spoilt) << "rank " << rank << " step " << step;
            const auto& mean = trace.means[rank][step];
            const auto finite_values =
                std::count_if(mean.begin(), mean.end(), [](float x) { return std::isfinite(x); });
            ASSERT_EQ(static_cast<std::size_t>(finite_values) < mean.size(), spoilt);
            ASSERT_TRUE(same_bits(mean, trace.means[0][step]));
            if (spoilt) {
              ASSERT_TRUE(same_bits(trace.residuals_after[rank][step], trace.residuals_before[rank][step]));
            }
          }
        }
      }
    }
  }
}

TEST_P(Contract, ResumedRunContinuesBitForBit) {
  constexpr std::size_t kElements = 1000;
  constexpr int kWorld = 3;
  std::vector<std::string> saved(kWorld);
  std::vector<std::vector<float>> straight(kWorld), resumed(kWorld);
  auto gradient_of = [](int step, int rank) {
    return normal_values(kElements, static_cast<std::uint32_t>(step * 100 + rank));
  };
  run_in_process(kWorld, [&](Communicator& communicator) {
    const auto rank = static_cast<std::size_t>(communicator.rank());
    Session session(GetParam(), communicator);
    session.add_bucket({{"a", 400}, {"b", 600}});
    for (int step = 0; step < 8; ++step) {
      auto gradient = gradient_of(step, communicator.rank());
      session.synchronize(0, gradient);
      session.next_step();
      straight[rank].insert(straight[rank].end(), gradient.begin(), gradient.end());
      if (step == 3) {
        StateWriter writer;
        session.save(writer);
        std::ostringstream stream;
        writer.write(stream);
        saved[rank] = stream.str();
        straight[rank].clear();
      }
    }
  });
  run_in_process(kWorld, [&](Communicator& communicator) {
    const auto rank = static_cast<std::size_t>(communicator.rank());
    Session session(GetParam(), communicator);
    session.add_bucket({{"a", 400}, {"b", 600}});
    std::istringstream stream(saved[rank]);
    session.load(StateReader(stream));
    EXPECT_EQ(session.step(), 4u);
    for (int step = 4; step < 8; ++step) {
      auto gradient = gradient_of(step, communicator.rank());
      session.synchronize(0, gradient);
      session.next_step();
      resumed[rank].insert(resumed[rank].end(), gradient.begin(), gradient.end());
    }
  });
  for (std::size_t rank = 0; rank < kWorld; ++rank) EXPECT_TRUE(same_bits(straight[rank], resumed[rank]));
}

TEST_P(Contract, NothingAllocatesAfterTheFirstSteps) {
  // A trial of candidates takes more steps where these take about as long, and steps that take longer begin
  // another one: both allocate.
  const bool tries = GetParam().starts_with("auto");
  const std::string spec = GetParam() + (tries ? ":interval=64" : "");
  const std::size_t quiet = tries ? 20 : 6;
  const std::size_t warm_up = 7;  // every kind of step has come by: full_every up to 3, drift_every 2
  const std::size_t steps = tries ? 150 : warm_up + quiet;
  if (GetParam() == "marsit")
    return;  // its kinds of step are 100 apart; marsit:full_every=3 has the same ones
  std::vector<std::uint64_t> allocated(steps + 1);  // before each step, and after the last one
  run_in_process(3, [&](Communicator& communicator) {
    Session session(spec, communicator);
    session.add_bucket({{"p", 10'000}});
    const auto input = normal_values(10'000, static_cast<std::uint32_t>(communicator.rank()));
    std::vector<float> gradient(input.size());
    for (std::size_t step = 0; step <= steps; ++step) {
      communicator.barrier();
      if (communicator.rank() == 0) allocated[step] = allocations_so_far();
      communicator.barrier();
      if (step == steps) break;
      std::copy(input.begin(), input.end(), gradient.begin());
      session.synchronize(0, gradient);
      session.next_step();
    }
  });
  std::uint64_t least = allocated[steps] - allocated[steps - quiet];
  for (std::size_t step = warm_up; tries && step + quiet <= steps; ++step) {
    least = std::min(least, allocated[step + quiet] - allocated[step]);
  }
  EXPECT_EQ(least, 0u);
}

INSTANTIATE_TEST_SUITE_P(Systems, Contract, testing::ValuesIn(kContractSpecs),
                         [](const auto& parameter) { return test_name(parameter.param); });
INSTANTIATE_TEST_SUITE_P(Systems, LongContract, testing::ValuesIn(in_brief(kContractSpecs)),
                         [](const auto& parameter) { return test_name(parameter.param); });

TEST(ResidualNorm, IsReportedByThoseThatWriteAResidualInOnePass) {
  for (const char* spec : {"dense:feedback=on",
                           "half:format=bf16:feedback=on",
                           "half:feedback=on",
                           "marsit",
                           "signsgd:feedback=on",
                           "ef_signsgd",
                           "casq",
                           "casq:topology=all_gather",
                           "qsgd:feedback=on",
                           "zen:feedback=on",
                           "blocks:bits=4",
                           "power_sgd:rank=2",
                           "power_sgd:rank=2:bits=4",
                           "acp_sgd:rank=2",
                           "acp_sgd:rank=2:bits=4",
                           "demo:chunk=16:top=8",
                           "one_bit_adam:freeze=1",
                           "warm_up:steps=1+power_sgd:rank=2",
                           "decay+power_sgd:rank=2",
                           "whole+marsit:full_every=0"}) {
    const Trace trace = run(spec, 3, 10'000, {.steps = 3});
    for (std::size_t rank = 0; rank < 3; ++rank) {
      SCOPED_TRACE(testing::Message() << spec << ", rank " << rank);
      EXPECT_NE(trace.reports[rank].back().residual_norm, -1);
      expect_its_norm(trace.reports[rank].back(), trace.residuals_after[rank].back());
    }
  }
  // What is selected and zeroed costs no pass over the rest, so nobody knows its norm.
  EXPECT_EQ(run("top_k:ratio=0.1+zen:feedback=on", 3, 1000).reports[0].back().residual_norm, -1);
}

TEST(CascadingSign, ConservesWhileItLastsAndDivergesWithFeedback) {
  const Trace one = run("cascading_sign:feedback=on", 3, 1000, {.steps = 1});
  for (std::size_t i = 0; i < 1000; ++i) {
    double delivered = 0;
    for (std::size_t rank = 0; rank < 3; ++rank) {
      delivered +=
          static_cast<double>(one.inputs[rank][0][i]) - static_cast<double>(one.residuals_after[rank][0][i]);
    }
    const double mean = static_cast<double>(one.means[0][0][i]);
    ASSERT_NEAR(delivered, 3 * mean, 1e-5 * std::fabs(mean) + 1e-5);
  }
  const Trace many = run("cascading_sign:feedback=on", 8, 30'000, {.steps = 8});
  EXPECT_FALSE(many.reports[0].back().finite)
      << "recompressing at 8 hops with feedback should have overflowed";
}

TEST(ContractTable, NamesEveryBuiltInSystem) {
  for (const auto& info : builtin_registry().systems()) {
    if (info.stage) continue;
    EXPECT_TRUE(std::any_of(kContractSpecs.begin(), kContractSpecs.end(), [&](const std::string& spec) {
      return parse_spec(spec)[0].name == info.name;
    })) << info.name;
  }
}

}  // namespace
}  // namespace thinwire::contract_test
