#include "thinwire/executor.h"

#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>
#include <vector>

namespace thinwire::executor_test {
namespace {

class ExecutorTest : public testing::TestWithParam<int> {};

TEST_P(ExecutorTest, CoversEveryIndexOnce) {
  const auto executor = make_cpu_executor(GetParam());
  EXPECT_EQ(executor->concurrency(), GetParam());
  EXPECT_EQ(executor->memory(), Memory::host);
  for (const std::size_t count : {0u, 1u, 63u, 64u, 65u, 1000u, 100'003u}) {
    std::vector<std::atomic<int>> visits(count);
    executor->parallel_for(count, 64, [&](std::size_t begin, std::size_t end) {
      EXPECT_EQ(begin % 64, 0u);
      for (std::size_t i = begin; i < end; ++i) ++visits[i];
    });
    for (const auto& visit : visits) ASSERT_EQ(visit.load(), 1);
  }
}

TEST_P(ExecutorTest, RethrowsWhatABodyThrowsAndGoesOn) {
  const auto executor = make_cpu_executor(GetParam());
  for (int round = 0; round < 20; ++round) {
    EXPECT_THROW(executor->parallel_for(10'000, 1,
                                        [](std::size_t begin, std::size_t) {
                                          if (begin == 0) throw std::runtime_error("body");
                                        }),
                 std::runtime_error);
    std::atomic<std::size_t> sum{0};
    executor->parallel_for(10'000, 1, [&](std::size_t begin, std::size_t end) { sum += end - begin; });
    EXPECT_EQ(sum.load(), 10'000u);
  }
}

INSTANTIATE_TEST_SUITE_P(Threads, ExecutorTest, testing::Values(1, 2, 3, 8));

TEST(Executor, RefusesNoThreads) {
  EXPECT_THROW(make_cpu_executor(0), std::invalid_argument);
}

}  // namespace
}  // namespace thinwire::executor_test
