#pragma once
// The mean of what all ranks' codes say, tile by tile on the CPU.

#include <algorithm>
#include <array>

#include "kernels/blocks.h"
#include "kernels/dense/dense.h"

namespace thinwire {

/// gradient = mean over `ranks` of q of each; residual = gradient + residual - q of rank `self`; see
/// apply_average. decode(rank, first, add, values): values becomes q of the elements from `first` (a multiple
/// of 64) on, or it is added; called by several threads at a time. residual may be empty. Host memory.
/// Returns the residual's sum of squares.
inline double average_tiles(
    Executor& executor, std::size_t ranks, std::size_t self, Span<float> gradient, ResidualSpan residual,
    FunctionRef<void(std::size_t rank, std::size_t first, bool add, Span<float> values)> decode) {
  constexpr std::size_t kTile = 2048;  // stays in the first-level cache
  const float factor = 1.0f / static_cast<float>(ranks);
  return sum_over_blocks(executor, gradient.size(), [&](std::size_t begin, std::size_t end) {
    alignas(64) std::array<float, kTile> sums;
    alignas(64) std::array<float, kTile> own;
    double squares = 0;
    for (std::size_t at = begin; at < end; at += kTile) {
      const std::size_t count = std::min(kTile, end - at);
      const Span<float> sum(sums.data(), count);
      const auto own_part = residual.empty() ? Span<float>() : Span<float>(own.data(), count);
      for (std::size_t rank = 0; rank < ranks; ++rank) decode(rank, at, rank != 0, sum);
      if (!residual.empty()) decode(self, at, false, own_part);
      squares += apply_average_serially(own_part, sum, factor, gradient.subspan(at, count),
                                        residual.subspan(at, count));
    }
    finish_stores(residual);
    return squares;
  });
}

}  // namespace thinwire
