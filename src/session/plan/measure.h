#pragma once
// What a plan (session/plan/plan.h) measures of a candidate by running it in this process.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "thinwire/registry.h"
#include "thinwire/state.h"

namespace thinwire {

/// Systems agree on sizes in their first step; zen takes four to measure before it decides.
inline constexpr int kPlanWarmUpSteps = 5;

std::size_t elements_of(const BucketLayout& bucket);

/// A gradient of values from -1 to 1, others for each rank, step and call; `density` of them are not zero.
class DrawnGradient {
 public:
  DrawnGradient(int rank, std::size_t elements, double density)
      : random_(static_cast<std::uint32_t>(rank) * 104729 + 1), values_(elements), density_(density) {}

  Span<float> draw();

 private:
  std::uint32_t next() { return random_ = random_ * 1664525u + 1013904223u; }

  std::uint32_t random_;
  std::vector<float> values_;
  double density_;
};

/// CPU time of a rank in a step.
struct CodecTime {
  double seconds = 0;  ///< The middle one of several steps.
  double spread = 0;   ///< The longest step less the shortest one.
};

struct CodecRun {
  double density = 1;
  int at_once = 1;         ///< So many ranks compute at the same time, on as many cores.
  int ranks_per_host = 1;  ///< As SessionOptions::ranks_per_host.
  const Registry* registry = nullptr;
};

/// Of all passes over the bucket, with the copies to which a step is undone. Of a large bucket a part is
/// timed, and the time is charged for all of it.
CodecTime time_codec(const std::string& spec, const BucketLayout& bucket, const CodecRun& run);

/// What a rank sends in a step of one bucket, apart from its payload.
struct Exchanges {
  double rounds = 0;    ///< Messages that wait for each other: so often the latency passes.
  double messages = 0;  ///< All of a rank's.
  double compared = 0;  ///< Of those, in which ranks compare what they are about to exchange.
  /// Rounds that long messages add where they take turns (core/turns.h): each of a rank's messages then waits
  /// for the one before it.
  double turns = 0;
  double header_bytes = 0;
};

/// A bucket that takes as many rounds and messages, and is small: of a large one its kind alone counts.
BucketLayout stand_in(const BucketLayout& bucket);

/// Counts them on a virtual network of latency alone.
Exchanges count_exchanges(const std::string& spec, const BucketLayout& small, double density, int workers);

/// Of more than 16 workers, from what 4, 8 and 16 of them have, in this order.
Exchanges extrapolated(const std::vector<Exchanges>& few, int workers);

/// With two levels: what each rank of a host synchronizes of the bucket, by its place on the host.
std::vector<BucketLayout> parts_of_host(const BucketLayout& bucket, int ranks_per_host);

}  // namespace thinwire
