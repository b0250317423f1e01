#pragma once
// Synchronizing rows by exchanging ever larger unions: in stage i each rank swaps what it has with rank XOR
// 2^i and merges. SparCML's SSAR by recursive doubling (C. Renggli et al., SC 2019), which Zen's paper calls
// Hierarchical Centralization. With P = the largest power of two up to W, rank P + r first folds its rows
// into rank r's and in the end receives the result from it.
//
// Bytes sent per rank: (4 + 4 width) per row that it holds at each stage.

#include "exchange/push_pull.h"

namespace thinwire {

/// As push_pull, without owners: sums are taken pairwise, ((g0 + g1) + (g2 + g3)) + ..., which every rank
/// does alike. rows of the result ascend. Collective.
RowMean recursive_doubling(BucketId bucket, const RowSparse& own, bool finite, Step& step);

/// The largest power of two that is at most `world`.
constexpr std::size_t largest_power_of_two(std::size_t world) {
  std::size_t power = 1;
  while (power * 2 <= world) power *= 2;
  return power;
}

/// Payload bytes that `rank` sends when every rank has `rows` rows, all together `union_rows`, and unions
/// grow by the same factor from stage to stage.
std::uint64_t recursive_doubling_bytes(std::uint64_t rows, std::uint64_t union_rows, std::uint64_t world,
                                       std::uint64_t rank, std::uint64_t width);

}  // namespace thinwire
