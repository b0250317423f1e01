// Selections on a CUDA device. A pass over all elements lists, tile by tile, the places of those that reach a
// threshold (two bytes each); a sum over the tiles tells how many there are and where each goes. The choice
// among them and the output, which may lie in host memory, concern those alone.

#include <algorithm>

#include "kernels/device.h"
#include "kernels/device_algorithms.h"
#include "kernels/select_device.h"
#include "kernels/staged.h"

namespace thinwire::cuda {
namespace {

/// A tile: a block's threads with kGroups groups of 4 neighbours each, warp by warp.
constexpr unsigned kGroups = 8;
constexpr unsigned kWarpElements = kWarp * 4 * kGroups;
constexpr unsigned kTile = kThreads / kWarp * kWarpElements;

std::size_t tiles_of(std::size_t count) {
  return (count + kTile - 1) / kTile;
}
Grid grid_of_tiles(std::size_t tiles) {
  return {static_cast<unsigned>(std::min(tiles, kMostBlocks)), kThreads};
}

/// First of the 4 elements of the thread in group 0; group g is 4 * kWarp * g further on.
__device__ std::size_t first_element(std::size_t tile) {
  return tile * kTile + threadIdx.x / kWarp * kWarpElements + lane_of_warp() * 4;
}

__device__ std::uint32_t magnitude_at(float p) {
  return __float_as_uint(p) & 0x7fffffffu;
}

__device__ bool aligned_for_four(const float* values) {
  return reinterpret_cast<std::uintptr_t>(values) % sizeof(float4) == 0;
}

/// p[c] = element i + c, 0 beyond the end.
__device__ void load_four(const SelectInput& input, bool aligned, std::size_t i, float (&p)[4]) {
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

/// Lists of every tile the places of elements that reach max(least, state's bits), and counts them. counts:
/// [tiles + 1], of which the last becomes 0.
__global__ void __launch_bounds__(kThreads)
    list_kernel(SelectInput input, std::uint32_t least, const RadixState* state, std::size_t tiles,
                std::uint16_t* __restrict__ places, std::uint32_t* __restrict__ counts) {
  if (state != nullptr) least = least > state->bits ? least : state->bits;
  const bool aligned = aligned_for_four(input.gradient) && aligned_for_four(input.residual);
  for (std::size_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const std::size_t first = first_element(tile);
    unsigned flags[kGroups];
#pragma unroll
    for (unsigned g = 0; g < kGroups; ++g) {
      float p[4];
      load_four(input, aligned, first + g * 4 * kWarp, p);
      flags[g] = 0;
#pragma unroll
      for (unsigned c = 0; c < 4; ++c) flags[g] |= (magnitude_at(p[c]) >= least ? 1u : 0u) << c;
    }
    const TileRanks ranks(flags);
    if (threadIdx.x == 0) counts[tile] = ranks.total;
    if (ranks.total == 0) continue;
#pragma unroll
    for (unsigned g = 0; g < kGroups; ++g) {
      std::size_t at = tile * kTile + ranks.groups[g];
      const std::size_t place = first + g * 4 * kWarp - tile * kTile;
      for (unsigned c = 0; c < 4; ++c) {
        if ((flags[g] >> c & 1) != 0) places[at++] = static_cast<std::uint16_t>(place + c);
      }
    }
  }
  if (blockIdx.x == 0 && threadIdx.x == 0) counts[tiles] = 0;
}

/// Thread k finds the tile of the k-th listed element and looks it up.
__global__ void __launch_bounds__(kThreads)
    gather_kernel(SelectInput input, const std::uint16_t* __restrict__ places,
                  const std::uint32_t* __restrict__ before, std::size_t tiles, std::size_t count,
                  std::uint32_t* __restrict__ indices, float* __restrict__ values) {
  for (std::size_t k = thread_of_grid(); k < count; k += threads_of_grid()) {
    // before[low] <= k < before[high].
    std::size_t low = 0;
    std::size_t high = tiles;
    while (high - low > 1) {
      const std::size_t middle = (low + high) / 2;
      (before[middle] <= k ? low : high) = middle;
    }
    const std::size_t i = low * kTile + places[low * kTile + (k - before[low])];
    indices[k] = static_cast<std::uint32_t>(i);
    values[k] = sum_at(input.gradient, input.residual, i);
  }
}

// ---------------------------------------------------------------------------------------------------------
// The cut among elements that are listed already.

/// counts[tile]: values above the cut in the upper half, those equal to it in the lower.
__global__ void __launch_bounds__(kThreads)
    count_cut_kernel(const float* __restrict__ values, std::size_t count, const RadixState* state,
                     std::size_t tiles, std::uint64_t* __restrict__ counts) {
  __shared__ std::uint64_t of_warps[kThreads / kWarp];
  const std::uint32_t cut = state->bits;
  for (std::size_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    std::uint64_t own = 0;
#pragma unroll 8
    for (unsigned j = 0; j < kTile / kThreads; ++j) {
      const std::size_t i = tile * kTile + j * kThreads + threadIdx.x;
      const std::uint32_t bits = i < count ? magnitude_at(values[i]) : 0;
      own += bits > cut ? std::uint64_t{1} << 32 : std::uint64_t{bits == cut ? 1u : 0u};
    }
    own = warp_sum(own);
    if (lane_of_warp() == 0) of_warps[threadIdx.x / kWarp] = own;
    __syncthreads();
    if (threadIdx.x == 0) {
      std::uint64_t total = 0;
      for (const std::uint64_t of_warp : of_warps) total += of_warp;
      counts[tile] = total;
    }
    __syncthreads();
  }
}

/// Moves what the cut keeps. before: [tiles], as count_cut_kernel counts.
__global__ void __launch_bounds__(kThreads)
    keep_kernel(const std::uint32_t* __restrict__ from_indices, const float* __restrict__ from_values,
                std::size_t count, const RadixState* state, const std::uint64_t* __restrict__ before,
                std::size_t tiles, std::uint32_t* __restrict__ indices, float* __restrict__ values) {
  const SelectInput input{from_values, nullptr, count};
  const bool aligned = aligned_for_four(from_values);
  const std::uint32_t cut = state->bits;
  const std::uint64_t kept_ties = state->wanted;
  for (std::size_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const std::size_t first = first_element(tile);
    float p[kGroups][4];
    unsigned above[kGroups];
    unsigned equal[kGroups];
#pragma unroll
    for (unsigned g = 0; g < kGroups; ++g) {
      load_four(input, aligned, first + g * 4 * kWarp, p[g]);
      above[g] = 0;
      equal[g] = 0;
#pragma unroll
      for (unsigned c = 0; c < 4; ++c) {
        above[g] |= (magnitude_at(p[g][c]) > cut ? 1u : 0u) << c;
        equal[g] |= (magnitude_at(p[g][c]) == cut ? 1u : 0u) << c;
      }
    }
    const TileRanks above_ranks(above);
    const TileRanks tie_ranks(equal);
#pragma unroll
    for (unsigned g = 0; g < kGroups; ++g) {
      std::uint64_t at = (before[tile] >> 32) + above_ranks.groups[g];
      std::uint64_t ties = (before[tile] & 0xffffffffu) + tie_ranks.groups[g];
#pragma unroll
      for (unsigned c = 0; c < 4; ++c) {
        const bool is_above = (above[g] >> c & 1) != 0;
        const bool is_equal = (equal[g] >> c & 1) != 0;
        if (is_above || (is_equal && ties < kept_ties)) {
          const std::uint64_t to = at + (ties < kept_ties ? ties : kept_ties);
          indices[to] = from_indices[first + g * 4 * kWarp + c];
          values[to] = p[g][c];
        }
        at += is_above ? 1 : 0;
        ties += is_equal ? 1 : 0;
      }
    }
  }
}

/// out: room for what the cut keeps.
void keep_largest(CudaExecutor& executor, const std::uint32_t* indices, const float* values,
                  std::size_t count, const RadixState* state, const Selection& out) {
  const std::size_t tiles = tiles_of(count);
  const Scratch<std::uint64_t> counts(executor, tiles);
  const Scratch<std::uint64_t> before(executor, tiles);
  launch(executor.stream(), grid_of_tiles(tiles), count_cut_kernel, values, count, state, tiles,
         counts.data());
  exclusive_sum(executor, counts.data(), before.data(), tiles);
  launch(executor.stream(), grid_of_tiles(tiles), keep_kernel, indices, values, count, state, before.data(),
         tiles, out.indices.data(), out.values.data());
}

// ---------------------------------------------------------------------------------------------------------

/// The elements that reach a threshold.
class Candidates {
 public:
  /// Those of at least max(least, state's bits); state may be null. Waits.
  Candidates(CudaExecutor& executor, const SelectInput& input, std::uint32_t least, const RadixState* state)
      : executor_(executor),
        input_(input),
        tiles_(tiles_of(input.count)),
        places_(executor, input.count),
        before_(executor, tiles_ + 1) {
    {
      const Scratch<std::uint32_t> counts(executor, tiles_ + 1);
      launch(executor.stream(), grid_of_tiles(tiles_), list_kernel, input, std::max(least, 1u), state, tiles_,
             places_.data(), counts.data());
      exclusive_sum(executor, counts.data(), before_.data(), tiles_ + 1);
    }
    auto* results = static_cast<std::uint32_t*>(executor.results(2 * sizeof(std::uint32_t)));
    results[1] = 0;
    check(cudaMemcpyAsync(results, before_.data() + tiles_, sizeof *results, cudaMemcpyDefault,
                          executor.stream()),
          "a result could not be copied");
    if (state != nullptr) {
      check(cudaMemcpyAsync(results + 1, &state->bits, sizeof *results, cudaMemcpyDefault, executor.stream()),
            "a result could not be copied");
    }
    executor.wait();
    size_ = results[0];
    least_ = std::max({least, results[1], 1u});
  }

  std::size_t size() const { return size_; }
  /// What they were chosen by, 1 at least.
  std::uint32_t least() const { return least_; }

  /// All of them. Waits.
  Selection all(Workspace& workspace) const {
    const Selection out = room(workspace, size_);
    gather(out.indices.data(), out.values.data());
    executor_.wait();
    return out;
  }

  /// The k largest; state: the cut that keeps them, or null to find it. Waits.
  Selection largest(Workspace& workspace, std::size_t k, const RadixState* state) const {
    if (k >= size_) return all(workspace);
    const Scratch<std::uint32_t> indices(executor_, size_);
    const Scratch<float> values(executor_, size_);
    gather(indices.data(), values.data());
    const Selection out = room(workspace, k);
    if (state != nullptr) {
      keep_largest(executor_, indices.data(), values.data(), size_, state, out);
    } else {
      const RadixCut cut(executor_, {values.data(), nullptr, size_}, k);
      keep_largest(executor_, indices.data(), values.data(), size_, cut.state(), out);
    }
    executor_.wait();
    return out;
  }

 private:
  static Selection room(Workspace& workspace, std::size_t count) {
    const auto indices = workspace.take<std::uint32_t>(count);
    return {indices, workspace.take<float>(count)};
  }

  void gather(std::uint32_t* indices, float* values) const {
    launch(executor_.stream(), grid_for(size_), gather_kernel, input_, places_.data(), before_.data(), tiles_,
           size_, indices, values);
  }

  CudaExecutor& executor_;
  SelectInput input_;
  std::size_t tiles_;
  Scratch<std::uint16_t> places_;
  Scratch<std::uint32_t> before_;
  std::size_t size_ = 0;
  std::uint32_t least_ = 1;
};

__global__ void __launch_bounds__(kThreads)
    sample_kernel(SelectInput input, std::uint32_t seed, double stride, std::size_t sample,
                  float* __restrict__ values) {
  for (std::size_t s = thread_of_grid(); s < sample; s += threads_of_grid()) {
    values[s] = sum_at(input.gradient, input.residual, sample_position(s, seed, stride, input.count));
  }
}

/// The cut of the `rank` largest of a sample, 0 < rank < sample.
RadixCut sampled_cut(CudaExecutor& executor, const SelectInput& input, std::size_t sample, std::size_t rank,
                     std::uint32_t seed) {
  const Scratch<float> values(executor, sample);
  const double stride = static_cast<double>(input.count) / static_cast<double>(sample);
  launch(executor.stream(), grid_for(sample), sample_kernel, input, seed, stride, sample, values.data());
  return RadixCut(executor, {values.data(), nullptr, sample}, rank);
}

}  // namespace

Selection select_at_least(CudaExecutor& executor, Workspace& workspace, const SelectInput& input,
                          std::uint32_t least_bits) {
  return Candidates(executor, input, least_bits, nullptr).all(workspace);
}

Selection select_largest(CudaExecutor& executor, Workspace& workspace, const SelectInput& input,
                         std::size_t k) {
  if (k == 0) return {};
  if (k >= input.count) return select_at_least(executor, workspace, input, 1);
  if (input.count > kSelectSmall) {
    const std::size_t sample = sample_size(input.count, k);
    const std::size_t rank = sample_rank(input.count, k, sample, kSelectSafety);
    if (rank == 0 || rank == sample) {
      return Candidates(executor, input, 1, nullptr).largest(workspace, k, nullptr);
    }
    const RadixCut threshold = sampled_cut(executor, input, sample, rank, 0);
    const Candidates candidates(executor, input, 1, threshold.state());
    if (candidates.size() >= k || candidates.least() == 1) return candidates.largest(workspace, k, nullptr);
  }
  const RadixCut cut(executor, input, k);
  return Candidates(executor, input, 1, cut.state()).largest(workspace, k, cut.state());
}

// ---------------------------------------------------------------------------------------------------------

namespace {

/// Operands in the device's own memory, which several passes read.
struct StagedInput {
  Staged<const float> gradient;
  Staged<const float> residual;

