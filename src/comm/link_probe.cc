#include "comm/link_probe.h"

#include <algorithm>
#include <limits>

namespace thinwire {
namespace {

constexpr Communicator::Tag kTag = Communicator::kFirstReservedTag + 50;

/// Seconds until the previous rank's message is here.
double round(Communicator& communicator, Span<std::byte> scratch, std::size_t bytes) {
  const int next = (communicator.rank() + 1) % communicator.size();
  const int previous = (communicator.rank() + communicator.size() - 1) % communicator.size();
  const double start = communicator.now_seconds();
  Pending receiving = communicator.receive(previous, kTag, scratch.subspan(kLinkProbeLargeBytes, bytes));
  Pending sending = communicator.send(next, kTag, scratch.first(bytes));
  receiving.wait();
  const double seconds = communicator.now_seconds() - start;
  sending.wait();
  return seconds;
}

double shortest_round(Communicator& communicator, Span<std::byte> scratch, std::size_t bytes) {
  double shortest = std::numeric_limits<double>::max();
  for (int i = 0; i < kLinkProbeTries; ++i)
    shortest = std::min(shortest, round(communicator, scratch, bytes));
  return shortest;
}

}  // namespace

MeasuredLink measure_link(Communicator& communicator, Span<std::byte> scratch, std::size_t warm_up_bytes) {
  if (communicator.size() == 1) return {};
  std::fill(scratch.begin(), scratch.end(), std::byte{0});
  for (std::size_t sent = 0; sent < warm_up_bytes; sent += kLinkProbeLargeBytes) {
    round(communicator, scratch, kLinkProbeLargeBytes);
  }
  const double small = shortest_round(communicator, scratch, kLinkProbeSmallBytes);
  const double large = shortest_round(communicator, scratch, kLinkProbeLargeBytes);
  // A clock too coarse to tell them apart still gives a finite rate.
  const double seconds = std::max(large - small, 1e-9);
  return {small, static_cast<double>(kLinkProbeLargeBytes - kLinkProbeSmallBytes) / seconds};
}

}  // namespace thinwire
