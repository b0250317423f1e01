#include "comm/link_probe.h"

#include <algorithm>
#include <deque>
#include <limits>
#include <utility>
#include <vector>

#include "comm/message_tags.h"

namespace thinwire {
namespace {

double shortest_round(Communicator& communicator, Span<std::byte> scratch, std::size_t bytes) {
  double shortest = std::numeric_limits<double>::max();
  for (int i = 0; i < kLinkProbeTries; ++i) {
    shortest = std::min(shortest, message_seconds(communicator, scratch, bytes));
  }
  return shortest;
}

/// To the ring's next rank and back, while the previous one is answered.
double round_trip_seconds(Communicator& communicator, Span<std::byte> scratch) {
  const int next = (communicator.rank() + 1) % communicator.size();
  const int previous = (communicator.rank() + communicator.size() - 1) % communicator.size();
  const auto slot = [&](std::size_t i) {
    return scratch.subspan(i * kLinkProbeSmallBytes, kLinkProbeSmallBytes);
  };
  const double start = communicator.now_seconds();
  // Of two ranks, both come from the same one, and its question first.
  Pending question = communicator.receive(previous, kLinkProbeTag, slot(0));
  Pending answer = communicator.receive(next, kLinkProbeTag, slot(1));
  Pending asking = communicator.send(next, kLinkProbeTag, slot(2));
  question.wait();
  Pending answering = communicator.send(previous, kLinkProbeTag, slot(3));
  answer.wait();
  const double seconds = communicator.now_seconds() - start;
  asking.wait();
  answering.wait();
  return seconds;
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

double least_latency(Communicator& communicator, Span<std::byte> scratch) {
  constexpr double kSeconds = 1;
  double shortest = std::numeric_limits<double>::max();
  const auto try_often = [&](int tries) {
    for (int i = 0; i < tries; ++i) shortest = std::min(shortest, round_trip_seconds(communicator, scratch));
  };
  const double start = communicator.now_seconds();
  try_often(kLatencyTries);
  const double taken = communicator.now_seconds() - start;
  // All ranks try as often as the slowest one has time for.
  std::vector<double> all(static_cast<std::size_t>(communicator.size()));
  communicator.all_gather(as_bytes(Span<const double>(&taken, 1)), as_writable_bytes(Span<double>(all)));
  const double one = std::max(*std::ranges::max_element(all), 1e-9) / kLatencyTries;
  try_often(static_cast<int>(std::clamp(kSeconds / one - kLatencyTries, 0.0, double{kMoreLatencyTries})));
  return shortest / 2;
}

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
  if (sustained_bytes > 0) {
    const double latency = least_latency(communicator, scratch);
    return {latency, sustained_rate(communicator, scratch, sustained_bytes)};
  }
  const double small = shortest_round(communicator, scratch, kLinkProbeSmallBytes);
  const double large = shortest_round(communicator, scratch, large_bytes);
  // A clock too coarse to tell them apart still gives a finite rate.
  const double seconds = std::max(large - small, 1e-9);
  return {small, static_cast<double>(large_bytes - kLinkProbeSmallBytes) / seconds};
}

}  // namespace thinwire
