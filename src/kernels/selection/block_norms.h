#pragma once
// What blocks of a bucket hold: how much, for choosing the largest, and whether anything at all. A block is
// `block` consecutive elements; the last one may be shorter. p = gradient + residual; residual is [n] or
// empty.

#include "thinwire/executor.h"
#include "thinwire/span.h"

namespace thinwire {

constexpr std::size_t block_count(std::size_t elements, std::size_t block) {
  return (elements + block - 1) / block;
}

/// norms[b] = sum of p^2 over block b, NaN exactly where the block holds inf or NaN. norms: [block_count(n,
/// block)]. Squares are summed in float, whose range bounds what can be told apart: 1e-22 to 1e19 in
/// magnitude. The same bits for any number of threads, and on every CUDA device; a device's are those of a
/// CPU but for the rounding of float sums.
void block_norms(Executor& executor, Span<const float> gradient, Span<const float> residual,
                 std::size_t block, Span<float> norms);

/// Bit b of bitmap: block b holds a value other than 0 and -0. bitmap:
/// [bitmap_words(block_count(n, block))], bits beyond the last block become 0. Returns whether every p is
/// finite.
bool flag_nonzero_blocks(Executor& executor, Span<const float> gradient, Span<const float> residual,
                         std::size_t block, Span<std::uint64_t> bitmap);

}  // namespace thinwire
