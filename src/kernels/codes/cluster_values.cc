#include "kernels/codes/cluster_values.h"

#include <algorithm>
#include <array>

#include "kernels/dense/average_tiles.h"
#include "kernels/device/on_device.h"

namespace thinwire {
namespace {

/// Elements decoded at a time: they stay in the first-level cache.
constexpr std::size_t kTile = 2048;

/// The elements from `first` on, `at` elements behind the first that is coded.
void decode_tile(const CodedClusters& coded, std::size_t at, std::size_t first, bool add,
                 Span<float> values) {
  const std::size_t word = at / kClusterRun * coded.sketch.bits;
  decode_clusters_serially(coded.sketch, coded.means, coded.codes.subspan(word, coded.codes.size() - word),
                           first + at, add, values);
}

/// body(at, count) for tiles of [begin, end).
template <class Body>
void for_each_tile(std::size_t begin, std::size_t end, Body body) {
  for (std::size_t at = begin; at < end; at += kTile) body(at, std::min(kTile, end - at));
}

}  // namespace

void decode_clusters(Executor& executor, const CodedClusters& coded, std::size_t first, bool add,
                     Span<float> values) {
  THINWIRE_ON_DEVICE(decode_clusters, executor, coded, first, add, values);
  executor.parallel_for(values.size(), kTile, [&](std::size_t begin, std::size_t end) {
    decode_tile(coded, begin, first, add, values.subspan(begin, end - begin));
  });
}

void average_clusters(Executor& executor, Span<const CodedClusters> coded, std::size_t first,
                      Span<float> values) {
  THINWIRE_ON_DEVICE(average_clusters, executor, coded, first, values);
  const auto ranks = static_cast<float>(coded.size());
  executor.parallel_for(values.size(), kTile, [&](std::size_t begin, std::size_t end) {
    for_each_tile(begin, end, [&](std::size_t at, std::size_t count) {
      const auto tile = values.subspan(at, count);
      for (std::size_t rank = 0; rank < coded.size(); ++rank) {
        decode_tile(coded[rank], at, first, rank != 0, tile);
      }
      for (float& value : tile) value /= ranks;
    });
  });
}

double apply_clusters(Executor& executor, Span<const CodedClusters> coded, std::size_t self,
                      Span<float> gradient, ResidualSpan residual) {
  THINWIRE_ON_DEVICE(apply_clusters, executor, coded, self, gradient, residual);
  return average_tiles(executor, coded.size(), self, gradient, residual,
                       [&](std::size_t rank, std::size_t at, bool add, Span<float> values) {
                         decode_tile(coded[rank], at, 0, add, values);
                       });
}

double subtract_clusters(Executor& executor, const CodedClusters& own, const RecodedShard& shard,
                         Span<const float> results, Span<float> gradient, ResidualSpan residual) {
  THINWIRE_ON_DEVICE(subtract_clusters, executor, own, shard, results, gradient, residual);
  const std::size_t shard_end = shard.begin + shard.average.size();
  return sum_over_blocks(executor, gradient.size(), [&](std::size_t begin, std::size_t end) {
    alignas(64) std::array<float, kTile> delivered;
    double squares = 0;
    for_each_tile(begin, end, [&](std::size_t at, std::size_t count) {
      const auto part = residual.empty() ? Span<float>() : Span<float>(delivered.data(), count);
      if (!residual.empty()) {
        decode_tile(own, at, 0, false, part);
        for (std::size_t i = std::max(at, shard.begin); i < std::min(at + count, shard_end); ++i) {
          part[i - at] -= shard.world * (shard.average[i - shard.begin] - results[i]);
        }
      }
      squares += apply_average_serially(part, results.subspan(at, count), 1.0f, gradient.subspan(at, count),
                                        residual.subspan(at, count));
    });
    finish_stores(residual);
    return squares;
  });
}

}  // namespace thinwire
