#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <set>

#include "baselines/baselines.h"
#include "core/partition.h"
#include "stages/stages.h"
#include "systems/systems.h"
#include "thinwire/in_process.h"

namespace thinwire::sketched_sgd_test {
namespace {

using Vector = std::vector<float>;

Pipeline make(const std::string& spec) {
  Registry registry;
  registry.add(sketched_sgd_info());
  registry.add(global_top_k_info());
  registry.add(agsparse_info());
  registry.add(top_k_info());
  registry.add(momentum_correction_info());
  return registry.make(spec);
}

/// Steps of one bucket on every rank: [step][rank].
struct Steps {
  std::string spec;
  std::vector<std::vector<Vector>> gradients;
  std::vector<double> rates{};  // of the steps; empty: 1
  std::vector<std::size_t> parameter_ends{};
  std::uint64_t seed = 3;
  // out
  std::vector<std::vector<Vector>> means{}, residuals{};
  std::vector<std::vector<std::vector<std::uint32_t>>> delivered{};
  std::vector<std::vector<StepReport>> reports{};
};

/// Also holds what every step must have: ranks that agree on mean and indices, bytes as the formula says.
Steps& go(Steps& run) {
  const std::size_t steps = run.gradients.size();
  const std::size_t world = run.gradients[0].size();
  const std::size_t elements = run.gradients[0][0].size();
  run.means = run.residuals = run.gradients;
  run.delivered.assign(steps, std::vector<std::vector<std::uint32_t>>(world));
  run.reports.assign(steps, std::vector<StepReport>(world));
  run_in_process(static_cast<int>(world), [&](Communicator& communicator) {
    const auto rank = static_cast<std::size_t>(communicator.rank());
    const Pipeline pipeline = make(run.spec);
    const auto executor = make_cpu_executor(1);
    Workspace workspace;
    Vector residual(pipeline.feedback ? elements : 0, 0.0f);
    for (std::size_t s = 0; s < steps; ++s) {
      workspace.reset();
      const std::uint64_t sent_before = communicator.traffic().sent_bytes;
      Step step{.communicator = communicator,
                .executor = *executor,
                .workspace = workspace,
                .index = s,
                .seed = run.seed,
                .learning_rate = run.rates.empty() ? 1 : run.rates[s],
                .parameter_ends = run.parameter_ends};
      pipeline.synchronizer->synchronize(2, run.means[s][rank], residual, step);
      EXPECT_EQ(communicator.traffic().sent_bytes - sent_before, step.report.formula_bytes);
      run.residuals[s][rank] = residual;
      run.reports[s][rank] = step.report;
      run.delivered[s][rank].assign(step.delivered.indices.begin(), step.delivered.indices.end());
    }
  });
  for (std::size_t s = 0; s < steps; ++s) {
    for (std::size_t rank = 0; rank < world; ++rank) {
      EXPECT_EQ(std::memcmp(run.means[s][rank].data(), run.means[s][0].data(), elements * sizeof(float)), 0);
      EXPECT_EQ(run.delivered[s][rank], run.delivered[s][0]);
      EXPECT_TRUE(std::is_sorted(run.delivered[s][rank].begin(), run.delivered[s][rank].end()));
      EXPECT_EQ(run.reports[s][rank].finite, run.reports[s][0].finite);
    }
  }
  return run;
}

Steps run(std::string spec, std::vector<std::vector<Vector>> gradients) {
  Steps result{.spec = std::move(spec), .gradients = std::move(gradients)};
  go(result);
  return result;
}

/// Integers, so that sums are exact in any order; a few far larger than the rest.
Vector integers(std::size_t count, std::uint32_t seed) {
  std::mt19937 random(seed);
  Vector values(count);
  for (auto& value : values) {
    value = static_cast<float>(static_cast<int>(random() % 21) - 10);
    if (random() % 100 == 0) value *= static_cast<float>(random() % 50);
  }
  return values;
}

/// |g| of rank i is 1 / i^exponent, at random places or, with `together` > 1, in groups of neighbours.
Vector power_law(std::size_t count, double exponent, std::size_t together, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<std::size_t> groups(count / together);
  std::iota(groups.begin(), groups.end(), std::size_t{0});
  std::shuffle(groups.begin(), groups.end(), random);
  Vector values(count, 0.0f);
  std::size_t rank = 0;
  for (const std::size_t group : groups) {
    for (std::size_t i = group * together; i < (group + 1) * together; ++i) {
      const double magnitude = std::pow(static_cast<double>(++rank), -exponent);
      values[i] = static_cast<float>(random() % 2 == 0 ? magnitude : -magnitude);
    }
  }
  return values;
}

std::set<std::uint32_t> largest(const Vector& values, std::size_t k) {
  std::vector<std::uint32_t> order(values.size());
  std::iota(order.begin(), order.end(), 0u);
  std::stable_sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
    return std::fabs(values[a]) > std::fabs(values[b]);
  });
  return {order.begin(), order.begin() + static_cast<std::ptrdiff_t>(std::min(k, order.size()))};
}

