// Every collective and message on ranks that are threads of one process.

#include <gtest/gtest.h>

#include "tests/collectives_cases.h"
#include "thinwire/errors.h"
#include "thinwire/in_process.h"

namespace thinwire {
namespace {

class CollectivesThreads : public ::testing::TestWithParam<int> {};

TEST_P(CollectivesThreads, AllCases) {
  EXPECT_NO_THROW(run_in_process(
      GetParam(), [](Communicator& communicator) { testing::CollectivesCases(communicator).run(); },
      std::chrono::seconds(60)));
}

INSTANTIATE_TEST_SUITE_P(Ranks, CollectivesThreads, ::testing::Values(1, 2, 3, 4, 5, 8));

TEST(CollectivesThreads, ManyPiecesPerSegment) {
  // 24 MB per rank and hop, far more pieces than any window of messages under way.
  constexpr std::size_t kElements = 12'000'000;
  EXPECT_NO_THROW(run_in_process(
      2,
      [](Communicator& communicator) {
        std::vector<float> values(kElements, static_cast<float>(communicator.rank() + 1));
        communicator.all_reduce_sum(values);
        for (const float value : values) testing::require(value == 3.0f, "wrong sum");
      },
      std::chrono::seconds(20)));
}

TEST(CollectivesThreads, AMessageOfAnotherSizeIsCorrupt) {
  for (const std::size_t sent : {std::size_t{3}, std::size_t{5}}) {
    EXPECT_THROW(run_in_process(
                     2, [&](Communicator& communicator) { testing::check_wrong_size(communicator, sent, 4); },
                     std::chrono::seconds(10)),
                 CorruptFrame);
  }
}

}  // namespace
}  // namespace thinwire
