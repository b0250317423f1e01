#pragma once
// What the network under a communicator can do, measured by messages around the ring.

#include "thinwire/communicator.h"

namespace thinwire {

struct MeasuredLink {
  double latency_seconds = 0;
  double bytes_per_second = 0;
};

/// Every rank sends a small and then a large message to the next one and times both by the communicator's
/// clock; the better of several tries counts. Means over ranks are the caller's. Zeros in a world of one
/// rank. Sends link_probe_bytes(large_bytes) unless told to measure longer. Collective.
///
/// large_bytes: of a large message, the same on all ranks, from kLinkProbeLeastBytes to kLinkProbeLargeBytes.
/// On a slow network large ones take seconds.
/// sustained_bytes: where not 0, the rate is that of so many bytes in large messages without a pause, sent
/// after as many that do not count, and the latency that of least_latency(). scratch is then
/// kSustainedProbeScratchBytes. Two things would otherwise be taken for the link's speed: a link that is held
/// to a rate lets some megabytes pass at once after a pause, and single messages may have come before a rank
/// began to wait.
MeasuredLink measure_link(Communicator& communicator, Span<std::byte> scratch, std::size_t large_bytes,
                          std::size_t sustained_bytes = 0);

/// Half of the shortest of many round trips of a small message to the ring's next rank: on busy cores most of
/// them wait for a core, some tens of times as long as for the link. A round trip takes no less than the link
/// does, however far ranks are apart, which a message alone can. Ends within about a second, or after
/// kLatencyTries round trips. scratch: kLatencyScratchBytes at least. Collective, of two ranks or more.
double least_latency(Communicator& communicator, Span<std::byte> scratch);

/// Seconds by the communicator's clock until so many bytes of the ring's previous rank are here, while as
/// many go to the next one. The same number on all ranks. scratch: at least twice as many, whose contents do
/// not matter. Collective.
double message_seconds(Communicator& communicator, Span<std::byte> scratch, std::size_t bytes);

inline constexpr std::size_t kLinkProbeSmallBytes = 64;
inline constexpr std::size_t kLinkProbeLeastBytes = 4096;
inline constexpr std::size_t kLinkProbeLargeBytes = 256 * 1024;
inline constexpr int kLinkProbeTries = 3;
/// Round trips of least_latency(), and how many more at most.
inline constexpr int kLatencyTries = 30;
inline constexpr int kMoreLatencyTries = 1000;
inline constexpr std::size_t kLatencyScratchBytes = 4 * kLinkProbeSmallBytes;
inline constexpr std::size_t kLinkProbeWindow = 4;

/// Scratch that measure_link needs: a large message out and one in.
inline constexpr std::size_t kLinkProbeScratchBytes = 2 * kLinkProbeLargeBytes;
/// And with sustained_bytes: one out and those that are under way in.
inline constexpr std::size_t kSustainedProbeScratchBytes = (1 + kLinkProbeWindow) * kLinkProbeLargeBytes;

constexpr std::uint64_t link_probe_bytes(std::size_t large_bytes) {
  return kLinkProbeTries * (kLinkProbeSmallBytes + large_bytes);
}

}  // namespace thinwire