/// The share of the true top-k that is delivered, over several draws of the hashes.
double recall(const std::string& spec, const Vector& gradient, std::size_t k, std::uint64_t draws = 12) {
  const auto wanted = largest(gradient, k);
  std::size_t found = 0;
  for (std::uint64_t seed = 0; seed < draws; ++seed) {
    Steps one{.spec = spec + ":k=" + std::to_string(k), .gradients = {{gradient}}, .seed = seed};
    for (const std::uint32_t i : go(one).delivered[0][0]) found += wanted.count(i);
  }
  return static_cast<double>(found) / static_cast<double>(k * draws);
}

TEST(SketchedSgd, OneElement) {
  for (const char* spec : {"sketched_sgd", "sketched_sgd:k=1", "sketched_sgd:k=100", "global_top_k"}) {
    const Steps one = run(spec, {{{3}, {-1}}, {{0.5f}, {0.5f}}});
    EXPECT_EQ(one.means[0][0], Vector{1});
    EXPECT_EQ(one.means[1][0], Vector{0.5f});
    EXPECT_EQ(one.residuals[1][0], Vector{0});
    EXPECT_EQ(one.delivered[0][0], std::vector<std::uint32_t>{0});
  }
}

TEST(SketchedSgd, TwoElementsByHand) {
  for (const std::string spec : {"sketched_sgd:k=1", "global_top_k:k=1"}) {
    // Sums 3 and 2: neither rank alone would choose element 0 twice.
    const Steps plain = run(spec, {{{1, 3}, {2, -1}}, {{0, 0}, {0, 0}}, {{0, 0}, {0, 0}}});
    EXPECT_EQ(plain.means[0][0], (Vector{1.5f, 0}));
    EXPECT_EQ(plain.residuals[0][0], (Vector{0, 3}));
    EXPECT_EQ(plain.residuals[0][1], (Vector{0, -1}));
    EXPECT_EQ(plain.means[1][0], (Vector{0, 1}));
    EXPECT_EQ(plain.residuals[1][0], (Vector{0, 0}));
    EXPECT_EQ(plain.means[2][0], (Vector{0, 0}));
    // Velocities of element 1 are 3 and -1, halved in the second step: v = 3 + 1.5 and -1 - 0.5.
    for (const std::string& momentum : {spec + ":momentum=0.5", "mc:momentum=0.5+" + spec}) {
      const Steps moving = run(momentum, plain.gradients);
      EXPECT_EQ(moving.means[0][0], (Vector{1.5f, 0}));
      EXPECT_EQ(moving.means[1][0], (Vector{0, 1.5f})) << momentum;
      EXPECT_EQ(moving.residuals[1][0], (Vector{0, 0}));
      EXPECT_EQ(moving.means[2][0], (Vector{0, 0})) << "the velocity was to be cleared";
    }
  }
}

