#pragma once
// How CASQ shares its buckets among the clusters.

#include <string>
#include <vector>

#include "kernels/kmeans.h"

namespace thinwire {

/// What a cluster's share of the buckets is proportional to.
enum class Allocation {
  centre,   ///< Its entropy times |centre|.
  density,  ///< Its entropy times its share of the elements.
  even,     ///< Nothing: all get the same.
  error,    ///< Chosen so that the expected squared error is least, from variances and shares.
};

/// The names of the option `allocation`, in the order of the enumeration.
const std::vector<std::string>& allocation_names();

/// Weights of the first 2^bits clusters, none negative; all 0 where the rule tells none apart. bucket_share:
/// buckets per element, above 0.
///
/// Allocation::error: N members of variance s in m buckets leave s (N - occupied) on average, with occupied =
/// m (1 - exp(-N/m)), so the sum over clusters is least where s (1 - exp(-x) (1 + x)), x = N/m, is the same
/// for all that have buckets.
PerCluster<float> bucket_weights(Allocation allocation, const PerCluster<Cluster>& clusters, std::size_t bits,
                                 double bucket_share);

/// `total` buckets, at least one for each of the first 2^bits clusters: in proportion to the weights,
/// remainders to the largest (ties: to the lower cluster); evenly when all weights are 0. Rises to 2^bits
/// where total is less.
PerCluster<std::uint32_t> allocate_buckets(const PerCluster<float>& weights, std::size_t bits,
                                           std::size_t total);

}  // namespace thinwire
