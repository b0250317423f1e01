#include "comm/link_probe.h"

#include <algorithm>
#include <deque>
#include <limits>
#include <utility>

#include "comm/message_tags.h"

namespace thinwire {
namespace {

double shortest_round(Communicator& communicator, Span<std::byte> scratch, std::size_t bytes, int tries) {
  double shortest = std::numeric_limits<double>::max();
  for (int i = 0; i < tries; ++i) {
    shortest = std::min(shortest, message_seconds(communicator, scratch, bytes));
  }
  return shortest;
}

/// Bytes per second over `bytes`, after as many that do not count, with several messages under way.
double sustained_rate(Communicator& communicator, Span<std::byte> scratch, std::size_t bytes) {
  const int next = (communicator.rank() + 1) % communicator.size();
  const int previous = (communicator.rank() + communicator.size() - 1) % communicator.size();
  const std::size_t counted = (bytes + kLinkProbeLargeBytes - 1) / kLinkProbeLargeBytes;
  std::deque<std::pair<Pending, Pending>> under_way;
  double start = 0;
  for (std::size_t i = 0, done = 0; done < 2 * counted; ++i) {
    if (i < 2 * counted) {
      const auto slot =
          scratch.subspan((1 + i % kLinkProbeWindow) * kLinkProbeLargeBytes, kLinkProbeLargeBytes);
      Pending receiving = communicator.receive(previous, kLinkProbeTag, slot);
      Pending sending = communicator.send(next, kLinkProbeTag, scratch.first(kLinkProbeLargeBytes));
      under_way.emplace_back(std::move(receiving), std::move(sending));
      if (under_way.size() < kLinkProbeWindow) continue;
    }
    under_way.front().first.wait();
    if (++done == counted) start = communicator.now_seconds();
    under_way.front().second.wait();
    under_way.pop_front();
  }
  return static_cast<double>(counted * kLinkProbeLargeBytes) /
         std::max(communicator.now_seconds() - start, 1e-9);
}

}  // namespace

double message_seconds(Communicator& communicator, Span<std::byte> scratch, std::size_t bytes) {
  const int next = (communicator.rank() + 1) % communicator.size();
  const int previous = (communicator.rank() + communicator.size() - 1) % communicator.size();
  const double start = communicator.now_seconds();
  Pending receiving =
      communicator.receive(previous, kLinkProbeTag, scratch.subspan(scratch.size() - bytes, bytes));
  Pending sending = communicator.send(next, kLinkProbeTag, scratch.first(bytes));
  receiving.wait();
  const double seconds = communicator.now_seconds() - start;
  sending.wait();
  return seconds;
}

MeasuredLink measure_link(Communicator& communicator, Span<std::byte> scratch, std::size_t large_bytes,
                          std::size_t sustained_bytes) {
  if (communicator.size() == 1) return {};
  std::ranges::fill(scratch, std::byte{0});
  const bool is_long = sustained_bytes > 0;
  const double small = shortest_round(communicator, scratch, kLinkProbeSmallBytes,
                                      is_long ? kSustainedProbeTries : kLinkProbeTries);
  if (is_long) return {small, sustained_rate(communicator, scratch, sustained_bytes)};
  const double large = shortest_round(communicator, scratch, large_bytes, kLinkProbeTries);
  // A clock too coarse to tell them apart still gives a finite rate.
  const double seconds = std::max(large - small, 1e-9);
  return {small, static_cast<double>(large_bytes - kLinkProbeSmallBytes) / seconds};
}

}  // namespace thinwire
