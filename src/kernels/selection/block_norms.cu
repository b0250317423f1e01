// What blocks of a bucket hold, on a CUDA device. Some lanes of a warp reduce a block, or a chunk of a long
// one; who adds what follows from the block size alone.

#include <algorithm>
#include <bit>

#include "kernels/device/device.h"
#include "kernels/rows/bitmap.h"
#include "kernels/selection/block_norms.h"

namespace thinwire {
using namespace cuda;
namespace {

/// Longer blocks are cut into chunks of so many elements.
constexpr std::size_t kChunk = 2048;

struct Blocks {
  const float* gradient;
  const float* residual;
  std::size_t elements;
  std::size_t width;
  std::size_t chunks;  // of a block
  unsigned lanes;      // that share a chunk, a power of two up to a warp
};

Blocks blocks_of(const float* gradient, const float* residual, std::size_t elements, std::size_t width) {
  const std::size_t chunks = (width + kChunk - 1) / kChunk;
  const auto lanes = static_cast<unsigned>(std::bit_ceil(std::min<std::size_t>(8 * kWarp, width)) / 8);
  return {gradient, residual, elements, width, chunks, std::max(lanes, 1u)};
}

/// Sums of squares; NaN stands for a value that is not finite, which sticks, and nothing else gives it: no
/// square is -inf.
struct Squares {
  using Value = float;
  static __device__ float of(float p) { return is_finite(p) ? p * p : __uint_as_float(0x7fc00000u); }
  static __device__ float join(float a, float b) { return a + b; }
};

/// Largest magnitudes, as integers.
struct LargestBits {
  using Value = std::uint32_t;
  static __device__ std::uint32_t of(float p) { return __float_as_uint(p) & 0x7fffffffu; }
  static __device__ std::uint32_t join(std::uint32_t a, std::uint32_t b) { return a > b ? a : b; }
};

/// out[i]: of chunk i % chunks of block i / chunks.
template <class Reduction>
THINWIRE_KERNEL void reduce_kernel(Blocks blocks, std::size_t count, Writes<typename Reduction::Value> out) {
  const unsigned lane = lane_of_warp() % blocks.lanes;
  const std::size_t per_warp = kWarp / blocks.lanes;
  for (std::size_t first = warp_of_grid() * per_warp; first < count; first += warps_of_grid() * per_warp) {
    const std::size_t item = first + lane_of_warp() / blocks.lanes;
    std::size_t begin = item * blocks.width;
    std::size_t end = begin + blocks.width;
    if (blocks.chunks != 1) {
      const std::size_t block = item / blocks.chunks;
      begin = block * blocks.width + (item - block * blocks.chunks) * kChunk;
      end = (block + 1) * blocks.width;
      if (end > begin + kChunk) end = begin + kChunk;
    }
    if (end > blocks.elements) end = blocks.elements;
    if (item >= count) end = 0;
    typename Reduction::Value value = 0;
#pragma unroll 8
    for (std::size_t i = begin + lane; i < end; i += blocks.lanes) {
      value = Reduction::join(value, Reduction::of(sum_at(blocks.gradient, blocks.residual, i)));
    }
    for (unsigned lanes = blocks.lanes / 2; lanes > 0; lanes /= 2) {
      value = Reduction::join(value, __shfl_xor_sync(kAllLanes, value, static_cast<int>(lanes)));
    }
    if (lane == 0 && item < count) out[item] = value;
  }
}

/// out[b]: of the chunks of block b.
template <class Reduction>
THINWIRE_KERNEL void join_kernel(Reads<typename Reduction::Value> parts, std::size_t chunks,
                                 std::size_t blocks, Writes<typename Reduction::Value> out) {
  for (std::size_t b = warp_of_grid(); b < blocks; b += warps_of_grid()) {
    typename Reduction::Value value = 0;
    for (std::size_t i = lane_of_warp(); i < chunks; i += kWarp) {
      value = Reduction::join(value, parts[b * chunks + i]);
    }
    for (int lanes = kWarp / 2; lanes > 0; lanes /= 2) {
      value = Reduction::join(value, __shfl_xor_sync(kAllLanes, value, lanes));
    }
    if (lane_of_warp() == 0) out[b] = value;
  }
}

/// out: [count], on the device.
template <class Reduction>
void reduce(CudaExecutor& executor, const Blocks& blocks, std::size_t count, typename Reduction::Value* out) {
  const bool whole = blocks.chunks == 1;
  const Scratch<typename Reduction::Value> parts(executor, whole ? 0 : count * blocks.chunks);
  const std::size_t items = count * blocks.chunks;
  launch(executor.stream(), grid_for(items * blocks.lanes), reduce_kernel<Reduction>, blocks, items,
         whole ? out : parts.data());
  if (!whole) {
    launch(executor.stream(), grid_for(count * kWarp), join_kernel<Reduction>, parts.data(), blocks.chunks,
           count, out);
  }
}

/// A warp makes kWordsAtOnce words, which its lanes write side by side.
THINWIRE_KERNEL void flag_kernel(Reads<std::uint32_t> largest, std::size_t blocks, std::size_t words,
                                 Writes<std::uint64_t> bitmap, std::uint32_t* flag) {
  const unsigned lane = lane_of_warp();
  bool wrong = false;
  for (std::size_t first = warp_of_grid() * kWordsAtOnce; first < words;
       first += warps_of_grid() * kWordsAtOnce) {
    std::uint64_t own = 0;
    for (unsigned k = 0; k < kWordsAtOnce && first + k < words; ++k) {
      const std::size_t low = (first + k) * 64 + lane;
      const std::uint32_t a = low < blocks ? largest[low] : 0;
      const std::uint32_t b = low + kWarp < blocks ? largest[low + kWarp] : 0;
      wrong = wrong || a >= 0x7f800000u || b >= 0x7f800000u;
      const std::uint64_t word = __ballot_sync(kAllLanes, a != 0) |
                                 (static_cast<std::uint64_t>(__ballot_sync(kAllLanes, b != 0)) << kWarp);
      if (lane == k) own = word;
    }
    if (lane < kWordsAtOnce && first + lane < words) bitmap[first + lane] = own;
  }
  report_if(wrong, flag);
}

}  // namespace

void block_norms_on_cuda(Executor& executor, Span<const float> gradient, Span<const float> residual,
                         std::size_t block, Span<float> norms) {
  CudaExecutor& own = executor_on_device(executor);
  const Operand g(own, gradient);
  const Operand r(own, residual);
  Resident out(own, norms, false);
  reduce<Squares>(own, blocks_of(g.data(), r.data(), gradient.size(), block), norms.size(), out.data());
  finish(own, out);
}

bool flag_nonzero_blocks_on_cuda(Executor& executor, Span<const float> gradient, Span<const float> residual,
                                 std::size_t block, Span<std::uint64_t> bitmap) {
  CudaExecutor& own = executor_on_device(executor);
  const Operand g(own, gradient);
  const Operand r(own, residual);
  const std::size_t blocks = block_count(gradient.size(), block);
  const Scratch<std::uint32_t> largest(own, blocks);
  reduce<LargestBits>(own, blocks_of(g.data(), r.data(), gradient.size(), block), blocks, largest.data());
  return run_flagged(own, grid_for_words(bitmap.size()), flag_kernel, largest.data(), blocks, bitmap.size(),
                     bitmap);
}

}  // namespace thinwire
