#pragma once
// What the network under a communicator can do, measured: two messages around the ring.

#include "thinwire/communicator.h"

namespace thinwire {

struct MeasuredLink {
  double latency_seconds = 0;
  double bytes_per_second = 0;
};

/// Every rank sends a small and then a large message to the next one and times both by the communicator's
/// clock; the better of several tries counts. Means over ranks are the caller's. Zeros in a world of one
/// rank. Sends link_probe_bytes(), and before them at least `warm_up_bytes`: a link that is held to a rate
/// lets some megabytes pass at once after a pause, which would be taken for its speed. Collective.
MeasuredLink measure_link(Communicator& communicator, Span<std::byte> scratch, std::size_t warm_up_bytes = 0);

inline constexpr std::size_t kLinkProbeSmallBytes = 64;
inline constexpr std::size_t kLinkProbeLargeBytes = 256 * 1024;
inline constexpr int kLinkProbeTries = 3;

/// Scratch that measure_link needs: a large message out and one in.
inline constexpr std::size_t kLinkProbeScratchBytes = 2 * kLinkProbeLargeBytes;

constexpr std::uint64_t link_probe_bytes() {
  return kLinkProbeTries * (kLinkProbeSmallBytes + kLinkProbeLargeBytes);
}

}  // namespace thinwire
