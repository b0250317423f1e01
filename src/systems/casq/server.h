#pragma once
// CASQ with a sharded server: every rank owns one shard of the bucket, averages what all ranks say of it and
// tells all ranks the result. The all-gather's alternative when there are many workers.

#include "systems/casq/clusters.h"
#include "thinwire/synchronizer.h"

namespace thinwire {

/// Shards end at multiples of so many elements, where their codes begin with a word.
inline constexpr std::size_t kShardRun = 64;

/// What the ranks have agreed on for one step.
struct ServerPlan {
  /// The uplink's sketch, for a stream of rank 0; a rank's own stream has its number.
  ClusterSketch uplink;
  /// Where ranks have clusters of their own: this rank's weights of each group's clusters, of the whole
  /// bucket and of this rank's shard. They say how cells are shared, and go before the means. Else empty.
  Span<const float> weights{};
  Span<const float> shard_weights{};
  /// Whether shards come back as codes; else as float32.
  bool requantised = true;
  /// The groups of a shard's result, with the sizes of their arrays of cells, without thresholds.
  FunctionRef<Span<ClusterGroup>(const Shard& shard)> downlink_groups;
  /// Thresholds for the result of this rank's shard, average [its elements], before it is coded. Called at
  /// most once.
  FunctionRef<void(Span<const float> average, Span<ClusterGroup> groups)> set_downlink_thresholds;
};

/// Collective. gradient: becomes the mean; residual, unless empty: p - Q(p), and in this rank's shard what
/// coding the result left out, times the world size. Non-finite values on any rank: report.finite becomes
/// false, residual stays. Throws CorruptFrame, CommError.
void average_at_owners(BucketId bucket, Span<float> gradient, Span<float> residual, Step& step,
                       const ServerPlan& plan);

/// Payload bytes that `rank` sends. floats: means and weights of the uplink; downlink_floats: of a shard's
/// result.
std::uint64_t owners_payload_bytes(std::size_t elements, std::size_t world, std::size_t rank,
                                   std::size_t bits, std::size_t floats, bool requantised,
                                   FunctionRef<std::size_t(const Shard&)> downlink_floats);

}  // namespace thinwire
