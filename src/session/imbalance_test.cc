// Who carries how much: hashed owners against even slices, on gradients whose hot rows lie side by side.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <set>

#include "tests/sanitized.h"
#include "thinwire/in_process.h"
#include "thinwire/session.h"

namespace thinwire::imbalance_test {
namespace {

struct Imbalance {
  double push = 0;
  double pull = 0;
};

/// Largest over ranks in the second step. Row indices are drawn by a
/// power law from the beginning of the table on, or uniformly.
Imbalance measured(const std::string& spec, int world, std::size_t rows, std::size_t nonzeros, bool skewed) {
  std::vector<Imbalance> each(static_cast<std::size_t>(world));
  run_in_process(world, [&](Communicator& communicator) {
    Session session(spec, communicator, {.seed = 5});
    const BucketId table = session.add_rows("table", rows, 1);
    std::mt19937_64 random(static_cast<std::uint64_t>(communicator.rank()));
    std::set<std::uint32_t> chosen;
    while (chosen.size() < nonzeros) {
      const double u = static_cast<double>(random() >> 11) * 0x1p-53;
      const double at = skewed ? std::pow(static_cast<double>(rows), u) - 1 : u * static_cast<double>(rows);
      chosen.insert(static_cast<std::uint32_t>(at));
    }
    const std::vector<std::uint32_t> indices(chosen.begin(), chosen.end());
    const std::vector<float> values(indices.size(), 1.0f);
    for (int step = 0; step < 2; ++step) {
      session.synchronize_rows(table, {.row_indices = indices, .values = values, .rows = rows, .width = 1});
      session.next_step();
    }
    const StepReport& report = session.report(table);
    each[static_cast<std::size_t>(communicator.rank())] = {report.imbalance_push, report.imbalance_pull};
  });
  Imbalance most;
  for (const auto& one : each) {
    EXPECT_EQ(one.pull, each[0].pull);  // everyone saw every result
    most.push = std::max(most.push, one.push);
    most.pull = std::max(most.pull, one.pull);
  }
  return most;
}

TEST(Imbalance, ZenIsBelowATenthWhereEvenSlicesAreNot) {
  for (const int world : {4, 8, 16}) {
    if (kSanitized && world > 4) break;
    const auto needed =
        static_cast<std::size_t>(std::ceil(400.0 * world * std::log(static_cast<double>(world))));
    for (const bool skewed : {false, true}) {
      SCOPED_TRACE(testing::Message() << world << " ranks, " << (skewed ? "skewed" : "uniform"));
      const Imbalance zen = measured("zen:scheme=push_pull", world, 2'000'000, needed, skewed);
      EXPECT_LT(zen.push, 1.1);
      EXPECT_LT(zen.pull, 1.1);
      EXPECT_GE(zen.push, 1.0);
      if (!skewed) continue;
      const Imbalance slices = measured("sparse_ps", world, 2'000'000, needed, skewed);
      EXPECT_GT(slices.push, 2.0);
      EXPECT_GT(slices.pull, 1.5);
      EXPECT_GT(measured("omnireduce", world, 2'000'000, needed, skewed).push, 1.5);
    }
  }
}

/// Clustered non-zeros, a block's worst case, in numbers that let zen keep blocks of 4 together: the rank
/// with fewest decides.
TEST(Imbalance, BlocksOfNeighboursStayBalancedOnTheRankWithFewest) {
  constexpr int kWorld = 4;
  const auto needed = static_cast<std::uint32_t>(std::ceil(400.0 * kWorld * std::log(4.0)));
  std::vector<double> push(kWorld);
  run_in_process(kWorld, [&](Communicator& communicator) {
    const auto rank = static_cast<std::uint32_t>(communicator.rank());
    Session session("zen:scheme=push_pull", communicator, {.seed = 5});
    const BucketId table = session.add_rows("table", 2'000'000, 1);
    std::vector<std::uint32_t> indices;
    const std::uint32_t count = rank == 0 ? 5 * needed : 40 * needed;
    for (std::uint32_t i = 0; i < count; ++i) indices.push_back(rank * 400'000 + i);
    const std::vector<float> values(indices.size(), 1.0f);
    for (int step = 0; step < 3; ++step) {
      session.synchronize_rows(table,
                               {.row_indices = indices, .values = values, .rows = 2'000'000, .width = 1});
      session.next_step();
    }
    push[rank] = session.report(table).imbalance_push;
  });
  for (const double one : push) EXPECT_LT(one, 1.1);
}

}  // namespace
}  // namespace thinwire::imbalance_test
