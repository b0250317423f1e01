#pragma once
// Values that rank 0 works out from its own elements and all ranks then use: centres, levels.

#include "thinwire/synchronizer.h"

namespace thinwire {

/// Bytes that `rank` sends when rank 0's `bytes` bytes go to all (Communicator::broadcast).
constexpr std::uint64_t broadcast_payload_bytes(std::uint64_t bytes, int rank, int world_size) {
  std::uint64_t sent = 0;
  for (int reach = 1; reach < world_size; reach *= 2) {
    if (rank < reach && rank + reach < world_size) sent += bytes;
  }
  return sent;
}

/// values: rank 0's, afterwards on all ranks. Collective; without a frame, so whoever receives them checks
/// them.
inline void take_from_rank_0(Step& step, Span<float> values) {
  step.communicator.broadcast(as_writable_bytes(values), 0);
}

}  // namespace thinwire
