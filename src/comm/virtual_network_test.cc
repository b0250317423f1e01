#include "thinwire/virtual_network.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <ctime>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/sanitized.h"
#include "thinwire/errors.h"

namespace thinwire::virtual_network_test {
namespace {

constexpr VirtualLink kLink{.bytes_per_second = 1e9, .latency_seconds = 1e-5};

double wire_seconds(double bytes) {
  return bytes / kLink.bytes_per_second;
}

void send_bytes(Communicator& communicator, int peer, std::size_t bytes) {
  const std::vector<std::byte> out(bytes);
  communicator.send(peer, 1, out).wait();
}

void receive_bytes(Communicator& communicator, int peer, std::size_t bytes) {
  std::vector<std::byte> in(bytes);
  communicator.receive(peer, 1, in).wait();
}

TEST(VirtualNetwork, AMessageTakesLatencyAndBandwidth) {
  run_virtual(2, kLink, [](VirtualCommunicator& communicator) {
    EXPECT_EQ(communicator.now_seconds(), 0);
    if (communicator.rank() == 0) {
      communicator.advance(2.5);
      send_bytes(communicator, 1, 1000);
      EXPECT_DOUBLE_EQ(communicator.now_seconds(), 2.5 + wire_seconds(1000));
    } else {
      receive_bytes(communicator, 0, 1000);
      EXPECT_DOUBLE_EQ(communicator.now_seconds(), 2.5 + 1e-5 + wire_seconds(1000));
      communicator.advance(1);
      EXPECT_DOUBLE_EQ(communicator.now_seconds(), 3.5 + 1e-5 + wire_seconds(1000));
    }
  });
}

TEST(VirtualNetwork, AScaleCountsAllBytesButOneHeader) {
  VirtualLink link = kLink;
  link.scale = 100;
  EXPECT_DOUBLE_EQ(link.transfer_seconds(64), 64 * 100 / 1e9);
  run_virtual(2, link, [](VirtualCommunicator& communicator) {
    if (communicator.rank() == 0) return send_bytes(communicator, 1, 1000);
    receive_bytes(communicator, 0, 1000);
    EXPECT_DOUBLE_EQ(communicator.now_seconds(), 1e-5 + (64 + 936 * 100) / 1e9);
  });
}

TEST(VirtualNetwork, MessagesThatAreAskedForLateHaveArrivedMeanwhile) {
  run_virtual(2, kLink, [](VirtualCommunicator& communicator) {
    if (communicator.rank() == 0) return send_bytes(communicator, 1, 1000);
    communicator.advance(7);
    receive_bytes(communicator, 0, 1000);
    EXPECT_EQ(communicator.now_seconds(), 7);
  });
}

TEST(VirtualNetwork, AnEgressSendsOneAfterTheOther) {
  run_virtual(3, kLink, [](VirtualCommunicator& communicator) {
    if (communicator.rank() == 0) {
      const std::vector<std::byte> out(1000);
      auto first = communicator.send(1, 1, out);
      auto second = communicator.send(2, 1, out);
      second.wait();
      EXPECT_DOUBLE_EQ(communicator.now_seconds(), wire_seconds(2000));
      first.wait();
    } else {
      receive_bytes(communicator, 0, 1000);
      EXPECT_DOUBLE_EQ(communicator.now_seconds(), 1e-5 + communicator.rank() * wire_seconds(1000));
    }
  });
}

TEST(VirtualNetwork, AnIngressTakesTwoSendersOneAfterTheOther) {
  run_virtual(3, kLink, [](VirtualCommunicator& communicator) {
    if (communicator.rank() != 0) {
      // Rank 2 starts first; both are under way at the same time.
      if (communicator.rank() == 1) communicator.advance(1e-7);
      return send_bytes(communicator, 0, 1000);
    }
    // Asked for in the other order: the ingress does not care.
    receive_bytes(communicator, 1, 1000);
    EXPECT_DOUBLE_EQ(communicator.now_seconds(), 1e-5 + wire_seconds(2000));
    receive_bytes(communicator, 2, 1000);
    EXPECT_DOUBLE_EQ(communicator.now_seconds(), 1e-5 + wire_seconds(2000));
  });
}

TEST(VirtualNetwork, BothDirectionsAtOnce) {
  run_virtual(2, kLink, [](VirtualCommunicator& communicator) {
    const int peer = 1 - communicator.rank();
    std::vector<std::byte> in(100'000);
    const std::vector<std::byte> out(100'000);
    auto receiving = communicator.receive(peer, 1, in);
    communicator.send(peer, 1, out).wait();
    receiving.wait();
    EXPECT_DOUBLE_EQ(communicator.now_seconds(), 1e-5 + wire_seconds(100'000));
  });
}

TEST(VirtualNetwork, SendingBeforeReceivingDoesNotLockUp) {
  run_virtual(2, kLink, [](VirtualCommunicator& communicator) {
    const int peer = 1 - communicator.rank();
    for (int i = 0; i < 3; ++i) {
      std::vector<std::byte> out(5000, static_cast<std::byte>(communicator.rank() + 10 * i));
      communicator.send(peer, 1, out).wait();
      out.assign(out.size(), std::byte{99});  // it is the sender's again
    }
    for (int i = 0; i < 3; ++i) {
      std::vector<std::byte> in(5000);
      communicator.receive(peer, 1, in).wait();
      EXPECT_EQ(in, std::vector<std::byte>(5000, static_cast<std::byte>(peer + 10 * i)));
    }
  });
}

// Two hosts of two ranks, ranks 0 and 1, and 2 and 3. Inside a byte takes a quarter of the time.
constexpr VirtualHosts kHosts{.ranks_per_host = 2,
                              .inside = {.bytes_per_second = 4e9, .latency_seconds = 1e-6}};

double inside_seconds(double bytes) {
  return bytes / kHosts.inside.bytes_per_second;
}

TEST(VirtualHosts, AMessageTakesTheLinkOfItsPair) {
  run_virtual(
      4, kLink,
      [](VirtualCommunicator& communicator) {
        switch (communicator.rank()) {
          case 0:
            send_bytes(communicator, 1, 1000);
            EXPECT_DOUBLE_EQ(communicator.now_seconds(), inside_seconds(1000));
            send_bytes(communicator, 2, 1000);
            EXPECT_DOUBLE_EQ(communicator.now_seconds(), inside_seconds(1000) + wire_seconds(1000));
            break;
          case 1:
            receive_bytes(communicator, 0, 1000);
            EXPECT_DOUBLE_EQ(communicator.now_seconds(), 1e-6 + inside_seconds(1000));
            break;
          case 2:
            receive_bytes(communicator, 0, 1000);
            EXPECT_DOUBLE_EQ(communicator.now_seconds(), inside_seconds(1000) + 1e-5 + wire_seconds(1000));
            break;
          default:
            break;
        }
      },
      kHosts);
}

TEST(VirtualHosts, BothKindsOfLinksAreBusyAtOnce) {
  run_virtual(
      4, kLink,
      [](VirtualCommunicator& communicator) {
        const std::vector<std::byte> out(1000);
        if (communicator.rank() == 0) {
          auto outside = communicator.send(2, 1, out);
          auto inside = communicator.send(1, 1, out);
          inside.wait();
          EXPECT_DOUBLE_EQ(communicator.now_seconds(), inside_seconds(1000));
          outside.wait();
          EXPECT_DOUBLE_EQ(communicator.now_seconds(), wire_seconds(1000));
        } else if (communicator.rank() == 1) {
          // From both sides: neither waits for the other.
          receive_bytes(communicator, 3, 1000);
          EXPECT_DOUBLE_EQ(communicator.now_seconds(), 1e-5 + wire_seconds(1000));
          receive_bytes(communicator, 0, 1000);
          EXPECT_DOUBLE_EQ(communicator.now_seconds(), 1e-5 + wire_seconds(1000));
        } else if (communicator.rank() == 2) {
          receive_bytes(communicator, 0, 1000);
        } else {
          send_bytes(communicator, 1, 1000);
        }
      },
      kHosts);
}

TEST(VirtualHosts, RanksOfAHostShareItsLinkInOrderOfTime) {
  run_virtual(
      4, kLink,
      [](VirtualCommunicator& communicator) {
        switch (communicator.rank()) {
          case 0:
            // It runs first, and by its clock it is later.
            communicator.advance(1e-7);
            send_bytes(communicator, 2, 1000);
            EXPECT_DOUBLE_EQ(communicator.now_seconds(), wire_seconds(3000));
            break;
          case 1:
            send_bytes(communicator, 3, 2000);
            EXPECT_DOUBLE_EQ(communicator.now_seconds(), wire_seconds(2000));
            break;
          case 2:
            receive_bytes(communicator, 0, 1000);
            EXPECT_DOUBLE_EQ(communicator.now_seconds(), 1e-5 + wire_seconds(3000));
            break;
          default:
            receive_bytes(communicator, 1, 2000);
            EXPECT_DOUBLE_EQ(communicator.now_seconds(), 1e-5 + wire_seconds(2000));
        }
      },
      kHosts);
}

TEST(VirtualHosts, RanksOfAHostShareItsIngress) {
  run_virtual(
      6, kLink,
      [](VirtualCommunicator& communicator) {
        // Ranks 2 and 4, of two hosts, send to the two ranks of host 0 at the same time.
        if (communicator.rank() == 2 || communicator.rank() == 4) {
          send_bytes(communicator, communicator.rank() == 2 ? 0 : 1, 1000);
          EXPECT_DOUBLE_EQ(communicator.now_seconds(), wire_seconds(1000));
        } else if (communicator.rank() < 2) {
          receive_bytes(communicator, communicator.rank() == 0 ? 2 : 4, 1000);
          EXPECT_DOUBLE_EQ(communicator.now_seconds(),
                           1e-5 + wire_seconds(communicator.rank() == 0 ? 1000 : 2000));
        }
      },
      kHosts);
}

TEST(VirtualHosts, StagesCountEachLinksBytes) {
  run_virtual(
      4, kLink,
      [](VirtualCommunicator& communicator) {
        const int rank = communicator.rank();
        const auto swap = [&](int peer, std::size_t bytes) {
          const std::vector<std::byte> out(bytes);
          std::vector<std::byte> in(bytes);
          auto receiving = communicator.receive(peer, 1, in);
          communicator.send(peer, 1, out).wait();
          receiving.wait();
        };
        communicator.align();
        swap(rank ^ 1, 8000);  // inside
        swap(rank ^ 2, 3000);  // both ranks of a host, over its one link
        swap(rank ^ 1, 4000);
        const VirtualInterval interval = communicator.align();
        EXPECT_EQ(interval.stages, 3u);
        const double expected =
            1e-6 + inside_seconds(8000) + 1e-5 + wire_seconds(6000) + 1e-6 + inside_seconds(4000);
        EXPECT_NEAR(interval.seconds, expected, 1e-12);
        EXPECT_NEAR(interval.formula_seconds, expected, 1e-12);
      },
      kHosts);
}

TEST(VirtualHosts, AFailureReleasesWhoWaitsForTheLink) {
  int released = 0;
  EXPECT_THROW(run_virtual(
                   4, kLink,
                   [&](VirtualCommunicator& communicator) {
                     if (communicator.rank() == 3) throw std::runtime_error("rank 3 had enough");
                     try {
                       for (int i = 0; i < 100; ++i) {
                         std::vector<float> values(10'000, 1.0f);
                         communicator.all_reduce_sum(values);
                       }
                     } catch (const CommError& error) {
                       EXPECT_EQ(error.peer(), 3);
                       ++released;
                       throw;
                     }
                   },
                   kHosts),
               std::runtime_error);
  EXPECT_EQ(released, 3);
}

TEST(VirtualHosts, OneRankPerHostIsANetworkWithoutHosts) {
  const auto times = [](int ranks_per_host) {
    std::vector<std::uint64_t> bits(4);
    run_virtual(4, kLink,
                [&](VirtualCommunicator& communicator) {
                  std::vector<float> values(50'001, 1.0f);
                  communicator.advance(1e-7 * communicator.rank());
                  communicator.all_reduce_sum(values);
                  bits[static_cast<std::size_t>(communicator.rank())] =
                      std::bit_cast<std::uint64_t>(communicator.now_seconds());
                },
                {.ranks_per_host = ranks_per_host, .inside = kHosts.inside});
    return bits;
  };
  std::vector<std::uint64_t> without(4);
  run_virtual(4, kLink, [&](VirtualCommunicator& communicator) {
    std::vector<float> values(50'001, 1.0f);
    communicator.advance(1e-7 * communicator.rank());
    communicator.all_reduce_sum(values);
    without[static_cast<std::size_t>(communicator.rank())] =
        std::bit_cast<std::uint64_t>(communicator.now_seconds());
  });
  EXPECT_EQ(times(1), without);
  EXPECT_NE(times(2), without);
  EXPECT_EQ(times(2), times(2));
}

double all_reduce_seconds(int world, std::size_t elements, const VirtualLink& link,
                          double* formula = nullptr) {
  double seconds = 0;
  run_virtual(world, link, [&](VirtualCommunicator& communicator) {
    std::vector<float> values(elements, 1.0f);
    communicator.align();
    communicator.all_reduce_sum(values);
    const VirtualInterval interval = communicator.align();
    if (communicator.rank() == 0) {
      seconds = interval.seconds;
      if (formula != nullptr) *formula = interval.formula_seconds;
    }
  });
  return seconds;
}

/// Each of the two phases passes a segment on W - 1 times. A hop's first chunk leaves when it has arrived and
/// the egress has sent the hop before; the last hop ends with its last chunk.
double ring_seconds(int world, double segment_bytes, double chunk_bytes, const VirtualLink& link) {
  const double segment = segment_bytes / link.bytes_per_second;
  const double chunk = chunk_bytes / link.bytes_per_second;
  const double latency = link.latency_seconds;
  return 2 * ((world - 2) * std::max(segment, latency + chunk) + latency + segment);
}

TEST(VirtualNetwork, RingAllReduceTakesWhatItsFormulaSays) {
  constexpr std::size_t kChunkElements = 64 * 1024;
  for (const int world : {2, 3, 4, 8, 13}) {
    if (kSanitized && world > 3) break;
    for (const std::size_t segment :
         {std::size_t{1}, std::size_t{1000}, kChunkElements, 2 * kChunkElements, 3 * kChunkElements + 17}) {
      // Latency that hides behind the egress, that hides in part, and that dominates.
      for (const double latency : {0.0, 1e-5, 1e-3}) {
        const VirtualLink link{.bytes_per_second = 1e9, .latency_seconds = latency};
        SCOPED_TRACE(::testing::Message() << world << " ranks, " << segment << ", " << latency);
        double formula = 0;
        const double seconds =
            all_reduce_seconds(world, segment * static_cast<std::size_t>(world), link, &formula);
        const double expected =
            ring_seconds(world, 4.0 * static_cast<double>(segment),
                         4.0 * static_cast<double>(std::min(segment, kChunkElements)), link);
        EXPECT_NEAR(seconds, expected, 1e-9 * expected);
        EXPECT_NEAR(formula, expected, 1e-9 * expected);
      }
    }
  }
}

TEST(VirtualNetwork, StagesOfAPushAndAPullAddUp) {
  // Rank r sends 1000 r bytes to each other rank, then everyone sends 500 bytes to everyone.
  constexpr int kWorld = 4;
  run_virtual(kWorld, kLink, [](VirtualCommunicator& communicator) {
    const auto exchange = [&](auto bytes) {
      std::vector<std::size_t> counts(kWorld);
      std::size_t total = 0;
      for (std::size_t rank = 0; rank < kWorld; ++rank) total += counts[rank] = bytes(rank);
      const std::vector<std::byte> mine(counts[static_cast<std::size_t>(communicator.rank())]);
      std::vector<std::byte> all(total);
      communicator.all_gather_v(mine, all, counts);
    };
    communicator.align();
    exchange([](std::size_t rank) { return 1000 * rank; });
    exchange([](std::size_t) { return std::size_t{500}; });
    const VirtualInterval interval = communicator.align();
    EXPECT_EQ(interval.stages, 2u);
    // Rank 3 sends 9000 bytes, rank 0 receives 6000; then 1500 each.
    EXPECT_NEAR(interval.formula_seconds, 2e-5 + wire_seconds(9000 + 1500), 1e-12);
  });
}

TEST(VirtualNetwork, TwoRunsGiveTheSameTimesToTheBit) {
  const auto times = [] {
    std::vector<std::uint64_t> bits(16);
    run_virtual(16, kLink, [&](VirtualCommunicator& communicator) {
      const auto self = static_cast<std::size_t>(communicator.rank());
      std::vector<std::size_t> counts(16);
      std::size_t total = 0;
      for (std::size_t rank = 0; rank < 16; ++rank) total += counts[rank] = 100 + rank * rank * 37 % 1009;
      std::vector<std::byte> mine(counts[self]), all(total);
      for (int round = 0; round < 5; ++round) {
        communicator.advance(1e-7 * static_cast<double>((self * 7 + 3) % 11));
        communicator.all_gather_v(mine, all, counts);
        std::vector<float> values(3001);
        communicator.all_reduce_sum(values);
        communicator.broadcast(all, round);
      }
      bits[self] = std::bit_cast<std::uint64_t>(communicator.now_seconds());
    });
    return bits;
  };
  const auto once = times();
  EXPECT_EQ(once, times());
  EXPECT_EQ(once, times());
}

TEST(VirtualNetwork, AlignSetsAllClocksToTheLatest) {
  run_virtual(3, kLink, [](VirtualCommunicator& communicator) {
    communicator.advance(communicator.rank());
    const VirtualInterval first = communicator.align();
    EXPECT_EQ(first.seconds, 2);
    EXPECT_EQ(first.stages, 0u);
    EXPECT_EQ(first.formula_seconds, 0);
    EXPECT_EQ(communicator.now_seconds(), 2);
    if (communicator.rank() == 1) communicator.advance(0.5);
    EXPECT_EQ(communicator.align().seconds, 0.5);
  });
}

TEST(VirtualNetwork, ChargesTheCpuTimeOfTheThreadOnRequest) {
  run_virtual(2, kLink, [](VirtualCommunicator& communicator) {
    const auto work = [] {
      // Until the thread has used a millisecond, which no machine is too busy for.
      timespec begin{}, now{};
      clock_gettime(CLOCK_THREAD_CPUTIME_ID, &begin);
      do {
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
      } while ((now.tv_sec - begin.tv_sec) * 1'000'000'000 + now.tv_nsec - begin.tv_nsec < 1'000'000);
    };
    work();
    EXPECT_EQ(communicator.now_seconds(), 0);
    communicator.charge_cpu_time(10);
    work();
    EXPECT_GE(communicator.now_seconds(), 0.01);
    const double before = communicator.now_seconds();
    EXPECT_GE(communicator.align().seconds, before);
    communicator.charge_cpu_time(0);
    const double stopped = communicator.now_seconds();
    work();
    EXPECT_EQ(communicator.now_seconds(), stopped);
  });
}

TEST(VirtualNetwork, RanksThatWaitForEachOtherAreTold) {
  std::vector<std::string> complaints(3);
  EXPECT_THROW(run_virtual(3, kLink,
                           [&](VirtualCommunicator& communicator) {
                             communicator.set_context(5, 17);
                             try {
                               receive_bytes(communicator, (communicator.rank() + 1) % 3, 10);
                             } catch (const CommError& error) {
                               EXPECT_EQ(error.peer(), -1);
                               EXPECT_EQ(error.bucket(), 5u);
                               EXPECT_EQ(error.step(), 17u);
                               complaints[static_cast<std::size_t>(communicator.rank())] = error.what();
                               throw;
                             }
                           }),
               CommError);
  for (const auto& complaint : complaints) {
    EXPECT_NE(complaint.find("rank 0 waits for rank 1 (tag 1), rank 1 waits for rank 2 (tag 1), rank 2 waits"
                             " for rank 0 (tag 1)"),
              std::string::npos)
        << complaint;
  }
}

TEST(VirtualNetwork, ARankThatHasEndedIsNamed) {
  int told = 0;
  EXPECT_THROW(run_virtual(4, kLink,
                           [&](VirtualCommunicator& communicator) {
                             if (communicator.rank() == 2) return;
                             try {
                               communicator.rank() == 3 ? (void)communicator.align() : communicator.barrier();
                             } catch (const CommError& error) {
                               EXPECT_EQ(error.peer(), 2) << error.what();
                               ++told;
                               throw;
                             }
                           }),
               CommError);
  EXPECT_EQ(told, 3);
}

TEST(VirtualNetwork, RethrowsTheFirstFailureAndReleasesTheOthers) {
  int released = 0;
  try {
    run_virtual(4, kLink, [&](VirtualCommunicator& communicator) {
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
  EXPECT_EQ(released, 3);
}

TEST(VirtualNetwork, AbandonedOperationsLeaveNothingBehind) {
  run_virtual(2, kLink, [](VirtualCommunicator& communicator) {
    std::vector<std::byte> bytes(10);
    { auto unused = communicator.receive(1 - communicator.rank(), 7, bytes); }
    { auto unused = communicator.send(1 - communicator.rank(), 8, bytes); }
    communicator.barrier();
    communicator.barrier();
  });
}

TEST(VirtualNetwork, BadArgumentsAreRefused) {
  const auto nothing = [](VirtualCommunicator&) {};
  EXPECT_THROW(run_virtual(0, kLink, nothing), std::invalid_argument);
  for (const VirtualLink& link :
       {VirtualLink{.bytes_per_second = 0}, VirtualLink{.bytes_per_second = std::nan("")},
        VirtualLink{.bytes_per_second = HUGE_VAL}, VirtualLink{.latency_seconds = -1},
        VirtualLink{.latency_seconds = HUGE_VAL}, VirtualLink{.scale = 0}}) {
    EXPECT_THROW(run_virtual(2, link, nothing), std::invalid_argument);
  }
  for (const int ranks : {0, -1, 3}) {
    EXPECT_THROW(run_virtual(4, kLink, nothing, {.ranks_per_host = ranks}), std::invalid_argument);
  }
  EXPECT_THROW(run_virtual(4, kLink, nothing, {.ranks_per_host = 2, .inside = {.bytes_per_second = 0}}),
               std::invalid_argument);
  run_virtual(1, kLink, [](VirtualCommunicator& communicator) {
    EXPECT_THROW(communicator.advance(-1), std::invalid_argument);
    EXPECT_THROW(communicator.advance(std::nan("")), std::invalid_argument);
    EXPECT_THROW(communicator.charge_cpu_time(-1), std::invalid_argument);
  });
}

}  // namespace
}  // namespace thinwire::virtual_network_test
