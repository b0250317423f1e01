#include "thinwire/in_process.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <numeric>
#include <stdexcept>
#include <thread>

#include "thinwire/errors.h"

namespace thinwire::in_process_test {
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

/// A rank that gives up what the others count on refuses whatever follows, itself and by its name.
TEST(InProcess, AnExchangeGivenUpAfterItsStampEndsTheCommunicator) {
  std::atomic<int> refused{0};
  std::atomic<int> released{0};
  EXPECT_THROW(
      run_in_process(3,
                     [&](Communicator& communicator) {
                       const ExchangeCall call{.bucket = 4, .step = 9, .elements = 10};
                       const auto synchronize = [&](std::uint32_t bucket) {
                         Exchange exchange(communicator, {.bucket = bucket, .step = 9, .elements = 10});
                         communicator.barrier();
                         exchange.finish();
                       };
                       if (communicator.rank() == 1) {
                         {
                           const Exchange given_up(communicator, call);
                           communicator.commit_exchange();
                         }
                         EXPECT_TRUE(communicator.is_given_up());
                         std::vector<std::byte> byte(1);
                         const std::vector<std::function<void()>> calls = {
                             [&] { synchronize(4); }, [&] { synchronize(5); },
                             [&] { communicator.barrier(); }, [&] { communicator.send(0, 1, byte).wait(); },
                             [&] { communicator.receive(0, 1, byte).wait(); }};
                         for (const auto& body : calls) {
                           try {
                             body();
                           } catch (const CommError& error) {
                             if (error.peer() == 1) ++refused;
                           }
                         }
                         throw std::runtime_error("rank 1 leaves");
                       }
                       try {
                         synchronize(4);
                       } catch (const CommError& error) {
                         EXPECT_EQ(error.peer(), 1) << error.what();
                         ++released;
                       }
                     }),
      std::runtime_error);
  EXPECT_EQ(refused.load(), 5);
  EXPECT_EQ(released.load(), 2);
}

}  // namespace
}  // namespace thinwire::in_process_test