TEST(SketchedSgd, TheLearningRateMeetsTheGradientOfItsOwnStepOrItsDelivery) {
  for (const std::string spec : {"sketched_sgd:k=1", "global_top_k:k=1"}) {
    // What reaches the parameters is rate * mean.
    Steps inside{.spec = spec, .gradients = {{{4, 2}}, {{0, 2}}}, .rates = {1, 0.5}};
    go(inside);
    EXPECT_EQ(inside.means[0][0], (Vector{4, 0}));
    EXPECT_EQ(inside.means[1][0], (Vector{0, 6})) << "0.5 * 6 = 1 * 2 + 0.5 * 2";
    Steps after{.spec = spec + ":lr_after=on", .gradients = inside.gradients, .rates = inside.rates};
    go(after);
    EXPECT_EQ(after.means[1][0], (Vector{0, 4})) << "2 + 2, whatever the rates";

    // With momentum 0.5: u = 2, v = 2; then inside u = 0.5 * 2 + 0.5 * 2 = 2, v = 4, after u = 3, v = 5.
    inside.spec = spec + ":momentum=0.5";
    EXPECT_EQ(go(inside).means[1][0], (Vector{0, 8}));
    after.spec = spec + ":momentum=0.5:lr_after=on";
    EXPECT_EQ(go(after).means[1][0], (Vector{0, 5}));
  }
}

TEST(SketchedSgd, AConstantLearningRateChangesNothing) {
  const std::string spec = "sketched_sgd:k=30:rows=3:columns=200:momentum=0.5";
  std::vector<std::vector<Vector>> gradients;
  for (std::uint32_t s = 0; s < 4; ++s)
    gradients.push_back({integers(3000, 2 * s), integers(3000, 2 * s + 1)});
  Steps inside{.spec = spec, .gradients = gradients, .rates = std::vector<double>(4, 0.125)};
  Steps after{.spec = spec + ":lr_after=on", .gradients = gradients, .rates = inside.rates};
  go(inside);
  go(after);
  for (std::size_t s = 0; s < 4; ++s) EXPECT_EQ(inside.means[s], after.means[s]);
}

TEST(SketchedSgd, ANegativeLearningRateIsRefusedInsideOnly) {
  Steps inside{.spec = "sketched_sgd", .gradients = {{{1, 2}}}, .rates = {-1}};
  EXPECT_THROW(go(inside), std::exception);
  Steps after{.spec = "sketched_sgd:lr_after=on", .gradients = {{{1, 2}}}, .rates = {-1}};
  EXPECT_EQ(go(after).delivered[0][0].size(), 1u);
}

