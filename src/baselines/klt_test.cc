#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>
#include <sstream>

#include "baselines/low_rank_runner.h"
#include "kernels/test_vectors.h"
#include "thinwire/session.h"

namespace thinwire::klt_test {
namespace {

using low_rank_test::matrix_of;
using low_rank_test::norm;
using low_rank_test::same_bits;

/// A tall and a wide matrix, one that is cut on both kinds of sides, one whose shorter side is no power of
/// two, vectors, and one of unknown shape.
const BucketLayout kLayout = {{"tall", 600 * 32, 600},      {"bias", 10, 10},     {"wide", 48 * 200, 48},
                              {"cut", 300 * 260, 300},      {"odd", 40 * 21, 40}, {"scalar", 1, 1},
                              {"wide cut", 140 * 150, 140}, {"unknown", 500, 0}};

std::size_t elements_of(const BucketLayout& layout) {
  std::size_t elements = 0;
  for (const Parameter& parameter : layout) elements += parameter.elements;
  return elements;
}

/// Near few directions, and a little beside them; other values on each rank and in each step.
std::vector<float> gradient_of(const BucketLayout& layout, int rank, int step) {
  std::vector<float> gradient;
  for (const Parameter& parameter : layout) {
    const std::size_t rows = std::max<std::size_t>(1, parameter.rows);
    const auto main = matrix_of(rows, parameter.elements / rows, {1, 0.3});
    const auto seed = static_cast<std::uint32_t>(100 * rank + step);
    const auto beside = normal_values(parameter.elements, seed);
    const auto along = normal_values(rows, seed + 50);
    for (std::size_t i = 0; i < parameter.elements; ++i) {
      gradient.push_back(main[i] * along[i / (parameter.elements / rows)] + 0.02f * beside[i]);
    }
  }
  return gradient;
}

struct Outcome {
  std::vector<float> gradient;
  std::vector<float> mean;
  std::vector<float> residual;
  StepReport report;
};

Outcome take_step(Session& session, int rank, int step, const BucketLayout& layout = kLayout) {
  Outcome outcome{gradient_of(layout, rank, step), {}, {}, {}};
  outcome.mean = outcome.gradient;
  outcome.report = session.synchronize(0, outcome.mean);
  const auto residual = session.residual(0);
  outcome.residual.assign(residual.begin(), residual.end());
  session.next_step();
  return outcome;
}

TEST(Klt, RanksAgreeAndNothingIsLostInMatricesOfAllShapes) {
  const std::size_t elements = elements_of(kLayout);
  constexpr int kSteps = 5;  // the last one has directions of the third renewal
  for (const int world : {1, 2, 3, 4}) {
    const auto ranks = static_cast<std::size_t>(world);
    for (const char* spec : {"klt", "klt:step=2:every=3"}) {
      std::vector<std::vector<Outcome>> steps(ranks);
      run_in_process(world, [&](Communicator& communicator) {
        Session session(spec, communicator);
        session.add_bucket(kLayout);
        for (int step = 0; step < kSteps; ++step) {
          steps[static_cast<std::size_t>(communicator.rank())].push_back(
              take_step(session, communicator.rank(), step));
        }
      });
      std::vector<double> before(elements, 0);
      for (std::size_t step = 0; step < kSteps; ++step) {
        std::vector<double> left = before;
        std::vector<double> sizes(elements, 0);
        std::ranges::fill(before, 0);
        for (std::size_t rank = 0; rank < ranks; ++rank) {
          const Outcome& outcome = steps[rank][step];
          ASSERT_TRUE(same_bits(outcome.mean, steps[0][step].mean));
          EXPECT_EQ(outcome.report.wire.sent_bytes,
                    outcome.report.formula_bytes + outcome.report.frame_header_bytes);
          EXPECT_NEAR(outcome.report.residual_norm, norm(outcome.residual), 1e-4 * norm(outcome.residual));
          const auto& gradient = outcome.gradient;
          for (std::size_t i = 0; i < elements; ++i) {
            left[i] += static_cast<double>(gradient[i]) - static_cast<double>(outcome.mean[i]);
            before[i] += static_cast<double>(outcome.residual[i]);
            sizes[i] += std::fabs(static_cast<double>(gradient[i])) +
                        std::fabs(static_cast<double>(outcome.residual[i])) + 1;
          }
        }
        for (std::size_t i = 0; i < elements; ++i) ASSERT_NEAR(left[i], before[i], 1e-5 * sizes[i]) << i;
      }
    }
  }
}

/// Sum of the payload bytes of the bucket's steps [from, to) on rank 0. The session took `before` steps
/// without it.
std::uint64_t bytes_of(const std::string& spec, const BucketLayout& layout, int from, int to,
                       int before = 0) {
  std::uint64_t bytes = 0;
  run_in_process(2, [&](Communicator& communicator) {
    Session session(spec, communicator);
    session.add_bucket(layout);
    for (int step = 0; step < before; ++step) session.next_step();
    for (int step = 0; step < to; ++step) {
      const Outcome outcome = take_step(session, communicator.rank(), step, layout);
      if (communicator.rank() == 0 && step >= from) bytes += outcome.report.formula_bytes;
    }
  });
  return bytes;
}

TEST(Klt, WhatLiesNearFewDirectionsTakesFewerBytes) {
  // Steps 4 to 6 find no directions.
  const BucketLayout matrix = {{"matrix", 2000 * 64, 2000}};
  const std::uint64_t plain = bytes_of("ecsq:step=0.3", matrix, 4, 7);
  EXPECT_LT(2 * bytes_of("klt:step=0.3", matrix, 4, 7), plain);
  // A vector has none, and takes what it takes there.
  const BucketLayout vector = {{"vector", 128'000, 128'000}};
  const auto of_vector = static_cast<double>(bytes_of("klt:step=0.3", vector, 4, 7));
  EXPECT_NEAR(of_vector, static_cast<double>(bytes_of("ecsq:step=0.3", vector, 4, 7)), 0.03 * of_vector);
}

TEST(Klt, EveryRowIsOffByItsOwnSize) {
  for (const BucketLayout& layout : {BucketLayout{{"table", 512 * 32, 512}}, {{"matrix", 128 * 32, 128}}}) {
    run_in_process(2, [&](Communicator& communicator) {
      Session session("klt:feedback=off", communicator);
      session.add_bucket(layout);
      for (int step = 0; step < 20; ++step) {
        // Rows a thousand times apart, the same on both ranks.
        auto gradient = normal_values(elements_of(layout), static_cast<std::uint32_t>(step + 1));
        for (std::size_t i = 0; i < gradient.size(); ++i) gradient[i] *= i / 32 % 8 < 4 ? 1.0f : 1e-3f;
        const auto exact = gradient;
        session.synchronize(0, gradient);
        // Four rows share a block of levels before their lengths are known.
        for (std::size_t begin = 0; begin < exact.size(); begin += 4 * 32) {
          double size = 0;
          double off = 0;
          for (std::size_t i = begin; i < begin + 4 * 32; ++i) {
            const auto value = static_cast<double>(exact[i]);
            size += value * value;
            off += (value - static_cast<double>(gradient[i])) * (value - static_cast<double>(gradient[i]));
          }
          EXPECT_LT(std::sqrt(off), 0.25 * std::sqrt(size)) << step << ", " << begin / 32;
        }
        session.next_step();
      }
    });
  }
}

/// Bytes of a matrix's later steps. It lies near 8 directions on either side; `flips` gives each row another
/// sign in each step, so that rows have nothing in common with each other any more.
std::uint64_t bytes_of_both_sides(bool flips) {
  constexpr std::size_t kSide = 128;
  std::uint64_t bytes = 0;
  run_in_process(2, [&](Communicator& communicator) {
    Session session("klt", communicator);
    session.add_bucket({{"matrix", kSide * kSide, kSide}});
    for (int step = 0; step < 40; ++step) {
      const auto seed = static_cast<std::uint32_t>(3 * (2 * step + communicator.rank()));
      const auto inner = normal_values(64, seed);
      const auto signs = normal_values(kSide, seed + 1);
      auto gradient = normal_values(kSide * kSide, seed + 2);
      for (std::size_t i = 0; i < gradient.size(); ++i) {
        const auto row = static_cast<float>(i / kSide);
        const auto column = static_cast<float>(i % kSide);
        for (std::size_t k = 0; k < 64; ++k) {
          gradient[i] += 6.0f * inner[k] * std::sin(0.1f * (static_cast<float>(k / 8) + 1) * row) *
                         std::sin(0.1f * (static_cast<float>(k % 8) + 1) * column);
        }
        if (flips && signs[i / kSide] < 0) gradient[i] = -gradient[i];
      }
      const StepReport report = session.synchronize(0, gradient);
      if (communicator.rank() == 0 && step >= 30) bytes += report.formula_bytes;
      session.next_step();
    }
  });
  return bytes;
}

/// A row that has its first gradient has no length yet. It must not make the step of its group coarse.
TEST(Klt, ARowThatWakesDoesNotStarveTheOthers) {
  constexpr std::size_t kRows = 2048, kWidth = 64;
  for (const bool table : {true, false}) {
    const BucketLayout layout =
        table ? BucketLayout{{"table", kRows * kWidth, kRows}} : BucketLayout{{"matrix", 128 * kWidth, 128}};
    const std::size_t rows = layout[0].rows;
    run_in_process(2, [&](Communicator& communicator) {
      Session session("klt", communicator);
      session.add_bucket(layout);
      std::vector<float> residual(rows * kWidth, 0.0f);
      for (std::size_t step = 0; step < 40; ++step) {
        // Of the table one row in 30, others in each step; of the matrix all but the first, which wakes.
        auto gradient = test_values(
            rows * kWidth, static_cast<unsigned>(3 * step) + 1 + static_cast<unsigned>(communicator.rank()));
        for (std::size_t row = 0; row < rows; ++row) {
          const bool active = table ? (row * 7 + step * 11) % 30 == 0 : row > 0 || step >= 20;
          if (active) continue;
          std::fill_n(gradient.begin() + static_cast<std::ptrdiff_t>(row * kWidth), kWidth, 0.0f);
        }
        for (std::size_t i = 0; i < residual.size(); ++i) residual[i] += gradient[i];
        const double p = norm(residual);
        session.synchronize(0, gradient);
        const auto left = session.residual(0);
        residual.assign(left.begin(), left.end());
        session.next_step();
        EXPECT_LT(norm(residual), 0.3 * p) << (table ? "table, step " : "matrix, step ") << step;
      }
    });
  }
}

/// A table's rows that are 64 wide share blocks of 128. Its levels travel by direction all the same.
TEST(Klt, LevelsOfNarrowTablesTravelByDirection) {
  constexpr std::size_t kRows = 2048, kWidth = 64;
  std::uint64_t bytes = 0;
  run_in_process(2, [&](Communicator& communicator) {
    Session session("klt", communicator);
    session.add_bucket({{"table", kRows * kWidth, kRows}});
    for (int step = 0; step < 12; ++step) {
      auto gradient =
          normal_values(kRows * kWidth, static_cast<std::uint32_t>(2 * step + communicator.rank()));
      // Directions from 1 down to a thousandth.
      for (std::size_t i = 0; i < gradient.size(); ++i) {
        gradient[i] *= std::exp2(-10.0f * static_cast<float>(i % kWidth) / kWidth);
      }
      const StepReport report = session.synchronize(0, gradient);
      if (communicator.rank() == 0 && step == 11) bytes = report.formula_bytes;
      session.next_step();
    }
  });
  // As many elements travel as the table has: a half up and a half down. Row by row each takes 3.2 bits.
  EXPECT_LT(8.0 * static_cast<double>(bytes), 2.2 * kRows * kWidth);
}

/// One gradient far larger than all others leaves the row's steps nearly as they were.
TEST(Klt, ASpikeMakesNoRowCoarse) {
  constexpr std::size_t kRows = 128, kWidth = 64;
  run_in_process(2, [&](Communicator& communicator) {
    Session session("klt:feedback=off", communicator);
    session.add_bucket({{"matrix", kRows * kWidth, kRows}});
    for (int step = 0; step < 60; ++step) {
      auto gradient = normal_values(kRows * kWidth, static_cast<std::uint32_t>(step + 1));
      for (std::size_t k = 0; step == 30 && k < kWidth; ++k) gradient[5 * kWidth + k] *= 1e4f;
      const std::vector<float> exact(gradient.begin() + 5 * kWidth, gradient.begin() + 6 * kWidth);
      session.synchronize(0, gradient);
      session.next_step();
      double off = 0;
      for (std::size_t k = 0; k < kWidth; ++k) {
        off += std::pow(static_cast<double>(exact[k]) - static_cast<double>(gradient[5 * kWidth + k]), 2);
      }
      if (step <= 30) continue;
      EXPECT_LT(std::sqrt(off), 0.4 * norm(exact)) << step;
    }
  });
}

/// Steps before a bucket's first one take nothing from how quickly it learns.
TEST(Klt, ItsOwnStepsCount) {
  const BucketLayout matrix = {{"matrix", 2000 * 64, 2000}};
  const std::uint64_t begun = bytes_of("klt:every=1000", matrix, 4, 7);
  EXPECT_EQ(bytes_of("klt:every=1000", matrix, 4, 7, 50), begun);
}

TEST(Klt, BothSidesAreTurned) {
  EXPECT_LT(10 * bytes_of_both_sides(false), 8 * bytes_of_both_sides(true));
}

TEST(Klt, RanksThatHaveLearnedOtherThingsAreRefused) {
  const BucketLayout layout = {{"matrix", 128 * 16, 128}};
  std::array<std::stringstream, 2> files;
  for (std::size_t rank = 0; rank < 2; ++rank) {
    run_in_process(1, [&](Communicator& communicator) {
      Session session("klt", communicator);
      session.add_bucket(layout);
      auto gradient = normal_values(128 * 16, static_cast<std::uint32_t>(rank + 1));
      session.synchronize(0, gradient);
      session.next_step();
      StateWriter writer;
      session.save(writer);
      writer.write(files[rank]);
    });
  }
  std::array<std::string, 2> errors;
  run_in_process(2, [&](Communicator& communicator) {
    const auto rank = static_cast<std::size_t>(communicator.rank());
    Session session("klt", communicator);
    session.add_bucket(layout);
    session.load(StateReader(files[rank]));
    auto gradient = normal_values(128 * 16, 3);
    try {
      session.synchronize(0, gradient);
    } catch (const std::exception& error) {
      errors[rank] = error.what();
    }
  });
  EXPECT_NE((errors[0] + errors[1]).find("no longer have the same directions"), std::string::npos)
      << "[" << errors[0] << "] [" << errors[1] << "]";
}

TEST(Klt, ATrainingResumesBitForBit) {
  std::vector<float> without;
  std::vector<float> resumed;
  run_in_process(2, [&](Communicator& communicator) {
    Session first("klt:every=4", communicator);
    first.add_bucket(kLayout);
    std::stringstream file;
    for (int step = 0; step < 9; ++step) {
      if (step == 6) {
        StateWriter writer;
        first.save(writer);
        writer.write(file);
      }
      const Outcome outcome = take_step(first, communicator.rank(), step);
      if (communicator.rank() == 0) without = outcome.mean;
    }
    Session second("klt:every=4", communicator);
    second.add_bucket(kLayout);
    second.load(StateReader(file));
    for (int step = 6; step < 9; ++step) {
      const Outcome outcome = take_step(second, communicator.rank(), step);
      if (communicator.rank() == 0) resumed = outcome.mean;
    }
  });
  EXPECT_TRUE(same_bits(without, resumed));
}

TEST(Klt, AStepThatIsUndoneLeavesTheDirectionsAsTheyWere) {
  std::vector<float> without;
  std::vector<float> again;
  for (std::vector<float>* last : {&without, &again}) {
    run_in_process(2, [&](Communicator& communicator) {
      Session session("klt:every=1", communicator);
      session.add_bucket(kLayout);
      for (int step = 0; step < 4; ++step) {
        if (step == 2 && last == &again) {
          // Other values, so that other directions would be found.
          auto gradient = gradient_of(kLayout, communicator.rank(), 77);
          session.synchronize(0, gradient);
          session.undo_step();
        }
        const Outcome outcome = take_step(session, communicator.rank(), step);
        if (communicator.rank() == 0) *last = outcome.mean;
      }
    });
  }
  EXPECT_TRUE(same_bits(without, again));
}

TEST(Klt, DirectionsStayOrthonormalHoweverOftenTheyAreFound) {
  const BucketLayout layout = {{"eight", 64 * 8, 64}, {"two", 200 * 2, 200}};
  run_in_process(2, [&](Communicator& communicator) {
    Session session("klt:every=1", communicator);
    session.add_bucket(layout);
    for (int step = 0; step < 3000; ++step) {
      auto gradient = normal_values(912, static_cast<std::uint32_t>(2 * step + communicator.rank()));
      ASSERT_TRUE(session.synchronize(0, gradient).finite) << step;
      session.next_step();
    }
    EXPECT_LT(norm({session.residual(0).begin(), session.residual(0).end()}), 2 * std::sqrt(912.0));
  });
}

TEST(Klt, DirectionsFollowTheirParametersIntoOtherBuckets) {
  const BucketLayout first = {{"a", 60 * 16, 60}, {"b", 30, 30}};
  const BucketLayout second = {{"c", 20 * 40, 20}};
  const BucketLayout both = {first[0], first[1], second[0]};
  run_in_process(2, [&](Communicator& communicator) {
    std::stringstream file;
    {
      Session session("klt", communicator);
      session.add_bucket(first);
      session.add_bucket(second);
      // The second bucket takes no step: its parameter begins with the axes.
      auto gradient = gradient_of(first, communicator.rank(), 1);
      session.synchronize(0, gradient);
      session.next_step();
      StateWriter writer;
      session.save(writer);
      writer.write(file);
    }
    Session session("klt", communicator);
    session.add_bucket(both);
    session.load(StateReader(file));
    const Outcome outcome = take_step(session, communicator.rank(), 3, both);
    EXPECT_TRUE(outcome.report.finite);
  });
}

/// What the session says of a state whose bucket has learned `learned`.
std::string complaint_of(const BucketLayout& layout, const std::vector<float>& learned) {
  std::string complaint = "loaded";
  run_in_process(1, [&](Communicator& communicator) {
    StateWriter writer;
    Session session("klt", communicator);
    session.add_bucket(layout);
    session.save(writer);
    const std::vector<BucketLayout> layouts = {layout};
    BucketWriter(writer, layouts).array({.name = "klt_directions"}, 0, 0, Span<const float>(learned));
    try {
      session.load(StateReader(std::move(writer)));
    } catch (const std::runtime_error& error) {
      complaint = error.what();
    }
  });
  return complaint;
}

TEST(Klt, AStateThatCannotHaveBeenLearnedIsRefused) {
  const BucketLayout layout = {{"a", 60 * 16, 60}};
  // 16 directions of rows, and among these 32, 16 and 8; each with their products and lengths of rows; steps.
  constexpr std::size_t kLearned = 2 * (256 + 1024 + 256 + 64) + 32 + 16 + 8 + 1;
  for (const float value : {std::numeric_limits<float>::quiet_NaN(), 0.0f, 1e30f}) {
    const std::string complaint = complaint_of(layout, std::vector<float>(kLearned, value));
    EXPECT_NE(complaint.find("has the squared length"), std::string::npos) << complaint;
  }
  std::vector<float> learned(kLearned, 0.0f);
  std::size_t begin = 0;
  for (const std::size_t n : {16, 32, 16, 8}) {
    for (std::size_t k = 0; k < n; ++k) learned[begin + k * (n + 1)] = 1;
    begin += 2 * n * n + (begin == 0 ? 0 : n);
  }
  EXPECT_EQ(complaint_of(layout, learned), "loaded");
  for (const float steps : {-1.0f, 1.5f, 1e30f, std::numeric_limits<float>::quiet_NaN()}) {
    learned.back() = steps;
    const std::string complaint = complaint_of(layout, learned);
    EXPECT_NE(complaint.find("expected a whole number up to"), std::string::npos) << complaint;
  }
  learned.back() = 3;
  learned[300] = std::numeric_limits<float>::infinity();
  EXPECT_NE(complaint_of(layout, learned).find("not finite"), std::string::npos);
}

TEST(Klt, WhatIsNotFiniteIsToldToAllAndZerosDoNoHarm) {
  run_in_process(3, [&](Communicator& communicator) {
    Session session("klt:every=2", communicator);
    session.add_bucket(kLayout);
    for (int step = 0; step < 6; ++step) {
      std::vector<float> gradient(elements_of(kLayout), 0.0f);
      if (step % 2 == 0) gradient = gradient_of(kLayout, communicator.rank(), step);
      const bool bad = step == 3 || step == 4;
      if (bad && communicator.rank() == 1) {
        gradient[700] =
            step == 3 ? std::numeric_limits<float>::infinity() : std::numeric_limits<float>::max();
      }
      EXPECT_EQ(session.synchronize(0, gradient).finite, !bad) << step;
      session.next_step();
      for (const float value : session.residual(0)) ASSERT_TRUE(std::isfinite(value));
    }
  });
}

}  // namespace
}  // namespace thinwire::klt_test
