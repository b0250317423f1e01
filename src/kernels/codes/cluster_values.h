#pragma once
// What CASQ's codes and the means of its cells say, for whole vectors.

#include "kernels/codes/cluster_sketch.h"
#include "thinwire/residual_span.h"

namespace thinwire {

/// What one rank said of some elements. codes: from the run of the first of them on. means: from
/// lay_out_means, for the memory that the values go to.
struct CodedClusters {
  ClusterSketch sketch{};
  Span<const float> means{};
  Span<const std::uint64_t> codes{};
};

/// values[i] = mean of the cell that element first + i is in, or is increased by it. first: a multiple of
/// 64. The same bits on every machine.
void decode_clusters(Executor& executor, const CodedClusters& coded, std::size_t first, bool add,
                     Span<float> values);

/// values[i] = mean over `coded`, at least one, of what each says of element first + i; added in their order,
/// then divided. Their groups end at the same elements and have as many cells; their streams and the sizes of
/// clusters may differ. first: a multiple of 64. The same bits on every machine.
void average_clusters(Executor& executor, Span<const CodedClusters> coded, std::size_t first,
                      Span<float> values);

/// gradient = mean over `coded` of what each says, added in their order; residual = gradient + residual -
/// what coded[self] says. Their sketches may differ as in average_clusters. residual may be empty. Returns
/// the new residual's sum of squares, 0 where there is none. The same mean on every machine.
double apply_clusters(Executor& executor, Span<const CodedClusters> coded, std::size_t self,
                      Span<float> gradient, ResidualSpan residual);

/// The elements from `begin` on of which `average` was known, and was coded again for all ranks.
struct RecodedShard {
  std::size_t begin = 0;
  Span<const float> average{};
  float world = 1;  ///< Ranks: what coding the average left out is this rank's to keep, for all.
};

/// residual[i] = gradient[i] + residual[i] - q[i], then gradient[i] = results[i]. q: what `own` says, in the
/// shard less world * (average - results). residual may be empty, `own` is not looked at then. Returns the
/// new residual's sum of squares, 0 where there is none.
double subtract_clusters(Executor& executor, const CodedClusters& own, const RecodedShard& shard,
                         Span<const float> results, Span<float> gradient, ResidualSpan residual);

}  // namespace thinwire