TEST(SketchedSgd, AsManyCandidatesAsElementsGiveTheTrueTopK) {
  for (const std::size_t elements : {1u, 2u, 63u, 65u, 1000u, 20'000u}) {
    std::vector<std::vector<Vector>> gradients(3);
    for (std::uint32_t s = 0; s < 3; ++s) {
      for (std::uint32_t r = 0; r < 4; ++r) gradients[s].push_back(integers(elements, 10 * s + r));
    }
    for (const std::size_t k : {std::size_t{1}, elements / 20 + 1, elements}) {
      const std::string share = ":k=" + std::to_string(k);
      std::string spec = "sketched_sgd:columns=1:rows=1:p=" + std::to_string((elements + k - 1) / k);
      spec += share;
      const Steps sketched = run(spec, gradients);
      const Steps exact = run("global_top_k" + share, gradients);
      EXPECT_EQ(sketched.means, exact.means) << elements << " elements, k " << k;
      EXPECT_EQ(sketched.residuals, exact.residuals);
    }
  }
}

TEST(SketchedSgd, GlobalTopKIsThatOfTheSumWithTiesByIndex) {
  const std::size_t elements = 500;
  std::vector<Vector> gradients;
  Vector sum(elements, 0.0f);
  for (std::uint32_t r = 0; r < 5; ++r) {
    gradients.push_back(integers(elements, r));
    for (std::size_t i = 0; i < elements; ++i) sum[i] += gradients.back()[i];
  }
  const Steps exact = run("global_top_k:k=40", {gradients});
  const auto wanted = largest(sum, 40);
  EXPECT_EQ(exact.delivered[0][0], std::vector<std::uint32_t>(wanted.begin(), wanted.end()));
  for (std::uint32_t i = 0; i < elements; ++i) {
    EXPECT_EQ(exact.means[0][0][i], wanted.count(i) != 0 ? sum[i] / 5 : 0);
  }
}

TEST(SketchedSgd, ASketchThatSavesNothingIsNotSent) {
  const std::size_t elements = 1000;
  const std::vector<std::vector<Vector>> gradients = {{integers(elements, 1), integers(elements, 2)}};
  const Steps exact = run("global_top_k:k=10", gradients);
  for (const char* table : {":columns=1000", ":columns=200:rows=5", ":columns=192:rows=5:p=4",
                            ":columns=4294967295:rows=31", ":p=1000000:columns=10"}) {
    const Steps dense = run(std::string("sketched_sgd:k=10").append(table), gradients);
    EXPECT_EQ(dense.means, exact.means) << table;
    EXPECT_EQ(dense.reports[0][0].formula_bytes, 4u * elements) << table;
    EXPECT_STREQ(dense.reports[0][0].scheme, "dense");
  }
  const Steps sketched = run("sketched_sgd:k=10:columns=191:rows=5:p=4", gradients);
  EXPECT_EQ(sketched.reports[0][0].formula_bytes, 4u * (191 * 5 + 40));
  EXPECT_STREQ(sketched.reports[0][0].scheme, "sketch");
}

TEST(SketchedSgd, BytesAreTwiceTheRingOfTableAndCandidates) {
  for (const std::size_t world : {2u, 3u, 8u}) {
    const Steps one =
        run("sketched_sgd:k=50:p=3:rows=5:columns=333", {std::vector<Vector>(world, integers(10'000, 1))});
    for (std::size_t rank = 0; rank < world; ++rank) {
      const std::uint64_t expected =
          4 * (ring_sent_elements(5 * 333, world, rank) + ring_sent_elements(150, world, rank));
      EXPECT_EQ(one.reports[0][rank].formula_bytes, expected);
      EXPECT_EQ(
          make(one.spec).synchronizer->payload_bytes(
              {.elements = 10'000, .world_size = static_cast<int>(world), .rank = static_cast<int>(rank)}),
          expected);
    }
  }
}

TEST(SketchedSgd, FewNonZerosAreAllFound) {
  Vector gradient(50'000, 0.0f);
  std::mt19937 random(1);
  for (int i = 0; i < 40; ++i) gradient[random() % gradient.size()] = static_cast<float>(i + 1);
  const Steps sketched = run("sketched_sgd:k=60:columns=1000:p=2", {{gradient, gradient}});
  EXPECT_EQ(sketched.means[0][0], gradient);
}

TEST(SketchedSgd, NothingIsLostAndWhatIsDeliveredIsExact) {
  for (const char* spec :
       {"sketched_sgd:k=40:rows=3:columns=300", "sketched_sgd:k=40:rows=4:columns=100:run=1",
        "sketched_sgd:k=40:columns=300:fill=random"}) {
    std::vector<std::vector<Vector>> gradients(5);
    for (std::uint32_t s = 0; s < 5; ++s) {
      for (std::uint32_t r = 0; r < 3; ++r) gradients[s].push_back(integers(5000, 10 * s + r));
    }
    const Steps steps = run(spec, gradients);
    Vector owed(5000, 0.0f);
    for (std::size_t s = 0; s < 5; ++s) {
      Vector left(5000, 0.0f);
      for (std::size_t r = 0; r < 3; ++r) {
        for (std::size_t i = 0; i < 5000; ++i) {
          owed[i] += gradients[s][r][i];
          left[i] += steps.residuals[s][r][i];
        }
      }
      EXPECT_EQ(steps.delivered[s][0].size(), 40u);
      for (std::size_t i = 0; i < 5000; ++i) {
        const bool delivered =
            std::binary_search(steps.delivered[s][0].begin(), steps.delivered[s][0].end(), i);
        ASSERT_EQ(steps.means[s][0][i], delivered ? owed[i] / 3 : 0);
        if (delivered) owed[i] = 0;
        ASSERT_EQ(left[i], owed[i]);
      }
    }
  }
}

TEST(SketchedSgd, AnyNumberOfRanksDeliversTheSameOfTheSameBatch) {
  constexpr std::size_t kExamples = 8;
  constexpr std::size_t kElements = 5000;
  for (const std::string spec :
       {"sketched_sgd:k=25:columns=200", "sketched_sgd:k=25:columns=200:momentum=0.5",
        "sketched_sgd:k=25:columns=200:fill=random", "global_top_k:k=25"}) {
    std::vector<std::vector<Vector>> of_one_rank;
    for (std::size_t world = 1; world <= 8; ++world) {
      std::vector<std::vector<Vector>> gradients(4, std::vector<Vector>(world, Vector(kElements, 0.0f)));
      for (std::size_t s = 0; s < 4; ++s) {
        for (std::size_t e = 0; e < kExamples; ++e) {
          // The mean over ranks is the sum over examples, exactly.
          const Vector example = integers(kElements, static_cast<std::uint32_t>(100 * s + e));
          for (std::size_t i = 0; i < kElements; ++i) {
            gradients[s][e % world][i] += static_cast<float>(world) * example[i];
          }
        }
      }
      const Steps steps = run(spec, gradients);
      std::vector<std::vector<Vector>> means;
      for (const auto& of_step : steps.means) means.push_back({of_step[0]});
      if (world == 1) of_one_rank = means;
      EXPECT_EQ(means, of_one_rank) << spec << ", " << world << " ranks";
    }
  }
}

TEST(SketchedSgd, RecallGrowsWithColumnsRowsAndCandidates) {
  const Vector gradient = power_law(20'000, 0.7, 1, 5);
  auto by = [&](const std::string& options) {
    return recall("sketched_sgd:run=16" + options, gradient, 200);
  };
  // Shares of 2,400 elements: one deviates by at most 0.01.
  const double columns[] = {by(":columns=60"), by(":columns=250"), by(":columns=1000"), by(":columns=3000")};
  const double rows[] = {by(":columns=250:rows=1"), by(":columns=250:rows=3"), by(":columns=250:rows=9"),
                         by(":columns=250:rows=25")};
  const double candidates[] = {by(":columns=250:p=1"), by(":columns=250:p=4"), by(":columns=250:p=16")};
  for (std::size_t i = 1; i < std::size(columns); ++i) EXPECT_GT(columns[i], columns[i - 1] + 0.02) << i;
  for (std::size_t i = 1; i < std::size(rows); ++i) EXPECT_GT(rows[i], rows[i - 1] + 0.02) << i;
  for (std::size_t i = 1; i < std::size(candidates); ++i) {
    EXPECT_GT(candidates[i], candidates[i - 1] + 0.02) << i;
  }
  EXPECT_GT(columns[3], 0.95);
}

TEST(SketchedSgd, RunsDoNotLowerRecall) {
  // Shares of 6,000 elements: one deviates by at most 0.0065 where elements are found independently, and
  // neighbours of a run are not.
  for (const std::size_t together : {1u, 8u, 50u}) {
    const Vector gradient = power_law(20'000, 0.7, together, 6);
    const std::string spec = "sketched_sgd:columns=400:run=";
    const double apart = recall(spec + "1", gradient, 200, 30);
    EXPECT_GT(apart, 0.3);
    EXPECT_LT(apart, 0.95);
    EXPECT_GT(recall(spec + "64", gradient, 200, 30), apart - 0.03) << together << " together";
    EXPECT_GT(recall(spec + "16", gradient, 200, 30), apart - 0.03) << together << " together";
  }
}

TEST(SketchedSgd, TheoryModeDeliversHeavyElementsAndRandomOthers) {
  constexpr std::size_t kElements = 20'000;
  Vector gradient(kElements, 1.0f);
  std::set<std::uint32_t> heavy;
  for (std::uint32_t i = 500; i < kElements; i += 2000) heavy.insert(i);
  // l2^2 / k = 2,400 = 49^2; estimates deviate by about 6.
  for (const std::uint32_t i : heavy) gradient[i] = i % 4000 == 500 ? 100.0f : -100.0f;
  const std::string spec = "sketched_sgd:k=50:columns=1000:fill=random";
  const Steps steps = run(spec, {{gradient, gradient}, {Vector(kElements, 1.0f), Vector(kElements, 1.0f)}});
  ASSERT_EQ(steps.delivered[0][0].size(), 50u);
  const std::set<std::uint32_t> delivered(steps.delivered[0][0].begin(), steps.delivered[0][0].end());
  EXPECT_TRUE(std::includes(delivered.begin(), delivered.end(), heavy.begin(), heavy.end()));
  EXPECT_EQ(steps.reports[0][0].formula_bytes, 4u * (5 * 1000 + 50));
  // Then nothing is heavy: 50 of 20,000 at random, others than before. The mean of 50 uniform indices
  // deviates by kElements / sqrt(12 * 50) = 816; five deviations.
  ASSERT_EQ(steps.delivered[1][0].size(), 50u);
  const double mean = std::accumulate(steps.delivered[1][0].begin(), steps.delivered[1][0].end(), 0.0) / 50;
  EXPECT_NEAR(mean, kElements / 2.0, 5 * 816);
  EXPECT_EQ(std::adjacent_find(steps.delivered[1][0].begin(), steps.delivered[1][0].end()),
            steps.delivered[1][0].end());
  EXPECT_NE(steps.delivered[0][0], steps.delivered[1][0]);
}

TEST(SketchedSgd, TheoryModeDrawsEveryElementAlike) {
  // 400 steps of 50 among 5,000 that are alike: 4 each on average, Poisson; 17 comes once in 10^6.
  constexpr std::size_t kElements = 5000;
  const Steps steps = run("sketched_sgd:k=50:columns=400:fill=random:feedback=off",
                          std::vector<std::vector<Vector>>(400, {Vector(kElements, 1.0f)}));
  std::vector<int> times(kElements, 0);
  for (const auto& step : steps.delivered) {
    ASSERT_EQ(step[0].size(), 50u);
    for (const std::uint32_t i : step[0]) ++times[i];
  }
  EXPECT_LT(*std::max_element(times.begin(), times.end()), 22);
  const auto never = std::count(times.begin(), times.end(), 0);
  // e^-4 of 5,000 = 92, deviation 9.5.
  EXPECT_NEAR(static_cast<double>(never), 92, 50);
}

TEST(SketchedSgd, ShortParametersAreDeliveredWhole) {
  constexpr std::size_t kElements = 10'000;
  const std::vector<std::size_t> ends = {10, 6000, 6000, 6100, 10'000};
  auto is_always_sent = [](std::size_t i) { return i < 10 || (i >= 6000 && i < 6100); };
  const std::vector<std::vector<Vector>> gradients = {{integers(kElements, 1), integers(kElements, 2)},
                                                      {integers(kElements, 3), integers(kElements, 4)}};
  for (const char* spec :
       {"sketched_sgd:k=20:p=4:columns=300:dense_below=101", "global_top_k:k=20:dense_below=101",
        "sketched_sgd:k=20:columns=5000:dense_below=101"}) {
    Steps steps{.spec = spec, .gradients = gradients, .parameter_ends = ends};
    go(steps);
    for (std::size_t s = 0; s < 2; ++s) {
      EXPECT_EQ(steps.delivered[s][0].size(), 130u);
      for (std::size_t i = 0; i < kElements; ++i) {
        if (!is_always_sent(i)) continue;
        ASSERT_EQ(steps.means[s][0][i], (gradients[s][0][i] + gradients[s][1][i]) / 2) << i;
        ASSERT_EQ(steps.residuals[s][0][i], 0);
      }
    }
    const std::uint64_t table =
        std::string(spec).find("300") != std::string::npos ? 5 * 300 + 110 + 80 : kElements;
    EXPECT_EQ(steps.reports[0][0].formula_bytes, 4 * table);
    EXPECT_EQ(make(spec).synchronizer->payload_bytes(
                  {.elements = kElements, .world_size = 2, .parameter_ends = steps.parameter_ends}),
              4 * table);
  }
  // All of them short.
  Steps all{.spec = "sketched_sgd:k=20:dense_below=20000", .gradients = gradients, .parameter_ends = ends};
  EXPECT_EQ(go(all).delivered[0][0].size(), kElements);
}

TEST(SketchedSgd, GradientsWithoutShape) {
  const std::string spec = "sketched_sgd:k=10:columns=50:rows=5";
  for (const char* fill : {"", ":fill=random"}) {
    const Steps zeros = run(spec + fill, {{Vector(2000, 0.0f), Vector(2000, -0.0f)}});
    EXPECT_EQ(zeros.means[0][0], Vector(2000, 0.0f));
    EXPECT_EQ(zeros.residuals[0][1], Vector(2000, 0.0f));
    const Steps constant = run(spec + fill, {{Vector(2000, 2.0f), Vector(2000, 2.0f)}});
    EXPECT_EQ(constant.delivered[0][0].size(), 10u);
    for (const std::uint32_t i : constant.delivered[0][0]) EXPECT_EQ(constant.means[0][0][i], 2.0f);
    // Denormals: sums of up to 40 of the smallest steps.
    Vector denormal(2000, 1e-45f);
    denormal[123] = -1e-41f;
    const Steps small = run(spec + fill, {{denormal, denormal}});
    EXPECT_EQ(small.delivered[0][0].size(), 10u);
    EXPECT_EQ(small.means[0][0][123], -1e-41f);
  }
}

TEST(SketchedSgd, TheSingleLargestElementIsFound) {
  Vector gradient(30'000, 0.01f);
  gradient[20'001] = -5;
  const Steps one = run("sketched_sgd:k=1:columns=100", {{gradient}});
  EXPECT_EQ(one.delivered[0][0], std::vector<std::uint32_t>{20'001});
}

TEST(SketchedSgd, OverflowIsToldToAllAndChangesNothing) {
  const float huge = 3e38f;
  Vector one(2000, 1.0f);
  Vector spoilt = one;
  spoilt[7] = huge;
  for (const char* spec : {"sketched_sgd:k=10:columns=50", "sketched_sgd:k=10:columns=50:fill=random",
                           "sketched_sgd:k=10:columns=50:momentum=0.5", "global_top_k:k=10"}) {
    const Steps steps = run(spec, {{one, one}, {spoilt, spoilt}, {one, one}});
    EXPECT_TRUE(steps.reports[0][0].finite);
    EXPECT_FALSE(steps.reports[1][0].finite);
    EXPECT_EQ(steps.residuals[1], steps.residuals[0]);
    EXPECT_TRUE(steps.reports[2][0].finite);
  }
}

TEST(SketchedSgd, Specs) {
  EXPECT_TRUE(make("sketched_sgd").conserves);
  EXPECT_TRUE(make("global_top_k").conserves);
  EXPECT_TRUE(make("mc:momentum=0.9+sketched_sgd").feedback);
  EXPECT_FALSE(make("mc:momentum=0.9+sketched_sgd").conserves);
  EXPECT_FALSE(make("sketched_sgd:momentum=0.9").conserves);
  EXPECT_FALSE(make("global_top_k:momentum=0.9").conserves);
  EXPECT_FALSE(make("sketched_sgd:feedback=off").conserves);
  for (const char* spec :
       {"mc+sketched_sgd:momentum=0.9", "mc+global_top_k:momentum=0.1", "top_k+sketched_sgd",
        "sketched_sgd:ratio=0", "sketched_sgd:k=-1", "sketched_sgd:p=0", "sketched_sgd:rows=0",
        "sketched_sgd:rows=32", "sketched_sgd:run=3", "sketched_sgd:momentum=1.1", "sketched_sgd:fill=some",
        "sketched_sgd:columns_ratio=0", "global_top_k:p=3", "sketched_sgd+agsparse"}) {
    EXPECT_THROW(make(spec), std::invalid_argument) << spec;
  }
  try {
    make("mc+sketched_sgd:momentum=0.9");
    FAIL();
  } catch (const std::invalid_argument& error) {
    EXPECT_STREQ(
        error.what(),
        "sketched_sgd:momentum=... behind mc: the second would correct the first's correction; keep one");
  }
}

}  // namespace
}  // namespace thinwire::sketched_sgd_test
