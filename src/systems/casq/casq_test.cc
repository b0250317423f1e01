#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <sstream>
#include <vector>

#include "systems/casq/clusters.h"
#include "systems/casq/server.h"
#include "systems/systems.h"
#include "tests/random_values.h"
#include "thinwire/errors.h"
#include "thinwire/in_process.h"
#include "thinwire/state.h"

namespace thinwire::casq_test {
namespace {

std::unique_ptr<Synchronizer> make(const std::string& spec) {
  Registry registry;
  registry.add(casq_info());
  return registry.make(spec).synchronizer;
}

struct Outcome {
  std::vector<float> mean;
  std::vector<float> residual;
  StepReport report;
};

/// One step of every rank of a world; gradients[rank].
std::vector<Outcome> step_of(const std::string& spec, const std::vector<std::vector<float>>& gradients,
                             bool feedback = true, std::uint64_t seed = 3, std::uint64_t index = 0) {
  std::vector<Outcome> outcomes(gradients.size());
  run_in_process(static_cast<int>(gradients.size()), [&](Communicator& communicator) {
    const auto rank = static_cast<std::size_t>(communicator.rank());
    const auto executor = make_cpu_executor(1);
    Workspace workspace;
    Step step{.communicator = communicator,
              .executor = *executor,
              .workspace = workspace,
              .index = index,
              .seed = seed};
    Outcome& outcome = outcomes[rank];
    outcome.mean = gradients[rank];
    if (feedback) outcome.residual.assign(gradients[rank].size(), 0.0f);
    make(spec)->synchronize(0, outcome.mean, outcome.residual, step);
    outcome.report = step.report;
  });
  return outcomes;
}

double squares(const std::vector<float>& values) {
  double sum = 0;
  for (const float value : values) sum += static_cast<double>(value) * static_cast<double>(value);
  return sum;
}

double squared_error(const std::vector<float>& a, const std::vector<float>& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    sum += std::pow(static_cast<double>(a[i]) - static_cast<double>(b[i]), 2);
  }
  return sum;
}

TEST(CasqAllocation, SharesBucketsByWeightWithTheRemaindersToTheLargest) {
  const PerCluster<float> weights = {1, 2, 3, 4};
  // 4 go one to each; 96 are shared 9.6, 19.2, 28.8, 38.4: the first and third get one more.
  const auto sizes = allocate_cells(weights, 2, 100);
  EXPECT_EQ(sizes[0], 11u);
  EXPECT_EQ(sizes[1], 20u);
  EXPECT_EQ(sizes[2], 30u);
  EXPECT_EQ(sizes[3], 39u);
  for (const std::size_t total : {0u, 1u, 3u, 4u}) {
    const auto fewest = allocate_cells(weights, 2, total);
    for (std::size_t c = 0; c < 4; ++c) EXPECT_EQ(fewest[c], 1u);
  }
  const auto even = allocate_cells({}, 2, 14);
  EXPECT_EQ(even[0], 4u);
  EXPECT_EQ(even[1], 4u);
  EXPECT_EQ(even[2], 3u);
  EXPECT_EQ(even[3], 3u);
  std::mt19937 random(1);
  for (int trial = 0; trial < 200; ++trial) {
    PerCluster<float> some{};
    for (auto& weight : some)
      weight = random() % 3 == 0 ? 0.0f : std::ldexp(1.0f, static_cast<int>(random() % 60) - 30);
    const std::size_t total = 16 + random() % 100'000;
    const auto parts = allocate_cells(some, 4, total);
    EXPECT_EQ(std::accumulate(parts.begin(), parts.end(), std::size_t{0}), total);
    EXPECT_GE(*std::min_element(parts.begin(), parts.end()), 1u);
  }
}

TEST(CasqAllocation, WeightsFollowTheirRules) {
  PerCluster<Cluster> clusters{};
  clusters[0] = {0.001, 0.60, 1e-8, 1.0};
  clusters[1] = {-0.002, 0.36, 2e-8, 1.5};
  clusters[2] = {0.1, 0.02, 1e-4, 3.0};
  clusters[3] = {-0.2, 0.02, 4e-4, 4.0};
  const auto centre = cell_weights(Allocation::centre, clusters, 2, 0.005);
  EXPECT_FLOAT_EQ(centre[0] / centre[3], 0.001f * 1.0f / (0.2f * 4.0f));
  EXPECT_FLOAT_EQ(centre[2] / centre[3], 0.1f * 3.0f / (0.2f * 4.0f));
  const auto density = cell_weights(Allocation::density, clusters, 2, 0.005);
  EXPECT_FLOAT_EQ(density[1] / density[0], 0.36f * 1.5f / 0.6f);
  for (const float weight : cell_weights(Allocation::even, clusters, 2, 0.005)) EXPECT_EQ(weight, 0);
}

TEST(CasqAllocation, LeastErrorIsNoWorseThanAnyOtherSplit) {
  PerCluster<Cluster> clusters{};
  clusters[0] = {0.001, 0.60, 1e-8, 1.0};
  clusters[1] = {-0.002, 0.36, 2e-8, 1.5};
  clusters[2] = {0.1, 0.03, 1e-4, 3.0};
  clusters[3] = {-0.2, 0.01, 4e-4, 4.0};
  auto expected_error = [&](const std::array<double, 4>& cells) {
    double error = 0;
    for (std::size_t c = 0; c < 4; ++c) {
      const double occupied = cells[c] > 0 ? cells[c] * -std::expm1(-clusters[c].share / cells[c]) : 0;
      error += clusters[c].variance * (clusters[c].share - occupied);
    }
    return error;
  };
  for (const double budget : {0.001, 0.005, 0.05, 0.5}) {
    const auto weights = cell_weights(Allocation::error, clusters, 2, budget);
    double total = 0;
    for (const float weight : weights) total += static_cast<double>(weight);
    EXPECT_NEAR(total, budget, 1e-5);
    std::array<double, 4> chosen{};
    for (std::size_t c = 0; c < 4; ++c) chosen[c] = static_cast<double>(weights[c]) * budget / total;
    std::mt19937 random(3);
    for (int trial = 0; trial < 2000; ++trial) {
      std::array<double, 4> other{};
      double sum = 0;
      for (auto& part : other)
        sum += part = -std::log((static_cast<double>(random() % 10'000) + 0.5) / 10'000);
      for (auto& part : other) part *= budget / sum;
      EXPECT_LE(expected_error(chosen), expected_error(other) * (1 + 1e-6));
    }
  }
}

TEST(CasqClusters, CentresThatCannotBeAreRefused) {
  const PerCluster<float> centres = {0.1f, -0.2f, 0.5f, -0.6f};
  const PerCluster<float> weights = {1, 0, 3, 2};
  EXPECT_NO_THROW(require_sound(centres, weights, 4));
  auto refused = [&](std::size_t cluster, float centre, float weight) {
    auto bad_centres = centres;
    auto bad_weights = weights;
    bad_centres[cluster] = centre;
    bad_weights[cluster] = weight;
    try {
      require_sound(bad_centres, bad_weights, 4);
      return false;
    } catch (const CorruptFrame&) {
      return true;
    }
  };
  EXPECT_FALSE(refused(0, 0.5f, 0));
  EXPECT_TRUE(refused(0, -0.1f, 1));
  EXPECT_TRUE(refused(1, 0.2f, 1));
  EXPECT_TRUE(refused(2, 0.05f, 1));
  EXPECT_TRUE(refused(3, -0.1f, 1));
  EXPECT_TRUE(refused(3, -std::numeric_limits<float>::infinity(), 1));
  EXPECT_TRUE(refused(0, std::numeric_limits<float>::quiet_NaN(), 1));
  EXPECT_TRUE(refused(2, 0.5f, -1));
  EXPECT_TRUE(refused(2, 0.5f, std::numeric_limits<float>::infinity()));
}

TEST(CasqClusters, GroupsOfAShardAreThoseThatItHoldsElementsOf) {
  const std::vector<std::size_t> ends = {10, 10, 200, 1000};
  const GroupEnds groups(ends, 1000, 0.1, 4);
  std::vector<std::array<std::size_t, 3>> seen;
  auto collect = [&](std::size_t group, std::size_t begin, std::size_t end) {
    seen.push_back({group, begin, end});
  };
  groups.for_each({0, 1000}, collect);
  EXPECT_EQ(seen, (std::vector<std::array<std::size_t, 3>>{{0, 0, 10}, {2, 10, 200}, {3, 200, 1000}}));
  EXPECT_EQ(groups.cells({0, 1000}), 4u + 19u + 80u);
  seen.clear();
  groups.for_each({64, 128}, collect);
  EXPECT_EQ(seen, (std::vector<std::array<std::size_t, 3>>{{2, 64, 128}}));
  seen.clear();
  groups.for_each({192, 320}, collect);
  EXPECT_EQ(seen, (std::vector<std::array<std::size_t, 3>>{{2, 192, 200}, {3, 200, 320}}));
  const GroupEnds whole({}, 1000, 0.1, 4);
  seen.clear();
  whole.for_each({64, 128}, collect);
  EXPECT_EQ(seen, (std::vector<std::array<std::size_t, 3>>{{0, 64, 128}}));
}

TEST(CasqServer, ShardsCoverTheBucketInWholeGroups) {
  for (const std::size_t elements : {0u, 1u, 63u, 64u, 65u, 1000u, 123'457u}) {
    for (const std::size_t world : {1u, 2u, 3u, 5u, 8u}) {
      std::size_t end = 0;
      for (std::size_t rank = 0; rank < world; ++rank) {
        const Shard shard = shard_of(elements, world, rank, kShardRun);
        EXPECT_EQ(shard.begin, end);
        EXPECT_TRUE(shard.begin % 64 == 0 || shard.size() == 0);
        end = shard.end;
      }
      EXPECT_EQ(end, elements);
    }
  }
}

TEST(Casq, PayloadIsTheFormulaOfTheSpecification) {
  const auto casq = make("casq:topology=all_gather");
  // 2 bits and 0.005 means of 4 bytes: 2.16 bits per element.
  Workload workload{.elements = 1'000'000, .world_size = 2, .step = 3};
  EXPECT_EQ(casq->payload_bytes(workload), 1'000'000u / 8 * 2 + 4 * 5000);
  workload.step = 100;
  workload.rank = 0;
  EXPECT_EQ(casq->payload_bytes(workload), 270'000u + 8 * 4);
  workload.rank = 1;
  EXPECT_EQ(casq->payload_bytes(workload), 270'000u);
  // 8 workers: 1.9 d gathered, 0.6 d through servers.
  workload = {.elements = 1'000'000, .world_size = 8, .step = 3};
  EXPECT_EQ(casq->payload_bytes(workload), 7u * 270'000);
  const std::uint64_t server = make("casq")->payload_bytes(workload);
  EXPECT_NEAR(static_cast<double>(server), 2 * 7.0 / 8 * 250'000 + 7 * 20'000 + 7.0 / 8 * 20'000, 500);
  EXPECT_EQ(server, make("casq:topology=server")->payload_bytes(workload));
  workload.world_size = 2;
  EXPECT_EQ(make("casq")->payload_bytes(workload), casq->payload_bytes(workload));
  // Weights of four clusters in each step, and no broadcast.
  workload.step = 100;
  const auto own = make("casq:topology=all_gather:clusters=own");
  EXPECT_EQ(own->payload_bytes(workload), 270'000u + 4 * 4);
}

/// What the residuals have of what was given, in squares.
double left_of(const std::vector<Outcome>& outcomes, std::size_t rank,
               const std::vector<std::vector<float>>& gradients) {
  return squares(outcomes[rank].residual) / squares(gradients[rank]);
}

TEST(Casq, ClustersOfItsOwnServeARankWhoseGradientIsOfAnotherSize) {
  const std::vector<float> small = heavy_tailed(40'000, 1);
  std::vector<float> large = heavy_tailed(40'000, 2);
  for (float& value : large) value *= 1000;
  const std::vector<std::vector<float>> gradients = {small, large};
  for (const std::string topology : {"all_gather", "server:downlink=float32"}) {
    SCOPED_TRACE(topology);
    const std::string spec = "casq:sample=1:topology=" + topology;
    const auto shared = step_of(spec, gradients);
    const auto own = step_of(spec + ":clusters=own", gradients);
    EXPECT_LT(left_of(own, 1, gradients), 0.8 * left_of(shared, 1, gradients));
    EXPECT_NEAR(left_of(own, 0, gradients), left_of(shared, 0, gradients), 1e-6);
    // As if all ranks had gradients of this size.
    const auto alike = step_of(spec, {large, large});
    EXPECT_NEAR(left_of(own, 1, gradients), left_of(alike, 1, {large, large}), 0.01);
    EXPECT_EQ(own[0].mean, own[1].mean);
  }
}

TEST(CasqClusters, WeightsOfOthersShareTheSameCells) {
  Workspace workspace;
  std::vector<ClusterGroup> groups(2);
  for (std::size_t k = 0; k < 2; ++k) {
    groups[k].end = 100 * (k + 1);
    groups[k].first_cell = 20 * k;
    groups[k].sizes = allocate_cells({}, 2, 20);
  }
  ClusterSketch sketch;
  sketch.groups = groups;
  const std::vector<float> weights = {1, 0, 0, 0, 1, 2, 3, 4};
  const ClusterSketch other = with_weights(workspace, sketch, weights, 3);
  EXPECT_EQ(other.cells(), sketch.cells());
  EXPECT_EQ(other.groups[0].sizes, allocate_cells({1, 0, 0, 0}, 2, 20));
  EXPECT_EQ(other.groups[1].sizes, allocate_cells({1, 2, 3, 4}, 2, 20));
  EXPECT_EQ(sketch.groups[0].sizes, allocate_cells({}, 2, 20));
  for (const float bad : {-1.0f, std::numeric_limits<float>::infinity(), std::nanf("")}) {
    std::vector<float> sent = weights;
    sent[5] = bad;
    try {
      with_weights(workspace, sketch, sent, 3);
      FAIL() << bad;
    } catch (const CorruptFrame& error) {
      EXPECT_NE(std::string(error.what()).find("rank 3 sent weight"), std::string::npos) << error.what();
    }
  }
}

TEST(Casq, ErrorIsOrthogonalAndFallsWithBitsAndBuckets) {
  const std::vector<std::vector<float>> gradients = {heavy_tailed(300'000, 1)};
  const double whole = squares(gradients[0]);
  double before = whole;
  for (const char* spec :
       {"casq:bits=1:buckets=0", "casq:bits=1", "casq:bits=2", "casq:bits=3", "casq:bits=4"}) {
    const Outcome outcome = step_of(spec, gradients)[0];
    const double error = squared_error(outcome.mean, gradients[0]);
    EXPECT_NEAR(error, whole - squares(outcome.mean), 1e-4 * whole) << spec;
    EXPECT_LT(error, before) << spec;
    before = error;
  }
  auto error_of = [&](const std::string& spec) {
    return squared_error(step_of(spec, gradients)[0].mean, gradients[0]);
  };
  EXPECT_LT(error_of("casq:buckets=0.05"), error_of("casq:buckets=0.005"));
  EXPECT_LT(error_of("casq:allocation=centre"), error_of("casq:allocation=density"));
  EXPECT_LT(error_of("casq:allocation=centre"), error_of("casq:allocation=even"));
  EXPECT_LT(error_of("casq:allocation=error"), error_of("casq:allocation=density"));
}

TEST(Casq, ABucketPerElementIsLossless) {
  const std::vector<float> gradient = {0.5f, -0.25f, 3, 0, -7, 0.125f};
  // 64 elements of one run never share a cell of an array that has 64.
  std::vector<float> run(64);
  for (std::size_t i = 0; i < run.size(); ++i) run[i] = gradient[i % gradient.size()];
  const Outcome outcome = step_of("casq:buckets=1:bits=1:allocation=even", {run})[0];
  EXPECT_LT(squared_error(outcome.mean, run), squares(run));
  const Outcome more = step_of("casq:bits=4:buckets=1", {std::vector<float>{2.5f}})[0];
  EXPECT_EQ(more.mean[0], 2.5f);
}

TEST(Casq, RanksErrorsAverageOutBecauseTheirHashesDiffer) {
  const auto gradient = heavy_tailed(100'000, 4);
  const double one = squared_error(
      step_of("casq:topology=all_gather:buckets=0.3:allocation=even", {gradient}, false)[0].mean, gradient);
  const double eight = squared_error(step_of("casq:topology=all_gather:buckets=0.3:allocation=even",
                                             std::vector<std::vector<float>>(8, gradient), false)[0]
                                         .mean,
                                     gradient);
  EXPECT_LT(eight, 0.9 * one);
}

TEST(Casq, HardInputsGiveRightResults) {
  for (const char* spec : {"casq", "casq:topology=server", "casq:topology=server:downlink=float32",
                           "casq:bits=4:topology=all_gather", "casq:bits=1:buckets=0", "casq:clusters=own",
                           "casq:clusters=own:topology=all_gather:bits=1"}) {
    for (const std::size_t elements : {1u, 2u, 64u, 1000u}) {
      for (const float value : {0.0f, -0.0f, 1e-42f, -3.0f, 3e38f}) {
        SCOPED_TRACE(testing::Message() << spec << ", " << elements << " times " << value);
        const std::vector<std::vector<float>> gradients(3, std::vector<float>(elements, value));
        for (const Outcome& outcome : step_of(spec, gradients)) {
          if (value == 3e38f) {  // the sum over ranks overflows
            EXPECT_FALSE(outcome.report.finite);
            continue;
          }
          ASSERT_TRUE(outcome.report.finite);
          for (const float mean : outcome.mean) {
            ASSERT_NEAR(static_cast<double>(mean), static_cast<double>(value), 1e-6 * std::fabs(value));
          }
          for (const float left : outcome.residual) ASSERT_NEAR(static_cast<double>(left), 0, 1e-5);
        }
      }
      // All of one sign, with one outlier of the other.
      std::vector<float> values(elements, 1.0f);
      values[elements / 2] = -100.0f;
      for (const Outcome& outcome : step_of(spec, {values, values, values})) {
        for (std::size_t i = 0; i < elements; ++i) ASSERT_NEAR(outcome.mean[i], values[i], 2e-4) << i;
      }
    }
  }
}

TEST(Casq, RanksWithoutTheSignsOfRankZeroAreCodedAllTheSame) {
  const std::vector<float> positive(1000, 0.5f);
  std::vector<float> negative(1000, -0.25f);
  for (const char* spec : {"casq", "casq:clusters=own"}) {
    for (const Outcome& outcome : step_of(spec, {positive, negative})) {
      for (const float mean : outcome.mean) ASSERT_NEAR(mean, 0.125f, 1e-6);
    }
    // Nothing on rank 0.
    for (const Outcome& outcome : step_of(spec, {std::vector<float>(1000, 0.0f), negative})) {
      for (const float mean : outcome.mean) ASSERT_NEAR(mean, -0.125f, 1e-6);
    }
  }
}

TEST(Casq, CentresAreTakenAnewAtTheInterval) {
  const auto executor = make_cpu_executor(1);
  run_in_process(1, [&](Communicator& communicator) {
    const auto casq = make("casq:interval=4:sample=1:feedback=off");
    Workspace workspace;
    auto error_at = [&](std::uint64_t index, float scale) {
      auto gradient = heavy_tailed(50'000, 6);
      for (float& value : gradient) value *= scale;
      auto mean = gradient;
      workspace.reset();
      Step step{.communicator = communicator, .executor = *executor, .workspace = workspace, .index = index};
      casq->synchronize(0, mean, {}, step);
      return squared_error(mean, gradient) / squares(gradient);
    };
    const double fitted = error_at(0, 1);
    const double stale = error_at(3, 1000);
    const double anew = error_at(4, 1000);
    EXPECT_GT(stale, 1.1 * fitted);
    EXPECT_NEAR(anew, fitted, 0.1 * fitted);
  });
}

TEST(Casq, GroupsOfWhichRankZeroHasOnlyZerosKeepTheirCentres) {
  const auto executor = make_cpu_executor(1);
  run_in_process(2, [&](Communicator& communicator) {
    const auto casq = make("casq:interval=4:sample=1:topology=all_gather:feedback=off");
    const auto values = heavy_tailed(5000, 6);
    const std::vector<std::size_t> ends = {2500, 5000};
    Workspace workspace;
    auto error_at = [&](std::uint64_t index, bool zeros_on_rank_0) {
      auto mean = values;
      const bool zeros = zeros_on_rank_0 && communicator.rank() == 0;
      if (zeros) std::fill(mean.begin() + 2500, mean.end(), 0.0f);
      auto exact = mean;
      communicator.all_reduce_sum(exact);
      for (float& value : exact) value /= 2;
      workspace.reset();
      Step step{.communicator = communicator,
                .executor = *executor,
                .workspace = workspace,
                .index = index,
                .parameter_ends = ends};
      casq->synchronize(0, mean, {}, step);
      return squared_error(mean, exact) / squares(exact);
    };
    const double fitted = error_at(0, false);
    EXPECT_LT(error_at(4, true), 1.3 * fitted);
  });
}

TEST(Casq, ZerosOnOneSideDoNotHideTheOtherRanksValues) {
  std::vector<float> negative = heavy_tailed(20'000, 1);
  for (std::size_t i = 0; i < negative.size(); ++i) negative[i] = i % 3 == 0 ? 0.0f : -std::fabs(negative[i]);
  std::vector<float> positive = negative;
  for (float& value : positive) value = -value;
  // What rank 1 has is coded as well as if rank 0 had it mirrored.
  const auto outcomes = step_of("casq:topology=all_gather:sample=1", {negative, positive});
  double error = 0;
  for (const float left : outcomes[1].residual)
    error += static_cast<double>(left) * static_cast<double>(left);
  double mirrored = 0;
  for (const float left : outcomes[0].residual)
    mirrored += static_cast<double>(left) * static_cast<double>(left);
  EXPECT_LT(error, 1.2 * mirrored);
}

TEST(Casq, SumsBeyondFloat32AreToldToAllRanks) {
  for (int exponent = 100; exponent <= 127; ++exponent) {
    const std::vector<float> gradient(50'000, std::ldexp(1.0f, exponent));
    for (const char* spec : {"casq:topology=server:bits=4:allocation=even", "casq:topology=all_gather"}) {
      const auto outcomes = step_of(spec, {gradient, gradient});
      EXPECT_EQ(outcomes[0].report.finite, outcomes[1].report.finite);
      if (outcomes[0].report.finite) {
        EXPECT_TRUE(std::isfinite(outcomes[0].mean[0]));
      }
      if (exponent < 108) {
        EXPECT_TRUE(outcomes[0].report.finite);
      }
    }
  }
}

TEST(Casq, AResumedRunMayGroupParametersAnew) {
  const std::vector<BucketLayout> together = {{{"a", 3000}, {"none", 0}, {"b", 5000}}};
  const std::vector<BucketLayout> apart = {{{"a", 3000}}, {{"none", 0}}, {{"b", 5000}}};
  const auto executor = make_cpu_executor(1);
  for (const char* spec :
       {"casq:topology=server:interval=1000:sample=1", "casq:topology=all_gather:interval=1000:sample=1"}) {
    run_in_process(4, [&](Communicator& communicator) {
      const auto values = heavy_tailed(8000, 1);
      auto relative_error = [&](Synchronizer& casq, BucketId bucket, std::size_t begin, std::size_t end,
                                Span<const std::size_t> ends, std::uint64_t index) {
        std::vector<float> mean(values.begin() + static_cast<std::ptrdiff_t>(begin),
                                values.begin() + static_cast<std::ptrdiff_t>(end));
        const auto exact = mean;
        Workspace workspace;
        Step step{.communicator = communicator,
                  .executor = *executor,
                  .workspace = workspace,
                  .index = index,
                  .parameter_ends = ends};
        casq.synchronize(bucket, mean, {}, step);
        return squared_error(mean, exact) / std::max(1e-30, squares(exact));
      };
      const auto casq = make(spec);
      const std::vector<std::size_t> ends = {3000, 3000, 8000};
      relative_error(*casq, 0, 0, 8000, ends, 0);
      StateWriter writer;
      BucketWriter buckets(writer, together);
      casq->save(buckets);
      std::stringstream stream;
      writer.write(stream);
      const StateReader reader(stream);
      const auto resumed = make(spec);
      resumed->load(BucketReader(reader, apart));
      const std::vector<std::size_t> a = {3000}, b = {5000};
      // At step 3 nothing is clustered.
      const auto fresh = make(spec);
      const double fitted_a = relative_error(*fresh, 0, 0, 3000, a, 0);
      const double fitted_b = relative_error(*fresh, 2, 3000, 8000, b, 0);
      EXPECT_LT(relative_error(*resumed, 0, 0, 3000, a, 3), 1.2 * fitted_a);
      EXPECT_LT(relative_error(*resumed, 2, 3000, 8000, b, 3), 1.2 * fitted_b);
    });
  }
}

TEST(Casq, DoubleMomentumReturnsTheMeanAndItsVelocity) {
  const auto executor = make_cpu_executor(1);
  run_in_process(1, [&](Communicator& communicator) {
    const auto casq = make("casq:double_momentum=0.5");
    Workspace workspace;
    double velocity = 0;
    for (std::uint64_t index = 0; index < 5; ++index) {
      std::vector<float> mean(10, static_cast<float>(index + 1));
      workspace.reset();
      Step step{.communicator = communicator, .executor = *executor, .workspace = workspace, .index = index};
      casq->synchronize(0, mean, {}, step);
      velocity = 0.5 * velocity + static_cast<double>(index + 1);
      for (const float value : mean) EXPECT_NEAR(value, static_cast<double>(index + 1) + velocity, 1e-5);
    }
  });
}

TEST(Casq, OptionsOutOfRangeAreRefusedWithTheirValue) {
  for (const char* spec :
       {"casq:bits=0", "casq:bits=5", "casq:buckets=-0.1", "casq:buckets=1.5", "casq:interval=0",
        "casq:sample=0", "casq:allocation=best", "casq:topology=ring", "casq:downlink=half",
        "casq:scope=layer", "casq:double_momentum=1", "casq:clusters=mine"}) {
    EXPECT_THROW(make(spec), std::invalid_argument) << spec;
  }
  try {
    make("casq:bits=5");
  } catch (const std::invalid_argument& error) {
    EXPECT_NE(std::string(error.what()).find("5"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace thinwire::casq_test
