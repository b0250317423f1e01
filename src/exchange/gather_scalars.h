#pragma once
// One number per rank, for scales that all ranks must agree on.

#include <cmath>
#include <limits>

#include "thinwire/synchronizer.h"

namespace thinwire {

/// The mean over ranks of `value`, summed in rank order so that every rank has the same bits; NaN on all
/// ranks when any rank's is inf, NaN or negative. Collective; (W-1) * 8 bytes sent, without frames: every bit
/// pattern is a number.
inline double mean_over_ranks(Step& step, double value) {
  const auto all = step.workspace.take<double>(static_cast<std::size_t>(step.communicator.size()));
  step.communicator.all_gather(as_bytes(Span<const double>(&value, 1)), as_writable_bytes(all));
  double sum = 0;
  for (const double one : all) {
    if (!std::isfinite(one) || one < 0) return std::numeric_limits<double>::quiet_NaN();
    sum += one;
  }
  return sum / static_cast<double>(all.size());
}

constexpr std::uint64_t scalar_payload_bytes(int world_size) {
  return 8 * static_cast<std::uint64_t>(world_size - 1);
}

}  // namespace thinwire
