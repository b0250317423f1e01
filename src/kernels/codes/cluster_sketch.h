#pragma once
// CASQ's codes and cells: every element is coded by the nearest of a few centres of its own sign, and each
// centre's elements are spread over an array of cells that hold their means. (The paper calls cells buckets.)
//
// Source: K. Ge et al., "Accelerate distributed deep learning with cluster-aware sketch quantization", Sci
// China Inf Sci 2023, section 3.2.

#include <array>

#include "core/philox.h"
#include "thinwire/executor.h"
#include "thinwire/span.h"
#include "thinwire/workspace.h"

namespace thinwire {

inline constexpr std::size_t kMostClusterBits = 4;
inline constexpr std::size_t kMostClusters = std::size_t{1} << kMostClusterBits;

/// One value per cluster. Cluster c holds the elements of code c: bit 0 of a code is set for elements below
/// 0, the bits above it are the level, 0 for the smallest magnitudes.
template <class T>
using PerCluster = std::array<T, kMostClusters>;

/// Elements that are hashed together.
inline constexpr std::size_t kClusterRun = 64;

/// Elements that have centres and cells of their own: a parameter, or a whole bucket.
struct ClusterGroup {
  std::size_t end = 0;  ///< Behind the last element. A group begins where the one before it ends.
  /// thresholds[s][j]: least magnitude of level j + 1 among elements of sign s (1: below 0). Ascending.
  std::array<std::array<float, kMostClusters / 2>, 2> thresholds{};
  PerCluster<std::uint32_t> sizes{};  ///< Cells of each cluster, at least 1.
  std::size_t first_cell = 0;         ///< Cells of the groups before.
};

/// Which code an element gets, and which cell of its cluster.
///
/// Element e lies in run r = e / 64 and is number t = e % 64 of it. With x = stream.block(r / 4, 0)[r % 4] it
/// falls into cell (floor(x * size / 2^32) + t) mod size of its cluster's array. Two elements of a cluster
/// from different runs share a cell with probability 1/size, as if each were hashed by itself; two of one
/// run do so only where the array is shorter than a run.
struct ClusterSketch {
  RandomStream stream{};
  std::size_t bits = 2;  ///< 1 to kMostClusterBits
  Span<const ClusterGroup> groups{};

  std::size_t clusters() const { return std::size_t{1} << bits; }
  std::size_t levels() const { return clusters() / 2; }
  std::size_t cells() const;
  /// The same with the hashes of another rank: ranks' collisions are independent.
  ClusterSketch for_rank(std::size_t rank) const;
  /// x of a run.
  static constexpr std::uint32_t random_of(const RandomStream& stream, std::size_t run) {
    const PhiloxCounter words = stream.block(static_cast<std::uint32_t>(run / 4), 0);
    // Chosen without an address: device code then keeps the words in registers.
    const std::uint32_t low = run % 2 == 0 ? words[0] : words[1];
    const std::uint32_t high = run % 2 == 0 ? words[2] : words[3];
    return run % 4 < 2 ? low : high;
  }
};

/// Thresholds half-way between neighbouring centres. centres: by code; their magnitudes ascend with the
/// level.
void set_thresholds(ClusterGroup& group, std::size_t bits, const PerCluster<float>& centres);

/// gradient [n] holds the elements from `first`, a multiple of 64, on; the groups begin there and end at
/// first + n. codes: planes of p = gradient + residual as in wire/payloads.h, code_words(n, bits) words.
/// means [cells()]: of the members of each cell, group after group and cluster after cluster in the order
/// of their codes; 0 where a cell has none. residual: [n] or empty. Returns whether all means are finite;
/// they are not where an element is not, or where the members of a cell add up to more than a float32
/// holds. The same bits for any number of threads, and for every CUDA device; a device's sums are rounded in
/// another order than the CPU's.
bool encode_clusters(Executor& executor, Workspace& workspace, const ClusterSketch& sketch, std::size_t first,
                     Span<const float> gradient, Span<const float> residual, Span<std::uint64_t> codes,
                     Span<float> means);

/// Means [cells()] as those take them that decode into `target` memory. On the host, in the workspace: each
/// cluster's array goes on from its beginning, so that a run that starts near its end reads straight on. A
/// device takes the means as they are, and they must stay where they are.
Span<const float> lay_out_means(Workspace& workspace, const ClusterSketch& sketch, Span<const float> means,
                                Memory target = Memory::host);

/// values[i] = mean of the cell that element first + i is in, or is increased by it. first: a multiple of
/// 64; codes: from the run of element `first` on; means: from lay_out_means. Serial, on the CPU; see
/// kernels/codes/cluster_values.h.
void decode_clusters_serially(const ClusterSketch& sketch, Span<const float> means,
                              Span<const std::uint64_t> codes, std::size_t first, bool add,
                              Span<float> values);

}  // namespace thinwire
