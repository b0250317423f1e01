#include "comm/link_probe.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <vector>

#include "thinwire/virtual_network.h"

namespace thinwire::link_probe_test {
namespace {

constexpr VirtualLink kLink{.bytes_per_second = 1e9, .latency_seconds = 5e-5};

TEST(LinkProbe, FindsLatencyAndRate) {
  for (const std::size_t large : {kLinkProbeLeastBytes, kLinkProbeLargeBytes})
    run_virtual(3, kLink, [large](VirtualCommunicator& communicator) {
      std::vector<std::byte> scratch(kLinkProbeScratchBytes);
      const MeasuredLink link = measure_link(communicator, scratch, large);
      EXPECT_NEAR(link.latency_seconds, 5e-5, 1e-6);
      EXPECT_NEAR(link.bytes_per_second, 1e9, 1e7);
      EXPECT_EQ(communicator.traffic().sent_bytes, link_probe_bytes(large));
    });
}

TEST(LinkProbe, TheSustainedRateCountsTheSecondHalfOfTheBytes) {
  run_virtual(3, kLink, [](VirtualCommunicator& communicator) {
    std::vector<std::byte> scratch(kSustainedProbeScratchBytes);
    constexpr std::size_t kBytes = std::size_t{4} << 20;
    const MeasuredLink link = measure_link(communicator, scratch, kLinkProbeLargeBytes, kBytes);
    EXPECT_NEAR(link.latency_seconds, 5e-5, 1e-6);
    // With several messages under way latency does not count.
    EXPECT_NEAR(link.bytes_per_second, 1e9, 2e7);
    const std::size_t round_trips = kLatencyTries + kMoreLatencyTries;
    const std::size_t agreement = sizeof(double) * 2;
    EXPECT_EQ(communicator.traffic().sent_bytes,
              round_trips * 2 * kLinkProbeSmallBytes + agreement + 2 * kBytes);
  });
}

/// A rank that comes late finds messages that wait for it already: single ones seem to take no time.
TEST(LinkProbe, TheSustainedRateIsTheLinksForARankThatComesLate) {
  run_virtual(2, kLink, [](VirtualCommunicator& communicator) {
    std::vector<std::byte> scratch(kSustainedProbeScratchBytes);
    if (communicator.rank() == 1) communicator.advance(0.01);
    const MeasuredLink link = measure_link(communicator, scratch, kLinkProbeLargeBytes, std::size_t{4} << 20);
    EXPECT_NEAR(link.bytes_per_second, 1e9, 5e7);
  });
}

/// Ranks begin apart by many times the latency, so that a message alone would be there at once for some.
TEST(LinkProbe, TheLeastLatencyIsTheLinksWhereRanksAreApart) {
  for (const int world : {2, 3}) {
    run_virtual(world, kLink, [](VirtualCommunicator& communicator) {
      std::vector<std::byte> scratch(kLatencyScratchBytes);
      double least = 1;
      for (int i = 0; i < 3; ++i) {
        communicator.advance(0.004 * ((communicator.rank() + i) % communicator.size()));
        least = std::min(least, least_latency(communicator, scratch));
        EXPECT_GE(least, 5e-5) << "less than the link takes";
      }
      EXPECT_NEAR(least, 5e-5, 1e-6);
    });
  }
}

/// A link on which a round trip takes long is not tried more often than for some seconds.
TEST(LinkProbe, ALongLatencyIsFoundInFewTries) {
  run_virtual(2, {.bytes_per_second = 1e9, .latency_seconds = 0.2}, [](VirtualCommunicator& communicator) {
    std::vector<std::byte> scratch(kLatencyScratchBytes);
    EXPECT_NEAR(least_latency(communicator, scratch), 0.2, 1e-3);
    EXPECT_EQ(communicator.traffic().sent_messages, 2 * kLatencyTries + 1);
  });
}

TEST(LinkProbe, OneRankHasNoLink) {
  run_virtual(1, kLink, [](VirtualCommunicator& communicator) {
    const MeasuredLink link = measure_link(communicator, {}, kLinkProbeLargeBytes, 1000);
    EXPECT_EQ(link.latency_seconds, 0);
    EXPECT_EQ(link.bytes_per_second, 0);
  });
}

}  // namespace
}  // namespace thinwire::link_probe_test