  StagedInput(CudaExecutor& executor, Span<const float> g, Span<const float> r)
      : gradient(executor, g), residual(executor, r), count(g.size()) {}
  operator SelectInput() const { return {gradient.data(), residual.data(), count}; }

  std::size_t count;
};

}  // namespace

MagnitudeCut cut_of_largest(Executor& executor, Span<const float> gradient, Span<const float> residual,
                            std::size_t k) {
  if (k == 0) return {.bits = 0x7fffffffu, .ties = 0};
  if (k >= gradient.size()) return {};
  CudaExecutor& own = executor_on_device(executor);
  return RadixCut(own, StagedInput(own, gradient, residual), k).read();
}

Selection select_at_least(Executor& executor, Workspace& workspace, Span<const float> gradient,
                          Span<const float> residual, std::uint32_t least_bits) {
  CudaExecutor& own = executor_on_device(executor);
  return select_at_least(own, workspace, StagedInput(own, gradient, residual), least_bits);
}

std::uint32_t sampled_threshold(Executor& executor, Span<const float> gradient, Span<const float> residual,
                                std::size_t k, std::size_t sample, double safety, std::uint32_t seed) {
  const std::size_t rank = sample_rank(gradient.size(), k, sample, safety);
  if (rank == 0 || rank == sample) return 0;
  CudaExecutor& own = executor_on_device(executor);
  return sampled_cut(own, StagedInput(own, gradient, residual), sample, rank, seed).read().bits;
}

Selection select_largest(Executor& executor, Workspace& workspace, Span<const float> gradient,
                         Span<const float> residual, std::size_t k) {
  CudaExecutor& own = executor_on_device(executor);
  return select_largest(own, workspace, StagedInput(own, gradient, residual), k);
}

}  // namespace thinwire::cuda
