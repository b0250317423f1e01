#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <random>
#include <set>

#include "systems/systems.h"
#include "thinwire/errors.h"
#include "thinwire/in_process.h"

namespace thinwire::s2_reducer_test {
namespace {

Pipeline make(const std::string& spec) {
  Registry registry;
  registry.add(s2_reducer_info());
  return registry.make(spec);
}

/// What one rank brings to a step and takes from it.
struct Rank {
  std::vector<std::uint32_t> indices;  // of rows; none: the values are a dense bucket
  std::vector<float> values;
  std::vector<float> residual;
  // out
  std::vector<float> mean;  // dense, also for rows
  std::set<std::uint32_t> listed;
  StepReport report;
  std::uint64_t sent_bytes = 0;
};

struct Shape {
  std::size_t rows = 0;
  std::size_t width = 1;
  bool row_sparse = true;
  std::size_t elements() const { return rows * width; }
};

/// One step on every rank.
void run(const std::string& spec, const Shape& shape, std::vector<Rank>& ranks, std::uint64_t index = 0,
         int threads = 1) {
  run_in_process(static_cast<int>(ranks.size()), [&](Communicator& communicator) {
    Rank& rank = ranks[static_cast<std::size_t>(communicator.rank())];
    const Pipeline pipeline = make(spec);
    const auto executor = make_cpu_executor(threads);
    Workspace workspace;
    Step step{.communicator = communicator,
              .executor = *executor,
              .workspace = workspace,
              .index = index,
              .seed = 3};
    if (shape.row_sparse) {
      const RowSparse mean = pipeline.synchronizer->synchronize_rows(
          5, {rank.indices, rank.values, shape.rows, shape.width}, rank.residual, step);
      rank.mean.assign(shape.elements(), 0.0f);
      for (std::size_t k = 0; k < mean.size(); ++k) {
        EXPECT_TRUE(k == 0 || mean.row_indices[k - 1] < mean.row_indices[k]);
        rank.listed.insert(mean.row_indices[k]);
        std::copy_n(mean.row(k).data(), shape.width, rank.mean.data() + mean.row_indices[k] * shape.width);
      }
    } else {
      rank.mean = rank.values;
      pipeline.synchronizer->synchronize(5, rank.mean, rank.residual, step);
    }
    rank.report = step.report;
    rank.sent_bytes = communicator.traffic().sent_bytes;
    EXPECT_EQ(rank.sent_bytes, rank.report.formula_bytes);
  });
  for (const Rank& rank : ranks) {
    EXPECT_EQ(rank.report.finite, ranks[0].report.finite);
    ASSERT_EQ(rank.mean.size(), ranks[0].mean.size());
    if (rank.mean.empty() || !rank.report.finite) continue;
    EXPECT_EQ(std::memcmp(rank.mean.data(), ranks[0].mean.data(), rank.mean.size() * sizeof(float)), 0);
  }
}

/// Rows chosen with probability `density`, integer values (so that sums are exact in any order).
Rank random_rows(const Shape& shape, double density, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::bernoulli_distribution chosen(density);
  Rank rank;
  for (std::uint32_t row = 0; row < shape.rows; ++row) {
    if (!chosen(random)) continue;
    rank.indices.push_back(row);
    for (std::size_t i = 0; i < shape.width; ++i) {
      rank.values.push_back(static_cast<float>(static_cast<int>(random() % 41) - 20));
    }
  }
  return rank;
}

std::vector<float> dense_of(const Rank& rank, const Shape& shape) {
  std::vector<float> dense(shape.elements(), 0.0f);
  for (std::size_t k = 0; k < rank.indices.size(); ++k) {
    std::copy_n(rank.values.data() + k * shape.width, shape.width,
                dense.data() + rank.indices[k] * shape.width);
  }
  return dense;
}

std::vector<float> exact_mean(const std::vector<Rank>& ranks, const Shape& shape) {
  std::vector<float> sum(shape.elements(), 0.0f);
  for (const Rank& rank : ranks) {
    const auto dense = shape.row_sparse ? dense_of(rank, shape) : rank.values;
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += dense[i];
  }
  for (float& value : sum) value *= 1.0f / static_cast<float>(ranks.size());
  return sum;
}

double squares(const std::vector<float>& values) {
  double sum = 0;
  for (const float value : values) sum += static_cast<double>(value) * static_cast<double>(value);
  return sum;
}

double squared_distance(const std::vector<float>& a, const std::vector<float>& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double difference = static_cast<double>(a[i]) - static_cast<double>(b[i]);
    sum += difference * difference;
  }
  return sum;
}

TEST(S2Reducer, ExactModeLosesNothing) {
  for (const int world : {1, 2, 3, 5}) {
    for (const std::size_t width : {1u, 3u, 64u, 1000u}) {
      for (const double density : {0.0, 0.02, 0.5, 1.0}) {
        for (const int threads : {1, 3}) {
          SCOPED_TRACE(testing::Message() << world << " ranks, width " << width << " density " << density);
          const Shape shape{.rows = 131, .width = width};
          std::vector<Rank> ranks;
          for (int r = 0; r < world; ++r) {
            // One rank has nothing at all.
            ranks.push_back(random_rows(shape, r == 1 ? 0 : density, static_cast<std::uint32_t>(r)));
          }
          run("s2_reducer:lambda=exact", shape, ranks, 0, threads);
          EXPECT_EQ(ranks[0].mean, exact_mean(ranks, shape));

          Shape dense_shape{.rows = shape.elements(), .width = 1, .row_sparse = false};
          std::vector<Rank> dense_ranks(ranks.size());
          for (std::size_t r = 0; r < ranks.size(); ++r) dense_ranks[r].values = dense_of(ranks[r], shape);
          run("s2_reducer:lambda=exact:block=100", dense_shape, dense_ranks, 0, threads);
          EXPECT_EQ(dense_ranks[0].mean, exact_mean(ranks, shape));
        }
      }
    }
  }
}

TEST(S2Reducer, ZerosCountAsAbsentWhateverTheirSign) {
  const Shape shape{.rows = 10, .width = 2};
  std::vector<Rank> ranks(2);
  ranks[0].indices = {1, 4, 7};
  ranks[0].values = {-0.0f, 0.0f, 1, 2, 0, 0};
  ranks[1].indices = {4};
  ranks[1].values = {-1, -2};
  run("s2_reducer:lambda=exact", shape, ranks);
  EXPECT_EQ(ranks[0].listed, (std::set<std::uint32_t>{4}));
  EXPECT_EQ(ranks[0].mean, std::vector<float>(20, 0.0f));
  EXPECT_DOUBLE_EQ(ranks[0].report.density_in, 0.1);
  EXPECT_DOUBLE_EQ(ranks[0].report.density_out, 0.1);
}

TEST(S2Reducer, NothingAnywhereCostsTheCountsAlone) {
  const Shape shape{.rows = 1000, .width = 4};
  std::vector<Rank> ranks(3);
  run("s2_reducer", shape, ranks);
  EXPECT_TRUE(ranks[0].listed.empty());
  EXPECT_EQ(ranks[0].sent_bytes, 16u);
}

TEST(S2Reducer, ElementsOutsideTheUnionAreZero) {
  for (const std::size_t width : {1u, 7u, 64u, 300u}) {
    const Shape shape{.rows = 400, .width = width};
    std::vector<Rank> ranks;
    std::set<std::uint32_t> united;
    for (std::uint32_t r = 0; r < 3; ++r) {
      ranks.push_back(random_rows(shape, 0.05, r));
      auto& values = ranks.back().values;
      std::replace(values.begin(), values.end(), 0.0f, 1.0f);
      united.insert(ranks.back().indices.begin(), ranks.back().indices.end());
    }
    for (const char* spec : {"s2_reducer", "s2_reducer:rows=4:lambda=2", "s2_reducer:rows=3:run=16"}) {
      auto copies = ranks;
      run(spec, shape, copies, 0, 2);
      EXPECT_EQ(copies[0].listed, united) << spec;
      Shape dense_shape{.rows = shape.elements(), .width = 1, .row_sparse = false};
      std::vector<Rank> dense_ranks(3);
      for (std::size_t r = 0; r < 3; ++r) dense_ranks[r].values = dense_of(ranks[r], shape);
      run(std::string(spec) + ":block=" + std::to_string(width), dense_shape, dense_ranks, 0, 2);
      // The same elements, in the same blocks, with the same hashes.
      EXPECT_EQ(dense_ranks[0].mean, copies[0].mean) << spec;
    }
  }
}

TEST(S2Reducer, WithoutCollisionsTheMeanIsExact) {
  // One row of one run: its elements never share a column.
  const Shape shape{.rows = 50, .width = 64};
  std::vector<Rank> ranks(3);
  for (std::uint32_t r = 0; r < 3; ++r) {
    const Rank row = random_rows({.rows = 1, .width = 64}, 1, r);
    ranks[r].indices = {17};
    ranks[r].values = row.values;
  }
  run("s2_reducer:lambda=1", shape, ranks);
  EXPECT_EQ(ranks[0].mean, exact_mean(ranks, shape));
}

// Relative squared error gamma / lambda, here 1 / 0.5, 2 / 0.5 and 2 / 4. 60 steps of 8,000 elements each:
// the error of one step varies by about 3 %, their mean by less than 1 %; runs of 64 lower the expectation by
// 64/8000.
TEST(S2Reducer, TheErrorIsThatOfTheFormula) {
  const Shape shape{.rows = 500, .width = 64};
  struct Case {
    const char* spec;
    bool same_rows;
    double expected;
  };
  for (const Case& one :
       {Case{"s2_reducer", true, 2}, Case{"s2_reducer", false, 4}, Case{"s2_reducer:lambda=4", false, 0.5}}) {
    double error = 0;
    constexpr int kSteps = 60;
    for (int index = 0; index < kSteps; ++index) {
      std::vector<Rank> ranks(2);
      for (std::uint32_t r = 0; r < 2; ++r) {
        ranks[r] = random_rows({.rows = 125, .width = 64}, 1, 10 * static_cast<std::uint32_t>(index) + r);
        for (auto& row : ranks[r].indices) row = 4 * row + (one.same_rows ? 0 : r);
      }
      const auto truth = exact_mean(ranks, shape);
      run(one.spec, shape, ranks, static_cast<std::uint64_t>(index));
      error += squared_distance(ranks[0].mean, truth) / squares(truth) / kSteps;
    }
    EXPECT_NEAR(error, one.expected, 0.05 * one.expected) << one.spec;
  }
}

// Hashes are drawn anew at every step, so the noise averages out: z-test per element over 1,000 steps. Of
// 1,280 elements one exceeds 5.5 sigma with probability below 5e-5.
TEST(S2Reducer, TheMeanOverStepsIsUnbiased) {
  const Shape shape{.rows = 30, .width = 64};
  for (const char* spec : {"s2_reducer", "s2_reducer:rows=2:lambda=1", "s2_reducer:rows=3:lambda=1.5"}) {
    std::vector<Rank> ranks = {random_rows(shape, 0.6, 1), random_rows(shape, 0.6, 2)};
    const auto truth = exact_mean(ranks, shape);
    std::vector<double> sum(truth.size(), 0.0);
    std::vector<double> sum_of_squares(truth.size(), 0.0);
    constexpr int kSteps = 1000;
    run_in_process(2, [&](Communicator& communicator) {
      const Rank& rank = ranks[static_cast<std::size_t>(communicator.rank())];
      const Pipeline pipeline = make(spec);
      const auto executor = make_cpu_executor(1);
      Workspace workspace;
      for (std::uint64_t index = 0; index < kSteps; ++index) {
        workspace.reset();
        Step step{.communicator = communicator,
                  .executor = *executor,
                  .workspace = workspace,
                  .index = index,
                  .seed = 3};
        const RowSparse mean = pipeline.synchronizer->synchronize_rows(
            0, {rank.indices, rank.values, shape.rows, shape.width}, {}, step);
        if (communicator.rank() != 0) continue;
        for (std::size_t k = 0; k < mean.size(); ++k) {
          for (std::size_t i = 0; i < shape.width; ++i) {
            const std::size_t element = mean.row_indices[k] * shape.width + i;
            const auto value = static_cast<double>(mean.row(k)[i]);
            sum[element] += value;
            sum_of_squares[element] += value * value;
          }
        }
      }
    });
    for (std::size_t i = 0; i < truth.size(); ++i) {
      const double average = sum[i] / kSteps;
      const double deviation = std::sqrt(std::max(0.0, sum_of_squares[i] / kSteps - average * average));
      ASSERT_LE(std::fabs(average - static_cast<double>(truth[i])),
                5.5 * deviation / std::sqrt(kSteps) + 1e-5)
          << spec << " element " << i;
    }
  }
}

TEST(S2Reducer, AutoIsExactWhereTheUnionFitsTheBudget) {
  const Shape shape{.rows = 640, .width = 64};
  for (const bool same : {true, false}) {
    std::vector<Rank> ranks(4);
    for (std::uint32_t r = 0; r < 4; ++r) {
      ranks[r] = random_rows({.rows = 20, .width = 64}, 1, r);
      for (auto& row : ranks[r].indices) row = 4 * row + (same ? 0 : r);
    }
    const auto truth = exact_mean(ranks, shape);
    run("s2_reducer:lambda=auto:budget=3", shape, ranks);
    // gamma is 1 or 4; the budget of 3 * 20 * 64 floats is spent in the second case alone.
    EXPECT_EQ(ranks[0].mean == truth, same);
    const std::uint64_t floats = same ? 20 * 64 : 3 * 20 * 64;
    EXPECT_EQ(ranks[0].sent_bytes, 3 * 8 + 8 * (2 * 10 - 2 - 3) + 4 * floats * 3 / 2);
  }
}

TEST(S2Reducer, PayloadBytesAreThoseOfAStepThatMatchesTheWorkload) {
  const Shape shape{.rows = 1000, .width = 64};
  for (const char* spec :
       {"s2_reducer", "s2_reducer:rows=3", "s2_reducer:lambda=exact", "s2_reducer:lambda=auto"}) {
    std::vector<Rank> ranks(3);
    for (std::uint32_t r = 0; r < 3; ++r) {
      ranks[r] = random_rows({.rows = 100, .width = 64}, 1, r);
      for (auto& row : ranks[r].indices) row = 3 * row + r;
    }
    run(spec, shape, ranks);
    for (int r = 0; r < 3; ++r) {
      EXPECT_EQ(make(spec).synchronizer->payload_bytes({.elements = shape.elements(),
                                                        .row_width = 64,
                                                        .row_sparse = true,
                                                        .density = 0.1,
                                                        .densification = 3,
                                                        .world_size = 3,
                                                        .rank = r}),
                ranks[static_cast<std::size_t>(r)].sent_bytes)
          << spec;
    }
  }
}

// One row, scaled by 1/(1 + a) with a = (N-1)/columns: E|p - out|^2 = a/(1+a) |p|^2. Elements of a run do not
// meet, which lowers it by 64/8000 at most; the mean of 60 steps varies by less than 1 %.
TEST(S2Reducer, ShrunkEstimatesContract) {
  const Shape shape{.rows = 125, .width = 64};
  double error = 0;
  constexpr int kSteps = 60;
  for (int index = 0; index < kSteps; ++index) {
    std::vector<Rank> ranks = {random_rows(shape, 1, static_cast<std::uint32_t>(index))};
    const auto truth = exact_mean(ranks, shape);
    run("s2_reducer:shrink=on", shape, ranks, static_cast<std::uint64_t>(index));
    error += squared_distance(ranks[0].mean, truth) / squares(truth) / kSteps;
  }
  EXPECT_NEAR(error, 2.0 / 3, 0.03);
}

/// sum of p = W * mean + sum of residuals, for rows that are given a residual.
void expect_conserved(const std::vector<Rank>& before, const std::vector<Rank>& after, const Shape& shape) {
  const double world = static_cast<double>(before.size());
  for (std::size_t i = 0; i < shape.elements(); ++i) {
    double in = 0;
    double out = world * static_cast<double>(after[0].mean[i]);
    double magnitude = std::fabs(out) + 1;
    for (std::size_t r = 0; r < before.size(); ++r) {
      in += static_cast<double>(dense_of(before[r], shape)[i]) + static_cast<double>(before[r].residual[i]);
      out += static_cast<double>(after[r].residual[i]);
      magnitude += std::fabs(static_cast<double>(after[r].residual[i]));
    }
    ASSERT_NEAR(in, out, 1e-6 * magnitude) << i;
  }
}

TEST(S2Reducer, RowsWithAResidualConserveAndStayBounded) {
  const Shape shape{.rows = 60, .width = 20};
  for (const char* spec : {"s2_reducer:lambda=exact:feedback=on", "s2_reducer:shrink=on:feedback=on"}) {
    std::vector<Rank> ranks(3);
    for (Rank& rank : ranks) rank.residual.assign(shape.elements(), 0.0f);
    for (std::uint32_t index = 0; index < 60; ++index) {
      for (std::uint32_t r = 0; r < 3; ++r) {
        const Rank fresh = random_rows(shape, 0.1, 100 * index + r);
        ranks[r].indices = fresh.indices;
        ranks[r].values = fresh.values;
      }
      // A row that the residual cancels.
      if (!ranks[0].indices.empty()) {
        const std::size_t row = ranks[0].indices[0] * shape.width;
        for (std::size_t i = 0; i < shape.width; ++i) ranks[0].residual[row + i] = -ranks[0].values[i];
      }
      const auto before = ranks;
      run(spec, shape, ranks, index);
      expect_conserved(before, ranks, shape);
      if (std::string(spec).find("exact") != std::string::npos) {
        EXPECT_EQ(squares(ranks[0].residual), 0);
      }
    }
    // About 120 gradients' worth came in per rank and element; a residual that grew without bound would be
    // past 1e10 by now.
    EXPECT_LT(squares(ranks[0].residual), 1e7) << spec;
  }
}

TEST(S2Reducer, BadValuesReachEveryRankAndChangeNothing) {
  const Shape shape{.rows = 100, .width = 3};
  for (const float bad : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    for (const bool in_residual : {false, true}) {
      std::vector<Rank> ranks(3);
      for (std::uint32_t r = 0; r < 3; ++r) {
        ranks[r] = random_rows(shape, 0.1, r);
        ranks[r].residual.assign(shape.elements(), 1.0f);
      }
      (in_residual ? ranks[2].residual : ranks[2].values)[4] = bad;
      const auto residual = ranks[1].residual;
      run("s2_reducer:shrink=on:feedback=on", shape, ranks);
      EXPECT_FALSE(ranks[0].report.finite);
      EXPECT_EQ(ranks[1].residual, residual);
    }
  }
  // Finite values whose sum is not.
  std::vector<Rank> ranks(2);
  for (Rank& rank : ranks) rank.values.assign(64, 3e38f);
  run("s2_reducer:lambda=4", {.rows = 64, .row_sparse = false}, ranks);
  EXPECT_FALSE(ranks[0].report.finite);
}

/// Rank 0 runs the system; rank 1 sends what `other` says.
void expect_corrupt(const std::function<void(Communicator&)>& other, const std::string& complaint) {
  run_in_process(2, [&](Communicator& communicator) {
    if (communicator.rank() == 1) return other(communicator);
    const Pipeline pipeline = make("s2_reducer");
    const auto executor = make_cpu_executor(1);
    Workspace workspace;
    Step step{.communicator = communicator, .executor = *executor, .workspace = workspace};
    std::vector<float> values(1000, 1.0f);
    try {
      pipeline.synchronizer->synchronize(0, values, {}, step);
      ADD_FAILURE() << "nothing was thrown";
    } catch (const CorruptFrame& error) {
      EXPECT_NE(std::string(error.what()).find(complaint), std::string::npos) << error.what();
    }
  });
}

void announce(Communicator& communicator, std::uint64_t count) {
  std::vector<std::uint64_t> all(2);
  communicator.all_gather(as_bytes(Span<const std::uint64_t>(&count, 1)),
                          as_writable_bytes(Span<std::uint64_t>(all)));
}

TEST(S2Reducer, CountsAndBitmapsThatCannotBeAreRefused) {
  expect_corrupt([](Communicator& communicator) { announce(communicator, 1001); }, "announces 1001 elements");
  expect_corrupt(
      [](Communicator& communicator) {
        announce(communicator, 256);
        std::vector<std::uint64_t> bits = {1u << 4};  // the bucket has blocks 0 to 3
        communicator.all_reduce_or(bits);
      },
      "beyond the last");
}

TEST(S2Reducer, CombinationsWithoutMeaningAreRefusedWithTheReason) {
  auto complaint = [](const std::string& spec) -> std::string {
    try {
      make(spec);
    } catch (const std::invalid_argument& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_NE(complaint("s2_reducer:feedback=on").find("diverges"), std::string::npos);
  EXPECT_NE(complaint("s2_reducer:lambda=auto:feedback=on").find("diverges"), std::string::npos);
  EXPECT_EQ(complaint("s2_reducer:lambda=auto:feedback=on:shrink=on"), "");
  EXPECT_NE(complaint("s2_reducer:shrink=on:rows=3").find("one row only"), std::string::npos);
  EXPECT_NE(complaint("s2_reducer:shrink=on:lambda=exact").find("nothing to shrink"), std::string::npos);
  EXPECT_NE(complaint("s2_reducer:lambda=many").find("or exact, or auto"), std::string::npos);
  EXPECT_NE(complaint("s2_reducer:lambda=0").find("lambda=0"), std::string::npos);
  EXPECT_NE(complaint("s2_reducer:rows=32").find("rows=32"), std::string::npos);
  EXPECT_NE(complaint("s2_reducer:run=48").find("run=48"), std::string::npos);
  run_in_process(1, [&](Communicator& communicator) {
    const Pipeline pipeline = make("s2_reducer:shrink=on:feedback=on");
    const auto executor = make_cpu_executor(1);
    Workspace workspace;
    Step step{.communicator = communicator, .executor = *executor, .workspace = workspace};
    std::vector<float> residual(3);
    const RowSparse empty{.rows = 2, .width = 2};
    EXPECT_THROW(pipeline.synchronizer->synchronize_rows(0, empty, residual, step), std::invalid_argument);
  });
}

}  // namespace
}  // namespace thinwire::s2_reducer_test
