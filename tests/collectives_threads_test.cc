// Every collective and message on the engines whose ranks are threads of one process.

#include <gtest/gtest.h>

#include "tests/collectives_cases.h"
#include "tests/sanitized.h"
#include "thinwire/errors.h"
#include "thinwire/in_process.h"
#include "thinwire/virtual_network.h"

namespace thinwire {
namespace {

void run_on(const std::string& engine, int ranks, const std::function<void(Communicator&)>& body) {
  if (engine == "virtual") return run_virtual(ranks, {}, body);
  run_in_process(ranks, body, std::chrono::seconds(60));
}

class CollectivesThreads : public ::testing::TestWithParam<std::tuple<std::string, int>> {};

TEST_P(CollectivesThreads, AllCases) {
  const auto& [engine, ranks] = GetParam();
  EXPECT_NO_THROW(run_on(engine, ranks,
                         [](Communicator& communicator) { testing::CollectivesCases(communicator).run(); }));
}

INSTANTIATE_TEST_SUITE_P(Ranks, CollectivesThreads,
                         ::testing::Combine(::testing::Values("threads", "virtual"),
                                            ::testing::Values(1, 2, 3, 4, 5, 8)));

class OneCollective : public ::testing::TestWithParam<std::string> {};

TEST_P(OneCollective, ManyChunksPerSegment) {
  // 24 MB per rank and hop (8 under a sanitizer), far more chunks than any window of messages under way.
  constexpr std::size_t kElements = kSanitized ? 4'000'000 : 12'000'000;
  EXPECT_NO_THROW(run_on(GetParam(), 2, [](Communicator& communicator) {
    std::vector<float> values(kElements, static_cast<float>(communicator.rank() + 1));
    communicator.all_reduce_sum(values);
    for (const float value : values) testing::require(value == 3.0f, "wrong sum");
  }));
}

TEST_P(OneCollective, AMessageOfAnotherSizeIsCorrupt) {
  for (const std::size_t sent : {std::size_t{3}, std::size_t{5}}) {
    EXPECT_THROW(
        run_on(GetParam(), 2,
               [&](Communicator& communicator) { testing::check_wrong_size(communicator, sent, 4); }),
        CorruptFrame);
  }
}

INSTANTIATE_TEST_SUITE_P(Engines, OneCollective, ::testing::Values("threads", "virtual"));

}  // namespace
}  // namespace thinwire
