#pragma once
// How kernels cut their work. Blocks depend on the size alone, never on the number of threads, so that sums
// come out the same whoever computes them.

#include <algorithm>
#include <array>
#include <atomic>
#include <type_traits>

#include "kernels/operands.h"
#include "thinwire/executor.h"
#include "thinwire/residual_span.h"
#include "thinwire/span.h"

namespace thinwire {

/// A multiple of 64, so that no two ranges share a word of bits.
inline constexpr std::size_t kBlockElements = std::size_t{1} << 16;

/// Rows that are worth a thread of their own.
inline std::size_t rows_per_range(std::size_t width) {
  constexpr std::size_t kElementsPerRange = std::size_t{1} << 14;
  return std::max<std::size_t>(1, kElementsPerRange / width);
}

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

/// Whether body(begin, end) says yes for all ranges of Executor::parallel_for.
inline bool all_of_ranges(Executor& executor, std::size_t count, std::size_t grain,
                          FunctionRef<bool(std::size_t, std::size_t)> body) {
  std::atomic<bool> all{true};
  executor.parallel_for(count, grain, [&](std::size_t begin, std::size_t end) {
    if (!body(begin, end)) all.store(false, std::memory_order_relaxed);
  });
  return all.load(std::memory_order_relaxed);
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

/// An operand of one bit per element.
template <class T>
struct BitPerElement {
  explicit BitPerElement(Span<T> bits) : words(bits) {}
  Span<T> words;
};
template <class T>
T* data_at(BitPerElement<T> operand, std::size_t offset) {
  return operand.words.data() + offset / 64;
}

/// What is no operand is the same for all blocks.
template <class T>
requires std::is_scalar_v<T> T data_at(T argument, std::size_t) {
  return argument;
}

/// kernel(arguments of the block..., its elements) for all blocks of `count` elements. Returns whether all of
/// them said yes where the kernel returns that, the sum as by sum_over_blocks where it returns a double.
template <class Kernel, class... Arguments>
auto in_blocks(Executor& executor, std::size_t count, Kernel kernel, const Arguments&... arguments) {
  auto body = [&](std::size_t begin, std::size_t end) {
    return kernel(data_at(arguments, begin)..., end - begin);
  };
  using Result = decltype(body(0, count));
  if constexpr (std::is_same_v<Result, double>) {
    return sum_over_blocks(executor, count, body);
  } else if constexpr (std::is_same_v<Result, bool>) {
    return all_of_ranges(executor, count, kBlockElements, body);
  } else {
    executor.parallel_for(count, kBlockElements, body);
  }
}

}  // namespace thinwire
