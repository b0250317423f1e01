#pragma once
// How kernels cut their work. Blocks depend on the size alone, never on the number of threads, so that sums
// come out the same whoever computes them.

#include <algorithm>
#include <array>
#include <cstddef>

#include "thinwire/executor.h"
#include "thinwire/residual_span.h"
#include "thinwire/span.h"

namespace thinwire {

/// A multiple of 64, so that no two ranges share a word of bits.
inline constexpr std::size_t kBlockElements = std::size_t{1} << 16;

/// body(begin, end) -> double, summed over fixed blocks in ascending order.
inline double sum_over_blocks(Executor& executor, std::size_t count,
                              FunctionRef<double(std::size_t, std::size_t)> body) {
  constexpr std::size_t kMostBlocks = 256;
  std::array<double, kMostBlocks> sums{};
  const std::size_t spread = (count / kMostBlocks + 1 + 63) / 64 * 64;
  const std::size_t block = std::max(kBlockElements, spread);
  const std::size_t blocks = (count + block - 1) / block;
  executor.parallel_for(blocks, 1, [&](std::size_t first, std::size_t last) {
    for (std::size_t b = first; b < last; ++b) sums[b] = body(b * block, std::min(count, (b + 1) * block));
  });
  double total = 0;
  for (std::size_t b = 0; b < blocks; ++b) total += sums[b];
  return total;
}

/// Where a block of an operand begins; null where the operand is empty.
template <class T>
T* data_at(Span<T> operand, std::size_t offset = 0) {
  return operand.empty() ? nullptr : operand.data() + offset;
}

/// A residual's block: where it is read and where it is written; null where it is empty.
struct ResidualBlock {
  const float* before = nullptr;
  float* after = nullptr;
  bool large = false;  // see ResidualSpan
};

inline ResidualBlock data_at(const ResidualSpan& residual, std::size_t offset = 0) {
  return {data_at(residual.before, offset), data_at(residual.after, offset), residual.large};
}

}  // namespace thinwire
