#include "kernels/codes/kmeans.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "kernels/test_executors.h"

namespace thinwire::kmeans_test {
namespace {

PerCluster<Cluster> clusters_of(const std::vector<float>& values, std::size_t bits, double fraction = 1) {
  const auto executor = make_cpu_executor(1);
  Workspace workspace;
  PerCluster<Cluster> clusters{};
  EXPECT_EQ(ClusterFinder(*executor, workspace).find(values, {}, bits, fraction, 1, clusters),
            SampleKind::usable);
  return clusters;
}

std::vector<float> heavy_tailed(std::size_t count, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (auto& value : values) value = normal(random) * std::exp(normal(random));
  return values;
}

/// Sum of squared distances to the nearest centre of the same sign.
double spread(const std::vector<float>& values, const std::vector<double>& positive,
              const std::vector<double>& negative) {
  double total = 0;
  for (const float value : values) {
    double least = std::numeric_limits<double>::infinity();
    for (const double centre : value < 0 ? negative : positive) {
      least = std::min(least, std::pow(static_cast<double>(value) - centre, 2));
    }
    total += least;
  }
  return total;
}

/// Lloyd's iterations from several starts, the best of them.
std::vector<double> lloyd(std::vector<double> sorted, std::size_t levels) {
  std::mt19937 random(7);
  std::vector<double> best;
  double least = std::numeric_limits<double>::infinity();
  for (int start = 0; start < 20; ++start) {
    std::vector<double> centres;
    for (std::size_t level = 0; level < levels; ++level) centres.push_back(sorted[random() % sorted.size()]);
    double error = 0;
    for (int iteration = 0; iteration < 200; ++iteration) {
      std::sort(centres.begin(), centres.end());
      std::vector<double> sums(levels), counts(levels);
      error = 0;
      for (const double value : sorted) {
        std::size_t nearest = 0;
        for (std::size_t level = 1; level < levels; ++level) {
          if (std::fabs(value - centres[level]) < std::fabs(value - centres[nearest])) nearest = level;
        }
        error += std::pow(value - centres[nearest], 2);
        sums[nearest] += value;
        counts[nearest] += 1;
      }
      for (std::size_t level = 0; level < levels; ++level) {
        if (counts[level] > 0) centres[level] = sums[level] / counts[level];
      }
    }
    if (error < least) {
      least = error;
      best = centres;
    }
  }
  return best;
}

TEST(KMeans, IsNoWorseThanTheBestOfManyRunsOfLloyd) {
  for (const std::size_t bits : {1u, 2u, 3u, 4u}) {
    const auto values = heavy_tailed(3000, static_cast<std::uint32_t>(bits));
    const auto clusters = clusters_of(values, bits);
    const std::size_t levels = std::size_t{1} << (bits - 1);
    std::array<std::vector<double>, 2> found, wanted;
    for (std::size_t sign = 0; sign < 2; ++sign) {
      for (std::size_t level = 0; level < levels; ++level) {
        found[sign].push_back(clusters[2 * level + sign].centre);
        if (level > 0) {
          EXPECT_GT(std::fabs(found[sign][level]), std::fabs(found[sign][level - 1]));
        }
      }
      std::vector<double> same_sign;
      for (const float value : values) {
        if ((value < 0) == (sign == 1)) same_sign.push_back(static_cast<double>(value));
      }
      wanted[sign] = lloyd(same_sign, levels);
    }
    // Bins are 0.8 % wide, which moves a boundary by as much.
    EXPECT_LE(spread(values, found[0], found[1]), 1.005 * spread(values, wanted[0], wanted[1])) << bits;
  }
}

TEST(KMeans, StatisticsDescribeTheClusters) {
  // Two bits: 0.1 thrice and 0.9 once above zero, -0.5 and -0.7 below; levels are these values.
  const std::vector<float> values = {0.1f, 0.1f, 0.9f, 0.1f, -0.5f, -0.7f, -0.7f, -0.5f};
  const auto clusters = clusters_of(values, 2);
  EXPECT_NEAR(clusters[0].centre, 0.1, 1e-6);
  EXPECT_NEAR(clusters[2].centre, 0.9, 1e-6);
  EXPECT_NEAR(clusters[1].centre, -0.5, 1e-6);
  EXPECT_NEAR(clusters[3].centre, -0.7, 1e-6);
  EXPECT_DOUBLE_EQ(clusters[0].share, 3.0 / 8);
  EXPECT_DOUBLE_EQ(clusters[2].share, 1.0 / 8);
  EXPECT_NEAR(clusters[0].variance, 0, 1e-12);
  EXPECT_DOUBLE_EQ(clusters[0].entropy, 0);
  // With one bit all of a sign fall together: half in one bin, half in another.
  const auto halves = clusters_of(values, 1);
  EXPECT_NEAR(halves[1].centre, -0.6, 1e-6);
  EXPECT_NEAR(halves[1].variance, 0.01, 1e-6);
  EXPECT_DOUBLE_EQ(halves[1].entropy, 1);
}

TEST(KMeans, AlqsLevelsAreCentresOfBothSigns) {
  const auto values = heavy_tailed(100'000, 3);
  const auto executor = make_cpu_executor(1);
  Workspace workspace;
  ClusterFinder finder(*executor, workspace);
  PerCluster<Cluster> found{};
  ASSERT_EQ(finder.find(values, {}, 2, 1, 1, found, CentreKind::alq), SampleKind::usable);
  double squares = 0;
  for (const float value : values) squares += std::pow(static_cast<double>(value), 2);
  const double norm = std::sqrt(squares / static_cast<double>(values.size()) * 8192);
  // The highest level is the norm itself, which few elements come near to.
  EXPECT_NEAR(found[2].centre, norm, 0.02 * norm);
  EXPECT_LT(found[2].share + found[3].share, 0.001);
  EXPECT_NEAR(found[0].share + found[1].share + found[2].share + found[3].share, 1, 1e-9);
  for (std::size_t level = 0; level < 2; ++level) {
    EXPECT_EQ(found[2 * level].centre, -found[2 * level + 1].centre);
  }
  // As centres they are worse than the means.
  const auto means = clusters_of(values, 2);
  EXPECT_GT(spread(values, {found[0].centre, found[2].centre}, {found[1].centre, found[3].centre}),
            1.5 * spread(values, {means[0].centre, means[2].centre}, {means[1].centre, means[3].centre}));
}

TEST(KMeans, ASignThatIsAbsentTakesTheOthersMirrored) {
  auto values = heavy_tailed(5000, 3);
  for (auto& value : values) value = std::fabs(value);
  for (const std::size_t bits : {1u, 3u}) {
    const auto clusters = clusters_of(values, bits);
    for (std::size_t c = 0; c < std::size_t{1} << bits; c += 2) {
      EXPECT_EQ(clusters[c + 1].centre, -clusters[c].centre);
      EXPECT_EQ(clusters[c + 1].share, 0);
    }
  }
}

TEST(KMeans, FewDistinctValuesFillTheLevelsBelow) {
  const auto clusters = clusters_of(std::vector<float>(100, 2.5f), 4);
  for (std::size_t c = 0; c < 16; c += 2) {
    EXPECT_NEAR(clusters[c].centre, 2.5, 1e-6);
    EXPECT_EQ(clusters[c].share, c == 0 ? 1 : 0);
  }
  const auto tiny = clusters_of({1e-42f, -1e-42f}, 2);
  EXPECT_GT(tiny[0].centre, 0);
  EXPECT_LT(tiny[1].centre, 0);
}

TEST(KMeans, ZeroAndNonFiniteSamplesAreTold) {
  for_each_executor([](Executor& executor, const std::string& name) {
    SCOPED_TRACE(name);
    Workspace workspace(executor.shared_allocator());
    ClusterFinder finder(executor, workspace);
    PerCluster<Cluster> clusters{};
    auto find = [&](const std::vector<float>& values) {
      return finder.find(Placed(executor, values), {}, 2, 0.1, 1, clusters);
    };
    std::vector<float> values(1000, 0.0f);
    values[5] = -0.0f;
    EXPECT_EQ(find(values), SampleKind::all_zero);
    for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                            -std::numeric_limits<float>::infinity()}) {
      values[7] = bad;
      EXPECT_EQ(find(values), SampleKind::not_finite);
    }
    // Nothing of an earlier sample is left for the next.
    values.assign(1000, -2.0f);
    ASSERT_EQ(find(values), SampleKind::usable);
    EXPECT_DOUBLE_EQ(clusters[1].centre, -2);
    EXPECT_DOUBLE_EQ(clusters[1].share, 1);
  });
}

TEST(KMeans, EveryExecutorFindsTheSameToTheBit) {
  struct Case {
    std::size_t elements;
    double fraction;
    float scale;
  };
  for (const Case& one : {Case{1, 1, 1}, Case{17, 0.1, 1}, Case{3001, 0.1, 1e-41f}, Case{3001, 0.5, 1e30f},
                          Case{50'003, 0.5, 1}, Case{200'003, 0.1, 1e-3f}}) {
    const auto elements = one.elements;
    const auto scale = one.scale;
    auto gradient = heavy_tailed(elements, 8);
    const auto residual = heavy_tailed(elements, 9);
    for (auto& value : gradient) value *= scale;
    for (std::size_t i = 0; i < elements; i += 7) gradient[i] = i % 2 == 0 ? 0.0f : -0.0f;
    const auto cpu = make_cpu_executor(1);
    for (const bool with_residual : {false, true}) {
      if (with_residual && scale != 1) continue;
      const auto r = with_residual ? residual : std::vector<float>{};
      Workspace workspace;
      PerCluster<Cluster> expected{};
      ClusterFinder(*cpu, workspace).find(gradient, r, 3, one.fraction, 5, expected);
      for_each_executor([&](Executor& executor, const std::string& name) {
        PerCluster<Cluster> clusters{};
        Workspace own(executor.shared_allocator());
        ClusterFinder finder(executor, own);
        finder.find(Placed(executor, gradient), Placed(executor, r), 3, one.fraction, 5, clusters);
        for (std::size_t c = 0; c < 8; ++c) {
          SCOPED_TRACE(testing::Message() << name << ", " << elements << " elements, cluster " << c);
          EXPECT_EQ(clusters[c].centre, expected[c].centre);
          EXPECT_EQ(clusters[c].share, expected[c].share);
          EXPECT_EQ(clusters[c].variance, expected[c].variance);
          EXPECT_EQ(clusters[c].entropy, expected[c].entropy);
        }
      });
    }
  }
}

TEST(KMeans, ATenthOfTheElementsGivesCentresThatAreAboutAsGoodForAll) {
  const auto values = heavy_tailed(400'000, 5);
  auto spread_with = [&](double fraction) {
    const auto clusters = clusters_of(values, 2, fraction);
    return spread(values, {clusters[0].centre, clusters[2].centre}, {clusters[1].centre, clusters[3].centre});
  };
  const double all = spread_with(1);
  const double tenth = spread_with(0.1);
  EXPECT_GE(tenth, all * (1 - 1e-3));
  EXPECT_LE(tenth, all * 1.05);
  EXPECT_NE(tenth, all);
}

TEST(KMeans, TheResidualBelongsToTheSample) {
  const std::vector<float> gradient = {1, 1, -1, -1};
  const std::vector<float> residual = {1, 1, -3, -3};
  const auto executor = make_cpu_executor(1);
  Workspace workspace;
  PerCluster<Cluster> clusters{};
  ASSERT_EQ(ClusterFinder(*executor, workspace).find(gradient, residual, 1, 1, 1, clusters),
            SampleKind::usable);
  EXPECT_DOUBLE_EQ(clusters[0].centre, 2);
  EXPECT_DOUBLE_EQ(clusters[1].centre, -4);
}

}  // namespace
}  // namespace thinwire::kmeans_test
