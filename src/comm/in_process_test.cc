#include "thinwire/in_process.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <numeric>
#include <stdexcept>
#include <thread>

#include "thinwire/errors.h"

namespace thinwire {
namespace {

using namespace std::chrono_literals;

TEST(InProcess, RefusesNoWorkers) {
  EXPECT_THROW(run_in_process(0, [](Communicator&) {}), std::invalid_argument);
}

TEST(InProcess, RethrowsTheFirstFailureAndReleasesTheOthers) {
  std::atomic<int> released{0};
  try {
    run_in_process(4, [&](Communicator& communicator) {
      if (communicator.rank() == 2) throw std::runtime_error("rank 2 had enough");
      try {
        std::vector<float> values(10'000, 1.0f);
        for (int i = 0; i < 1000; ++i) communicator.all_reduce_sum(values);
      } catch (const CommError& error) {
        EXPECT_EQ(error.peer(), 2) << error.what();
        ++released;
        throw;
      }
    });
    FAIL() << "the failure was swallowed";
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "rank 2 had enough");
  }
  EXPECT_EQ(released.load(), 3);
}

/// In a ring everyone waits for its neighbour; the search must go round to the one that does not.
TEST(InProcess, DeadlineNamesTheSilentRankNotTheNeighbour) {
  std::atomic<int> named{0};
  std::atomic<bool> done{false};
  EXPECT_THROW(run_in_process(
                   4,
                   [&](Communicator& communicator) {
                     communicator.set_context(5, 17);
                     if (communicator.rank() == 1) {
                       while (!done) std::this_thread::sleep_for(5ms);
                       return;
                     }
                     try {
                       std::vector<float> values(1000, 1.0f);
                       communicator.all_reduce_sum(values);
                     } catch (const CommError& error) {
                       if (error.peer() == 1 && error.bucket() == 5 && error.step() == 17) ++named;
                       done = true;
                       throw;
                     }
                   },
                   300ms),
               CommError);
  EXPECT_GE(named.load(), 1);
}

TEST(InProcess, MessagesOfAnotherSizeAreCorrupt) {
  EXPECT_THROW(run_in_process(2,
                              [](Communicator& communicator) {
                                std::vector<std::byte> bytes(10);
                                if (communicator.rank() == 0) {
                                  communicator.send(1, 0, Span<const std::byte>(bytes).first(9)).wait();
                                } else {
                                  communicator.receive(0, 0, bytes).wait();
                                }
                              }),
               CorruptFrame);
}

TEST(InProcess, AbandonedOperationsLeaveNothingBehind) {
  run_in_process(2, [](Communicator& communicator) {
    std::vector<std::byte> bytes(10);
    { auto unused = communicator.receive(1 - communicator.rank(), 7, bytes); }
    communicator.barrier();
  });
}

}  // namespace
}  // namespace thinwire
