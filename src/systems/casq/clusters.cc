#include "systems/casq/clusters.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "thinwire/errors.h"

namespace thinwire {
namespace {

/// x with 1 - exp(-x) (1 + x) = level, which grows from 0 to 1.
double load_at(double level) {
  double low = 0;
  double high = 64;
  for (int i = 0; i < 60; ++i) {
    const double x = (low + high) / 2;
    (1 - std::exp(-x) * (1 + x) < level ? low : high) = x;
  }
  return high;
}

PerCluster<float> least_error_weights(const PerCluster<Cluster>& clusters, std::size_t count,
                                      double cell_share) {
  PerCluster<double> cells{};  // per element of the sample
  auto total_at = [&](double gain) {
    double total = 0;
    for (std::size_t c = 0; c < count; ++c) {
      const Cluster& cluster = clusters[c];
      const bool worth_it = cluster.share > 0 && cluster.variance > gain;
      cells[c] = worth_it ? cluster.share / load_at(gain / cluster.variance) : 0;
      total += cells[c];
    }
    return total;
  };
  double low = 0;
  double high = 0;
  for (std::size_t c = 0; c < count; ++c) high = std::max(high, clusters[c].variance);
  for (int i = 0; i < 60; ++i) {
    const double gain = (low + high) / 2;
    (total_at(gain) > cell_share ? low : high) = gain;
  }
  total_at(high);
  PerCluster<float> weights{};
  for (std::size_t c = 0; c < count; ++c) weights[c] = static_cast<float>(cells[c]);
  return weights;
}

}  // namespace

const std::vector<std::string>& allocation_names() {
  static const std::vector<std::string> names = {"centre", "density", "even", "error"};
  return names;
}

PerCluster<float> cell_weights(Allocation allocation, const PerCluster<Cluster>& clusters, std::size_t bits,
                               double cell_share) {
  const std::size_t count = std::size_t{1} << bits;
  if (allocation == Allocation::error) return least_error_weights(clusters, count, cell_share);
  PerCluster<float> weights{};
  if (allocation == Allocation::even) return weights;
  double largest = 0;
  for (std::size_t c = 0; c < count; ++c) largest = std::max(largest, std::fabs(clusters[c].centre));
  for (std::size_t c = 0; c < count; ++c) {
    // Relative to the largest, so that the products of tiny gradients do not vanish in float32.
    const double factor = allocation == Allocation::density ? clusters[c].share
                          : largest > 0                     ? std::fabs(clusters[c].centre) / largest
                                                            : 0;
    weights[c] = static_cast<float>(clusters[c].entropy * factor);
  }
  return weights;
}

PerCluster<std::uint32_t> allocate_cells(const PerCluster<float>& weights, std::size_t bits,
                                         std::size_t total) {
  const std::size_t count = std::size_t{1} << bits;
  double sum = 0;
  for (std::size_t c = 0; c < count; ++c) sum += static_cast<double>(weights[c]);
  const std::size_t free = std::max(total, count) - count;
  PerCluster<std::uint32_t> sizes{};
  PerCluster<double> remainders{};
  std::size_t given = 0;
  for (std::size_t c = 0; c < count; ++c) {
    const double share = sum > 0 ? static_cast<double>(weights[c]) / sum : 1.0 / static_cast<double>(count);
    const double wanted = share * static_cast<double>(free);
    const double whole = std::min(std::floor(wanted), static_cast<double>(free - given));
    sizes[c] = 1 + static_cast<std::uint32_t>(whole);
    remainders[c] = wanted - whole;
    given += static_cast<std::size_t>(whole);
  }
  PerCluster<std::size_t> order{};
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(count),
            [&](std::size_t a, std::size_t b) {
              return remainders[a] != remainders[b] ? remainders[a] > remainders[b] : a < b;
            });
  for (std::size_t i = 0; given < free; i = (i + 1) % count, ++given) ++sizes[order[i]];
  return sizes;
}

ClusterSketch with_weights(Workspace& workspace, const ClusterSketch& sketch, Span<const float> weights,
                           std::size_t source) {
  const auto groups = workspace.take<ClusterGroup>(sketch.groups.size());
  std::ranges::copy(sketch.groups, groups.begin());
  const std::size_t count = sketch.clusters();
  for (std::size_t k = 0; k < groups.size(); ++k) {
    PerCluster<float> own{};
    std::size_t cells = 0;
    for (std::size_t c = 0; c < count; ++c) {
      own[c] = weights[count * k + c];
      if (!(own[c] >= 0 && std::isfinite(own[c]))) {
        throw CorruptFrame("rank " + std::to_string(source) + " sent weight " + std::to_string(own[c]) +
                           " for cluster " + std::to_string(c) + ", expected one that is not negative");
      }
      cells += groups[k].sizes[c];
    }
    groups[k].sizes = allocate_cells(own, sketch.bits, cells);
  }
  ClusterSketch other = sketch;
  other.groups = groups;
  return other;
}

void require_sound(const PerCluster<float>& centres, const PerCluster<float>& weights, std::size_t clusters) {
  for (std::size_t c = 0; c < clusters; ++c) {
    const bool ascends = c < 2 || std::fabs(centres[c]) >= std::fabs(centres[c - 2]);
    const bool of_sign = c % 2 == 0 ? centres[c] >= 0 : centres[c] <= 0;
    if (!std::isfinite(centres[c]) || !ascends || !of_sign || !std::isfinite(weights[c]) || weights[c] < 0) {
      throw CorruptFrame(
          "rank 0 sent centre " + std::to_string(centres[c]) + " and weight " + std::to_string(weights[c]) +
          " for cluster " + std::to_string(c) +
          ", expected a centre of the cluster's sign, not below the level before in magnitude, "
          "and a weight that is not negative");
    }
  }
}

}  // namespace thinwire
