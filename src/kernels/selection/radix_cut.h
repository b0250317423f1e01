#pragma once
// The cut that keeps the k largest magnitudes of a vector on a CUDA device; and how device code that selects
// goes over vectors: tile by tile, with the chosen elements of a tile numbered in their order.

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "cuda/executor.h"
#include "kernels/device/device.h"
#include "kernels/selection/select.h"
#include "kernels/selection/select_sample.h"

namespace thinwire::cuda {

/// p = gradient + residual on the device; residual may be null. Fewer than 2^32 elements, whose numbers are
/// indices.
struct SelectInput {
  const float* gradient = nullptr;
  const float* residual = nullptr;
  std::size_t count = 0;
};

/// What the passes of a radix selection leave for each other, on the device.
struct RadixState {
  std::uint32_t bits;  // the digits that are known; in the end those of the cut, 0: all that is not 0
  std::uint32_t blocks_done[kRadixDigits.size()];
  std::uint64_t wanted;  // among the elements with these digits; in the end the ties
  std::uint32_t bins[kRadixDigits.size()][kMostBins];
};

/// cut_of_largest for 0 < k < count without waiting for it: three passes, each over all elements.
class RadixCut {
 public:
  RadixCut(CudaExecutor& executor, const SelectInput& input, std::size_t k);

  const RadixState* state() const { return state_.data(); }
  /// Waits.
  MagnitudeCut read() const;

 private:
  CudaExecutor& executor_;
  Scratch<RadixState> state_;
};

/// apply_cut out of place: what the cut in `state` keeps of `count` listed elements; it keeps some, not all.
/// kept_indices, kept_values: room for that. Submitted.
void keep_largest(CudaExecutor& executor, const std::uint32_t* indices, const float* values,
                  std::size_t count, const RadixState* state, std::uint32_t* kept_indices,
                  float* kept_values);

/// A tile: a block's threads with kGroups groups of 4 neighbours each, warp by warp.
inline constexpr unsigned kGroups = 8;
inline constexpr unsigned kWarpElements = kWarp * 4 * kGroups;
inline constexpr unsigned kTile = kThreads / kWarp * kWarpElements;

inline std::size_t tiles_of(std::size_t count) {
  return (count + kTile - 1) / kTile;
}
inline Grid grid_of_tiles(std::size_t tiles) {
  return {static_cast<unsigned>(std::min(tiles, kMostBlocks)), kThreads};
}

/// First of the 4 elements of the thread in group 0; group g is 4 * kWarp * g further on.
__device__ inline std::size_t first_element(std::size_t tile) {
  return tile * kTile + threadIdx.x / kWarp * kWarpElements + lane_of_warp() * 4;
}

__device__ inline std::uint32_t magnitude_at(float p) {
  return __float_as_uint(p) & 0x7fffffffu;
}

__device__ inline bool aligned_for_four(const float* values) {
  return reinterpret_cast<std::uintptr_t>(values) % sizeof(float4) == 0;
}

/// p[c] = element i + c, 0 beyond the end.
__device__ inline void load_four(const SelectInput& input, bool aligned, std::size_t i, float (&p)[4]) {
  if (aligned && i + 4 <= input.count) {
    float4 sum = *reinterpret_cast<const float4*>(input.gradient + i);
    if (input.residual != nullptr) {
      const float4 rest = *reinterpret_cast<const float4*>(input.residual + i);
      sum = make_float4(sum.x + rest.x, sum.y + rest.y, sum.z + rest.z, sum.w + rest.w);
    }
    p[0] = sum.x;
    p[1] = sum.y;
    p[2] = sum.z;
    p[3] = sum.w;
    return;
  }
#pragma unroll
  for (unsigned c = 0; c < 4; ++c) {
    p[c] = i + c < input.count ? sum_at(input.gradient, input.residual, i + c) : 0.0f;
  }
}

/// Where chosen elements of a tile go, in their order. By all threads of a block.
struct TileRanks {
  std::uint32_t groups[kGroups];  // the first of the thread's own in that group
  std::uint32_t total;            // of the tile

  /// flags[g]: 4 bits, which of the thread's elements of group g are chosen.
  __device__ explicit TileRanks(const unsigned (&flags)[kGroups]) {
    __shared__ std::uint32_t of_warps[kThreads / kWarp];
    // A byte per group: a warp has at most 128 elements of it.
    std::uint64_t own = 0;
#pragma unroll
    for (unsigned g = 0; g < kGroups; ++g) {
      own |= static_cast<std::uint64_t>(__popc(flags[g])) << (8 * g);
    }
    std::uint64_t sum = own;
    for (unsigned lanes = 1; lanes < kWarp; lanes *= 2) {
      const std::uint64_t before = __shfl_up_sync(kAllLanes, sum, lanes);
      if (lane_of_warp() >= lanes) sum += before;
    }
    const std::uint64_t totals = __shfl_sync(kAllLanes, sum, kWarp - 1);
    const std::uint64_t before = sum - own;
    std::uint32_t of_warp = 0;
#pragma unroll
    for (unsigned g = 0; g < kGroups; ++g) {
      groups[g] = of_warp + static_cast<std::uint32_t>((before >> (8 * g)) & 0xff);
      of_warp += static_cast<std::uint32_t>((totals >> (8 * g)) & 0xff);
    }
    if (lane_of_warp() == 0) of_warps[threadIdx.x / kWarp] = of_warp;
    __syncthreads();
    std::uint32_t start = 0;
    total = 0;
    for (unsigned warp = 0; warp < kThreads / kWarp; ++warp) {
      if (warp < threadIdx.x / kWarp) start += of_warps[warp];
      total += of_warps[warp];
    }
#pragma unroll
    for (unsigned g = 0; g < kGroups; ++g) groups[g] += start;
    __syncthreads();
  }
};

}  // namespace thinwire::cuda
