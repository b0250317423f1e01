#pragma once
// What ranks send each other when they compare their calls, see exchange_call.cc.

#include <array>
#include <cstddef>
#include <cstdint>

#include "comm/call_cycle.h"
#include "thinwire/communicator.h"

namespace thinwire {

struct StampRange {
  std::uint64_t smallest = 0;
  std::uint64_t largest = 0;
  std::uint32_t checksum = 0;  // of both, while they travel
};

/// Ranks that each rank sends to in one hop: all others in worlds of up to eight.
inline constexpr std::size_t kStampFanOut = 7;

/// A hop of the comparison under way.
struct Communicator::StampHop {
  StampRange seen;  ///< So far.
  StampRange sent;
  std::array<StampRange, kStampFanOut> arrived{};
  std::array<Pending, kStampFanOut> receives;
  std::array<Pending, kStampFanOut> sends;
};

/// Of the exchanges that came to their end, and the one under way.
struct Communicator::Calls {
  CallCycle cycle;
  std::uint64_t now = 0;  ///< What is called, whatever its step.
};

}  // namespace thinwire
