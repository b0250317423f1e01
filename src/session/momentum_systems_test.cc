// Systems that keep a momentum: `one_bit_adam`, `zero_one_adam` and `demo`, held against their papers'
// equations.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numbers>
#include <numeric>
#include <random>
#include <set>
#include <sstream>

#include "thinwire/in_process.h"
#include "thinwire/session.h"

namespace thinwire::momentum_systems_test {
namespace {

constexpr int kWorkers = 3;

BucketLayout layout() {
  return {{"weight", 12 * 10, 12}, {"bias", 5, 5}};
}
constexpr std::size_t kElements = 125;

std::vector<float> gradient_of(int rank, std::uint64_t step) {
  std::mt19937 random(static_cast<std::uint32_t>(1000 * step) + static_cast<std::uint32_t>(rank));
  std::normal_distribution<float> normal;
  std::vector<float> gradient(kElements);
  for (auto& value : gradient) value = normal(random);
  return gradient;
}

std::vector<double> mean_gradient(std::uint64_t step) {
  std::vector<double> mean(kElements, 0.0);
  for (int rank = 0; rank < kWorkers; ++rank) {
    const auto gradient = gradient_of(rank, step);
    for (std::size_t i = 0; i < kElements; ++i) mean[i] += static_cast<double>(gradient[i]) / kWorkers;
  }
  return mean;
}

/// What rank 0 saw in a step; residuals of all ranks.
struct Seen {
  std::vector<float> mean;
  std::vector<std::vector<float>> before, after;
  bool frozen = false;
};

std::vector<Seen> run(const std::string& spec, std::uint64_t steps) {
  std::vector<Seen> all(steps);
  for (auto& seen : all) {
    seen.before.resize(kWorkers);
    seen.after.resize(kWorkers);
  }
  run_in_process(kWorkers, [&](Communicator& communicator) {
    Session session(spec, communicator);
    session.add_bucket(layout());
    const auto rank = static_cast<std::size_t>(communicator.rank());
    const auto residual = [&] {
      return std::vector<float>(session.residual(0).begin(), session.residual(0).end());
    };
    for (std::uint64_t step = 0; step < steps; ++step) {
      std::vector<float> gradient = gradient_of(communicator.rank(), step);
      all[step].before[rank] = residual();
      const bool frozen = session.variance_is_frozen();
      session.synchronize(0, gradient);
      session.next_step();
      all[step].after[rank] = residual();
      if (rank != 0) continue;
      all[step].mean = std::move(gradient);
      all[step].frozen = frozen;
    }
  });
  return all;
}

void expect_near(const std::vector<float>& found, const std::vector<double>& expected,
                 const std::string& what) {
  for (std::size_t i = 0; i < expected.size(); ++i) {
    ASSERT_NEAR(static_cast<double>(found[i]), expected[i], 1e-5) << what << ", element " << i;
  }
}

TEST(OneBitAdam, IsDenseUntilItsMomentumIsOneBitForEachShardAndParameter) {
  constexpr std::uint64_t kFreeze = 3;
  std::vector<double> momentum(kElements, 0.0);  // Adam's, without its factor
  std::uint64_t step = 0;
  for (const Seen& seen : run("one_bit_adam:freeze=3:beta1=0.5", 8)) {
    SCOPED_TRACE(testing::Message() << "step " << step);
    EXPECT_EQ(seen.frozen, step >= kFreeze);
    for (std::size_t i = 0; i < kElements; ++i) {
      momentum[i] = 0.5 * momentum[i] + static_cast<double>(seen.mean[i]);
    }
    if (step < kFreeze) {
      expect_near(seen.mean, mean_gradient(step), "dense");
    } else {
      // Shards of 125 elements begin at 41 and 83; the bias begins at 120.
      const std::vector<std::size_t> ends = {41, 83, 120, 125};
      std::size_t begin = 0;
      for (const std::size_t end : ends) {
        for (std::size_t i = begin; i < end; ++i) {
          EXPECT_NEAR(std::fabs(momentum[i]), std::fabs(momentum[begin]), 1e-5) << i;
        }
        begin = end;
      }
    }
    ++step;
  }
}

TEST(OneBitAdam, DenseStepsAreDensesToTheLastBit) {
  const auto dense = run("dense", 6);
  const auto one_bit = run("one_bit_adam:freeze=6", 6);
  for (std::size_t step = 0; step < 6; ++step) EXPECT_EQ(one_bit[step].mean, dense[step].mean) << step;
}

TEST(OneBitAdam, AnotherSystemGoesOnWithItsMomentum) {
  run_in_process(2, [&](Communicator& communicator) {
    Session first("one_bit_adam:freeze=5:beta1=0.5", communicator);
    first.add_bucket(layout());
    auto gradient = gradient_of(communicator.rank(), 0);
    first.synchronize(0, gradient);
    first.next_step();
    StateWriter state;
    first.save(state);
    Session second("momentum:momentum=0.5+ef_signsgd", communicator);
    second.add_bucket(layout());
    second.take_over(StateReader(std::move(state)));
    // Nothing comes in: what is delivered beside the momentum that decays is compression's error alone.
    std::vector<float> nothing(kElements, 0.0f);
    second.synchronize(0, nothing);
    std::set<float> magnitudes;
    for (std::size_t i = 0; i < kElements; ++i) {
      magnitudes.insert(std::round(1e4f * std::fabs(nothing[i] + 0.5f * gradient[i])));
    }
    EXPECT_EQ(magnitudes.size(), 1u) << "0.5 * momentum travelled as one sign for each element";
  });
}

TEST(ZeroOneAdam, TheVarianceMovesWithExactMeansEverFurtherApart) {
  const std::set<std::uint64_t> moves = {0, 1, 2, 4, 6, 10, 14, 22};
  std::uint64_t step = 0;
  for (const Seen& seen : run("zero_one_adam:kappa=2:beta1=0.5", 24)) {
    SCOPED_TRACE(testing::Message() << "step " << step);
    EXPECT_EQ(seen.frozen, !moves.contains(step));
    if (!seen.frozen) {
      expect_near(seen.mean, mean_gradient(step), "the mean of gradients");
      EXPECT_EQ(seen.before, seen.after) << "residuals wait";
    } else {
      EXPECT_NE(seen.before, seen.after);
    }
    ++step;
  }
}

TEST(ZeroOneAdam, TheVarianceMovesNoMoreWhenItIsFrozen) {
  std::uint64_t step = 0;
  for (const Seen& seen : run("zero_one_adam:kappa=1:freeze=3", 8))
    EXPECT_EQ(seen.frozen, step++ >= 2) << step;
}

/// Of an element of a block, row after row: what it contributes to coefficient (u, v).
double cosine(std::size_t k, std::size_t i, std::size_t n) {
  return std::sqrt((k == 0 ? 1.0 : 2.0) / static_cast<double>(n)) *
         std::cos(std::numbers::pi * static_cast<double>((2 * i + 1) * k) / static_cast<double>(2 * n));
}

struct Area {
  std::size_t begin, stride, rows, columns;
};

/// The blocks of layout() for chunk=8.
std::vector<Area> areas() {
  return {{0, 10, 8, 8}, {8, 10, 8, 2}, {80, 10, 4, 8}, {88, 10, 4, 2}, {120, 5, 1, 5}};
}

/// p with each block's `top` largest coefficients alone, in double.
std::vector<double> largest(const std::vector<double>& p, std::size_t top) {
  std::vector<double> kept(p.size(), 0.0);
  for (const Area& area : areas()) {
    const auto at = [&](std::size_t i, std::size_t j) { return area.begin + i * area.stride + j; };
    std::vector<std::pair<double, std::pair<std::size_t, std::size_t>>> found;
    for (std::size_t u = 0; u < area.rows; ++u) {
      for (std::size_t v = 0; v < area.columns; ++v) {
        double sum = 0;
        for (std::size_t i = 0; i < area.rows; ++i) {
          for (std::size_t j = 0; j < area.columns; ++j) {
            sum += cosine(u, i, area.rows) * cosine(v, j, area.columns) * p[at(i, j)];
          }
        }
        found.push_back({sum, {u, v}});
      }
    }
    std::sort(found.begin(), found.end(),
              [](const auto& a, const auto& b) { return std::fabs(a.first) > std::fabs(b.first); });
    found.resize(std::min(top, found.size()));
    for (const auto& [value, place] : found) {
      for (std::size_t i = 0; i < area.rows; ++i) {
        for (std::size_t j = 0; j < area.columns; ++j) {
          kept[at(i, j)] += value * cosine(place.first, i, area.rows) * cosine(place.second, j, area.columns);
        }
      }
    }
  }
  return kept;
}

TEST(Demo, SendsTheLargestCoefficientsAndKeepsTheRest) {
  constexpr double kMomentum = 0.75;
  const auto plain = run("demo:chunk=8:top=3:momentum=0.75:sign=off", 3);
  const auto signs = run("demo:chunk=8:top=3:momentum=0.75", 3);
  for (std::size_t step = 0; step < 3; ++step) {
    SCOPED_TRACE(testing::Message() << "step " << step);
    std::vector<double> mean(kElements, 0.0);
    for (std::size_t rank = 0; rank < kWorkers; ++rank) {
      const auto gradient = gradient_of(static_cast<int>(rank), step);
      std::vector<double> p(kElements);
      for (std::size_t i = 0; i < kElements; ++i) {
        p[i] =
            static_cast<double>(gradient[i]) + kMomentum * static_cast<double>(plain[step].before[rank][i]);
      }
      const std::vector<double> sent = largest(p, 3);
      std::vector<double> left(kElements);
      for (std::size_t i = 0; i < kElements; ++i) {
        left[i] = p[i] - sent[i];
        mean[i] += sent[i] / kWorkers;
      }
      expect_near(plain[step].after[rank], left, "what stays");
    }
    expect_near(plain[step].mean, mean, "what arrives");
    EXPECT_EQ(plain[step].after, signs[step].after);
    for (std::size_t i = 0; i < kElements; ++i) {
      const float value = plain[step].mean[i];
      EXPECT_EQ(signs[step].mean[i], value > 0 ? 1.0f : value < 0 ? -1.0f : 0.0f) << i;
    }
  }
}

TEST(Demo, BytesAreThoseOfTheFewCoefficients) {
  run_in_process(2, [&](Communicator& communicator) {
    Session session("demo", communicator);
    session.add_bucket({{"table", 1000 * 256, 1000}, {"norm", 256, 256}});
    // 16 rows of blocks, 4 of them side by side, and 4 runs of 64; indices of 12 bits.
    EXPECT_EQ(session.payload_bytes(0), (16 * 4 + 4) * 32 * 4 + (16 * 4 + 4) * 32 * 12 / 8);
  });
}

}  // namespace
}  // namespace thinwire::momentum_systems_test
