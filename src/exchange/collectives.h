#pragma once
// Collectives of a step: on vectors that may lie on a device, and of a few numbers that all ranks must agree
// on. All of them count as waiting, since the caller has nothing to compute meanwhile. And what ranks tell
// each other outside of a bucket's step.

#include <string>
#include <string_view>
#include <vector>

#include "thinwire/communicator.h"
#include "thinwire/synchronizer.h"

namespace thinwire {

/// Communicator::all_reduce_sum of values in host memory or of the step's executor, with the same bits.
/// Values on a device stay there where the engine sums them or moves them; otherwise they come to the
/// workspace and go back. Collective.
void all_reduce_sum(Step& step, Span<float> values);

/// For a rank that found a value that is not finite: NaN becomes the first of `values`. It survives a sum
/// over ranks, so the sum tells all of them. values: in host memory or of the executor; may be empty.
void mark_not_finite(Executor& executor, Span<float> values);

/// Communicator::all_reduce_or. Collective.
void all_reduce_or(Step& step, Span<std::uint64_t> words);

/// Every rank's `mine` in rank order, in the workspace. Without frames: whoever receives them checks them.
/// Collective; (W-1) * sizeof(T) bytes sent.
template <class T>
Span<T> gather(Step& step, const T& mine) {
  const auto all = step.workspace.take<T>(static_cast<std::size_t>(step.communicator.size()));
  const StepClock::During waiting(&step.clock, Phase::wait);
  step.communicator.all_gather(as_bytes(Span<const T>(&mine, 1)), as_writable_bytes(all));
  return all;
}

/// The mean over ranks of `value`, summed in rank order so that every rank has the same bits; NaN on all
/// ranks when any rank's is inf, NaN or negative. Collective.
double mean_over_ranks(Step& step, double value);

/// The largest of all ranks' `value`, in the same way. Collective.
double largest_over_ranks(Step& step, double value);

/// What mean_over_ranks sends from one rank, and largest_over_ranks.
constexpr std::uint64_t scalar_payload_bytes(int world_size) {
  return 8 * static_cast<std::uint64_t>(world_size - 1);
}

/// values: rank 0's, afterwards on all ranks; counted in report.formula_bytes. Without a frame, so whoever
/// receives them checks them. usable: on rank 0, whether it has any; what it returns on all ranks.
/// Collective.
bool take_from_rank_0(Step& step, Span<float> values, bool usable);

/// What `rank` sends when rank 0's `bytes` bytes go to all (Communicator::broadcast).
std::uint64_t broadcast_payload_bytes(std::uint64_t bytes, int rank, int world_size);

/// Every rank's bytes in rank order; each rank may have another number of them. They travel in an Exchange of
/// `call`, the same on all ranks, with checksums. Collective. Throws CorruptFrame on every rank, before
/// memory is taken, where a rank announces more than `longest` bytes; else as Exchange and Communicator do.
std::vector<std::string> gather_bytes(Communicator& communicator, const ExchangeCall& call,
                                      std::string_view mine, std::size_t longest);

}  // namespace thinwire
