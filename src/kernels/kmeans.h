#pragma once
// CASQ's clustering: the centres that a sample of the elements gathers around, by sign, and what the sizes of
// their bucket arrays depend on.

#include "kernels/cluster_sketch.h"

namespace thinwire {

/// One cluster of a sample.
struct Cluster {
  double centre = 0;    ///< Mean of its elements.
  double share = 0;     ///< Of all sampled elements.
  double variance = 0;  ///< Of its elements.
  double entropy =
      0;  ///< In bits, of its histogram over 256 bins from the least sampled value to the largest.
};

enum class SampleKind { usable, all_zero, not_finite };

/// Clusters of p = gradient + residual in one dimension: 2^(bits-1) for each sign, those of a sign with the
/// least sum of squared distances to their means, found exactly (by dynamic programming) over bins of
/// relative width 2^-8. A sign that the sample lacks takes the mirrored clusters of the other, with share 0;
/// where a sign has fewer distinct magnitudes than levels, the levels above repeat its largest.
///
/// The sample: 16 consecutive elements of every round(1/fraction) * 16, at a place that `seed` chooses; all
/// of a bucket that is so small that fewer than 4,096 would be left. fraction: above 0, at most 1. Unless
/// the sample is usable, clusters is not written. The same on every machine for equal input. Serial: about 2
/// ns for each sampled element and 1 to 2 ms.
SampleKind find_clusters(Workspace& workspace, Span<const float> gradient, Span<const float> residual,
                         std::size_t bits, double fraction, std::uint32_t seed,
                         PerCluster<Cluster>& clusters);

}  // namespace thinwire
