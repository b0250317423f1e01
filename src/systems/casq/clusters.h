#pragma once
// What CASQ's ranks agree on: which elements are clustered together, and how the cells are shared among the
// clusters.

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "exchange/shard_exchange.h"
#include "kernels/codes/kmeans.h"

namespace thinwire {

/// Where the groups of a bucket end: its parameters, or the bucket as a whole.
class GroupEnds {
 public:
  /// ends: where each group ends, ascending, the last at `elements`; empty: there is one group.
  /// cell_share: cells per element; each group has at least one for every cluster.
  GroupEnds(Span<const std::size_t> ends, std::size_t elements, double cell_share, std::size_t clusters)
      : ends_(ends), elements_(elements), cell_share_(cell_share), clusters_(clusters) {}

  std::size_t size() const { return ends_.empty() ? 1 : ends_.size(); }
  std::size_t begin(std::size_t group) const { return group == 0 ? 0 : ends_[group - 1]; }
  std::size_t end(std::size_t group) const { return ends_.empty() ? elements_ : ends_[group]; }
  /// The first group that has elements from `element` on.
  std::size_t group_of(std::size_t element) const {
    return static_cast<std::size_t>(std::upper_bound(ends_.begin(), ends_.end(), element) - ends_.begin());
  }

  /// Calls body(group, begin, end) for what each group has of [shard.begin, shard.end).
  template <class Body>
  void for_each(const Shard& shard, Body body) const {
    for (std::size_t group = group_of(shard.begin); group < size(); ++group) {
      const std::size_t first = std::max(begin(group), shard.begin);
      const std::size_t last = std::min(end(group), shard.end);
      if (first >= shard.end) break;
      if (first < last) body(group, first, last);
    }
  }

  /// Cells for so many elements of one group.
  std::size_t cells(std::size_t elements) const {
    const double wanted = std::round(cell_share_ * static_cast<double>(elements));
    return std::max(clusters_, static_cast<std::size_t>(wanted));
  }
  /// Groups that have elements in a shard.
  std::size_t count(const Shard& shard) const {
    std::size_t total = 0;
    for_each(shard, [&](std::size_t, std::size_t, std::size_t) { ++total; });
    return total;
  }
  /// Cells of all groups for the elements of a shard.
  std::size_t cells(const Shard& shard) const {
    std::size_t total = 0;
    for_each(shard, [&](std::size_t, std::size_t first, std::size_t last) { total += cells(last - first); });
    return total;
  }

 private:
  Span<const std::size_t> ends_;
  std::size_t elements_;
  double cell_share_;
  std::size_t clusters_;
};

/// What a cluster's share of the cells is proportional to.
enum class Allocation {
  centre,   ///< Its entropy times |centre|.
  density,  ///< Its entropy times its share of the elements.
  even,     ///< Nothing: all get the same.
  error,    ///< Chosen so that the expected squared error is least, from variances and shares.
};

/// The names of the option `allocation`, in the order of the enumeration.
const std::vector<std::string>& allocation_names();

/// Weights of the first 2^bits clusters, none negative; all 0 where the rule tells none apart. cell_share:
/// cells per element, above 0.
///
/// Allocation::error: N members of variance s in m cells leave s (N - occupied) on average, with occupied =
/// m (1 - exp(-N/m)), so the sum over clusters is least where s (1 - exp(-x) (1 + x)), x = N/m, is the same
/// for all that have cells.
PerCluster<float> cell_weights(Allocation allocation, const PerCluster<Cluster>& clusters, std::size_t bits,
                               double cell_share);

/// `total` cells, at least one for each of the first 2^bits clusters: in proportion to the weights,
/// remainders to the largest (ties: to the lower cluster); evenly when all weights are 0. Rises to 2^bits
/// where total is less.
PerCluster<std::uint32_t> allocate_cells(const PerCluster<float>& weights, std::size_t bits,
                                         std::size_t total);

/// The same groups with their cells shared as another rank's weights say, in the workspace. weights: of each
/// group's clusters, as rank `source` sent them. Throws CorruptFrame unless they are finite and not negative.
ClusterSketch with_weights(Workspace& workspace, const ClusterSketch& sketch, Span<const float> weights,
                           std::size_t source);

/// Throws CorruptFrame unless the first `clusters` centres are finite, of their sign and ascend in magnitude,
/// and the weights are finite and not negative.
void require_sound(const PerCluster<float>& centres, const PerCluster<float>& weights, std::size_t clusters);

}  // namespace thinwire
