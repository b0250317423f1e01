// CASQ's codes and the means of its cells on a CUDA device.
//
// Where a run of 64 elements begins in a cluster's array of cells grows with the run's random number x, in
// all clusters alike. So the runs of a group are sorted into slices by x. Those of one slice touch a short
// window of each array, which one warp keeps in shared memory and goes through in the order of the runs. A
// second kernel adds what the slices' windows hold of each cell, slice after slice. Every sum has one order,
// which follows from the sizes alone.
//
// Reads the elements once. Beside that it moves about 40 bytes per run for the order, and what the windows
// hold: 8 bytes for each cell and for 64 more of every cluster of a slice.

#include <algorithm>
#include <bit>

#include "kernels/codes/cluster_sketch.h"
#include "kernels/device/device.h"
#include "kernels/device/device_algorithms.h"

namespace thinwire {
using namespace cuda;
namespace {

/// Of the warps that sum, in a block: their windows lie in its shared memory.
constexpr unsigned kSumWarps = 4;
/// Long enough that windows cost little next to the elements, short enough to fill a device.
constexpr std::size_t kRunsOfSlice = 128;
constexpr std::size_t kCellsOfSlice = 256;
/// Runs whose elements a warp asks for at once.
constexpr unsigned kAhead = 4;
/// Lanes that add up one cell.
constexpr unsigned kCellLanes = 8;

struct Thresholds {
  std::array<std::array<float, kMostClusters / 2>, 2> of_sign;
};

/// A group and how its runs are cut into slices. A run that two groups share is an item of both.
struct SlicedGroup {
  std::size_t begin;
  std::size_t end;
  std::size_t first_item;  ///< Items of the groups before, and so on.
  std::size_t first_slice;
  std::size_t first_sum;
  std::size_t first_cell;
  std::size_t sums;      ///< That a slice leaves.
  std::uint32_t slices;  ///< 0: no elements.
  Thresholds thresholds;
  PerCluster<std::uint32_t> sizes;
  PerCluster<std::uint32_t> windows;  ///< Cells that a slice's runs may reach, counted on behind the last.

  /// What a slice leaves of cluster c: a window that goes round is folded to the array's length.
  constexpr std::uint32_t kept(std::size_t c) const { return windows[c] < sizes[c] ? windows[c] : sizes[c]; }
};

/// Where the runs of a slice begin at the least in an array of `size` cells.
__device__ std::uint64_t first_start(std::uint64_t slice, std::uint64_t slices, std::uint64_t size) {
  const std::uint64_t least_random = ((slice << 32) + slices - 1) / slices;
  return (least_random * size) >> 32;
}

/// One more than the last slice with first_start <= cell.
__device__ std::uint64_t slices_up_to(std::uint64_t cell, std::uint64_t slices, std::uint64_t size) {
  if (cell + 1 >= size) return slices;
  const std::uint64_t most_random = (((cell + 1) << 32) - 1) / size;
  return ((most_random * slices) >> 32) + 1;
}

/// The last of `count` groups of which `first` is not above `value`.
__device__ std::size_t group_at(const SlicedGroup* groups, std::size_t count, std::size_t SlicedGroup::*first,
                                std::size_t value) {
  std::size_t low = 0;
  while (count - low > 1) {
    const std::size_t middle = low + (count - low) / 2;
    (groups[middle].*first <= value ? low : count) = middle;
  }
  return low;
}

THINWIRE_KERNEL void slice_kernel(Reads<SlicedGroup> groups, std::size_t group_count, RandomStream stream,
                                  std::size_t items, Writes<std::uint32_t> slices,
                                  Writes<std::uint32_t> numbers) {
  for (std::size_t i = thread_of_grid(); i < items; i += threads_of_grid()) {
    const SlicedGroup& group = groups[group_at(groups, group_count, &SlicedGroup::first_item, i)];
    const std::size_t run = group.begin / kClusterRun + (i - group.first_item);
    const std::uint64_t random = ClusterSketch::random_of(stream, run);
    slices[i] = static_cast<std::uint32_t>(group.first_slice + ((random * group.slices) >> 32));
    numbers[i] = static_cast<std::uint32_t>(i);
  }
}

/// begins[s]: items of the slices before s, [count + 1].
THINWIRE_KERNEL void begin_kernel(Reads<std::uint32_t> slices, std::size_t items, std::size_t count,
                                  Writes<std::uint32_t> begins) {
  for (std::size_t i = thread_of_grid(); i <= items; i += threads_of_grid()) {
    const std::size_t from = i == 0 ? 0 : slices[i - 1] + std::size_t{1};
    const std::size_t to = i == items ? count : slices[i];
    for (std::size_t s = from; s <= to; ++s) begins[s] = static_cast<std::uint32_t>(i);
  }
}

template <std::size_t kBits>
__device__ unsigned code_of(const Thresholds& thresholds, float p) {
  constexpr std::size_t kLevels = (std::size_t{1} << kBits) / 2;
  const unsigned negative = p < 0.0f ? 1 : 0;
  unsigned level = 0;
#pragma unroll
  for (std::size_t j = 0; j + 1 < kLevels; ++j) {
    level += fabsf(p) >= thresholds.of_sign[negative][j] ? 1 : 0;
  }
  return 2 * level + negative;
}

struct Sums {
  float* sums;
  std::uint32_t* counts;
};

/// What a warp that sums looks up again and again, in shared memory.
template <std::size_t kBits>
struct SumTables {
  static constexpr std::size_t kClusters = std::size_t{1} << kBits;

  Thresholds thresholds;
  std::uint32_t sizes[kClusters];
  std::uint32_t
      shifts[kClusters];  ///< An element's sum is this plus its cell; below 0 meanwhile, it wraps round.
  std::uint32_t runs[kWarp];
  std::uint32_t randoms[kWarp];
};

/// Clears the windows, `length` sums, and fills the tables of a group.
template <std::size_t kBits>
__device__ __forceinline__ void open_windows(const SlicedGroup& group, std::size_t slice, std::size_t length,
                                             const Sums& windows, SumTables<kBits>& tables) {
  const unsigned lane = lane_of_warp();
  for (std::size_t i = lane; i < length; i += kWarp) {
    windows.sums[i] = 0;
    windows.counts[i] = 0;
  }
  if (lane < SumTables<kBits>::kClusters) {
    std::uint32_t shift = 0;
    for (unsigned c = 0; c < lane; ++c) shift += group.windows[c];
    tables.sizes[lane] = group.sizes[lane];
    tables.shifts[lane] = shift - static_cast<std::uint32_t>(first_start(slice - group.first_slice,
                                                                         group.slices, group.sizes[lane]));
  }
  if (lane == 0) tables.thresholds = group.thresholds;
}

/// Elements lane and lane + kWarp of kAhead runs; 0 where the group has none.
struct RunValues {
  float p[kAhead][2];
  bool present[kAhead][2];
};

/// runs: `count` of them are there.
__device__ __forceinline__ void load_runs(const SlicedGroup& group, const std::uint32_t* runs, unsigned count,
                                          std::size_t first, Reads<float> gradient, Reads<float> residual,
                                          RunValues& values) {
#pragma unroll
  for (unsigned a = 0; a < kAhead; ++a) {
#pragma unroll
    for (unsigned half = 0; half < 2; ++half) {
      const std::size_t element =
          a < count ? runs[a] * kClusterRun + half * kWarp + lane_of_warp() : group.end;
      values.present[a][half] = element >= group.begin && element < group.end;
      values.p[a][half] = values.present[a][half] ? sum_at(gradient, residual, element - first) : 0.0f;
    }
  }
}

/// Adds a run to the windows. Returns word l of its codes in lane l.
template <std::size_t kBits>
__device__ __forceinline__ unsigned long long add_run(const float (&p)[2], const bool (&present)[2],
                                                      std::uint64_t random, const SumTables<kBits>& tables,
                                                      const Sums& windows) {
  const unsigned lane = lane_of_warp();
  unsigned code[2];
  for (unsigned half = 0; half < 2; ++half) {
    code[half] = code_of<kBits>(tables.thresholds, p[half]);
    if (!present[half]) continue;
    const auto start = static_cast<std::uint32_t>((random * tables.sizes[code[half]]) >> 32);
    const std::uint32_t at = tables.shifts[code[half]] + start + half * kWarp + lane;
    // No other lane adds to this sum now: within a window a run's elements lie apart.
    windows.sums[at] += p[half];
    windows.counts[at] += 1;
  }
  unsigned long long own = 0;
#pragma unroll
  for (unsigned bit = 0; bit < kBits; ++bit) {
    const unsigned low = __ballot_sync(kAllLanes, present[0] && ((code[0] >> bit) & 1) != 0);
    const unsigned high = __ballot_sync(kAllLanes, present[1] && ((code[1] >> bit) & 1) != 0);
    if (lane == bit) own = low | (static_cast<unsigned long long>(high) << kWarp);
  }
  return own;
}

/// Leaves the windows' sums for mean_kernel; those of one that goes round are added up.
__device__ __forceinline__ void leave_windows(const SlicedGroup& group, std::size_t slice, unsigned clusters,
                                              const Sums& windows, const Sums& target) {
  std::size_t at = group.first_sum + (slice - group.first_slice) * group.sums;
  std::uint32_t begin = 0;
  for (unsigned c = 0; c < clusters; ++c) {
    const std::uint32_t reach = group.windows[c];
    const std::uint32_t kept = group.kept(c);
    for (std::uint32_t i = lane_of_warp(); i < kept; i += kWarp) {
      float sum = 0;
      std::uint32_t count = 0;
      for (std::uint32_t j = i; j < reach; j += kept) {
        sum += windows.sums[begin + j];
        count += windows.counts[begin + j];
      }
      target.sums[at + i] = sum;
      target.counts[at + i] = count;
    }
    begin += reach;
    at += kept;
  }
}

/// A warp's slice: codes of its runs, and the sums of its windows. codes: zeros.
template <std::size_t kBits>
__global__ void __launch_bounds__(kSumWarps* kWarp)
    sum_kernel(Reads<SlicedGroup> groups, std::size_t group_count, RandomStream stream, std::size_t slices,
               Reads<std::uint32_t> begins, Reads<std::uint32_t> numbers, std::size_t first,
               Reads<float> gradient, Reads<float> residual, Writes<unsigned long long> codes,
               std::uint32_t window, Sums target) {
  THINWIRE_SHARED_MEMORY(float, memory);
  __shared__ SumTables<kBits> of_block[kSumWarps];
  const unsigned lane = lane_of_warp();
  const std::size_t slice = warp_of_grid();
  if (slice >= slices) return;
  const SlicedGroup& group = groups[group_at(groups, group_count, &SlicedGroup::first_slice, slice)];
  SumTables<kBits>& tables = of_block[threadIdx.x / kWarp];
  float* const sums = memory + 2 * std::size_t{window} * (threadIdx.x / kWarp);
  const Sums windows{sums, reinterpret_cast<std::uint32_t*>(sums + window)};
  open_windows(group, slice, window, windows, tables);

  const std::size_t end = begins[slice + 1];
  for (std::size_t batch = begins[slice]; batch < end; batch += kWarp) {
    __syncwarp();
    if (batch + lane < end) {
      const std::size_t run = group.begin / kClusterRun + (numbers[batch + lane] - group.first_item);
      tables.runs[lane] = static_cast<std::uint32_t>(run);
      tables.randoms[lane] = ClusterSketch::random_of(stream, run);
    }
    __syncwarp();
    const unsigned count = end - batch < kWarp ? static_cast<unsigned>(end - batch) : kWarp;
    for (unsigned k = 0; k < count; k += kAhead) {
      RunValues values;
      load_runs(group, tables.runs + k, count - k, first, gradient, residual, values);
#pragma unroll
      for (unsigned a = 0; a < kAhead; ++a) {
        if (k + a >= count) break;
        const unsigned long long own =
            add_run(values.p[a], values.present[a], tables.randoms[k + a], tables, windows);
        const std::size_t base = tables.runs[k + a] * kClusterRun;
        if (lane < kBits) {
          unsigned long long* const word = codes + (base - first) / kClusterRun * kBits + lane;
          // Other groups have the rest of a run that is not whole.
          if (base >= group.begin && base + kClusterRun <= group.end) {
            *word = own;
          } else {
            atomicOr(word, own);
          }
        }
        __syncwarp();
      }
    }
  }
  __syncwarp();
  leave_windows(group, slice, SumTables<kBits>::kClusters, windows, target);
}

THINWIRE_KERNEL void mean_kernel(Reads<SlicedGroup> groups, std::size_t group_count, Sums parts,
                                 std::size_t cells, Writes<float> means, std::uint32_t* flag) {
  constexpr unsigned kCellsAtOnce = kWarp / kCellLanes;
  const unsigned part = lane_of_warp() % kCellLanes;
  bool wrong = false;
  for (std::size_t first = warp_of_grid() * kCellsAtOnce; first < cells;
       first += warps_of_grid() * kCellsAtOnce) {
    const std::size_t cell = first + lane_of_warp() / kCellLanes;
    double sum = 0;
    unsigned long long count = 0;
    if (cell < cells) {
      const SlicedGroup& group = groups[group_at(groups, group_count, &SlicedGroup::first_cell, cell)];
      std::size_t at_cell = cell - group.first_cell;
      std::size_t first_sum = group.first_sum;
      std::size_t c = 0;
      for (; at_cell >= group.sizes[c]; ++c) {
        at_cell -= group.sizes[c];
        first_sum += group.kept(c);
      }
      const std::uint64_t size = group.sizes[c];
      const std::uint64_t kept = group.kept(c);
      // A window that begins near the end goes on at the beginning.
      for (int turn = 0; turn < 2 && group.slices != 0; ++turn, at_cell += size) {
        const std::uint64_t from = at_cell < kept ? 0 : slices_up_to(at_cell - kept, group.slices, size);
        const std::uint64_t to = slices_up_to(at_cell, group.slices, size);
#pragma unroll 4
        for (std::uint64_t s = from + part; s < to; s += kCellLanes) {
          const std::size_t at = first_sum + s * group.sums + (at_cell - first_start(s, group.slices, size));
          sum += static_cast<double>(parts.sums[at]);
          count += parts.counts[at];
        }
      }
    }
    for (unsigned lanes = kCellLanes / 2; lanes > 0; lanes /= 2) {
      sum += __shfl_xor_sync(kAllLanes, sum, static_cast<int>(lanes));
      count += __shfl_xor_sync(kAllLanes, count, static_cast<int>(lanes));
    }
    if (cell < cells && part == 0) {
      const float mean = count > 0 ? static_cast<float>(sum / static_cast<double>(count)) : 0.0f;
      means[cell] = mean;
      wrong = wrong || !is_finite(mean);
    }
  }
  report_if(wrong, flag);
}

/// How the groups of a call are cut; the totals over all of them.
struct Slicing {
  Span<SlicedGroup> groups;
  std::size_t items = 0;
  std::size_t slices = 0;
  std::size_t sums = 0;
  std::uint32_t window = 0;  ///< Sums of all windows of a slice, at the most.
};

Slicing cut_into_slices(Workspace& workspace, const ClusterSketch& sketch, std::size_t first) {
  Slicing all;
  all.groups = workspace.take<SlicedGroup>(sketch.groups.size());
  std::size_t begin = first;
  for (std::size_t g = 0; g < sketch.groups.size(); ++g) {
    const ClusterGroup& from = sketch.groups[g];
    SlicedGroup& group = all.groups[g];
    group = {begin, from.end, all.items,         all.slices, all.sums, from.first_cell,
             0,     0,        {from.thresholds}, from.sizes, {}};
    begin = from.end;
    if (group.begin == group.end) continue;
    const std::size_t items = (group.end - 1) / kClusterRun - group.begin / kClusterRun + 1;
    std::size_t cells = 0;
    for (std::size_t c = 0; c < sketch.clusters(); ++c) cells += from.sizes[c];
    const std::size_t slices =
        std::max((items + kRunsOfSlice - 1) / kRunsOfSlice, (cells + kCellsOfSlice - 1) / kCellsOfSlice);
    group.slices = static_cast<std::uint32_t>(slices);
    std::uint32_t window = 0;
    for (std::size_t c = 0; c < sketch.clusters(); ++c) {
      group.windows[c] = static_cast<std::uint32_t>((from.sizes[c] + slices - 1) / slices + kClusterRun);
      window += group.windows[c];
      group.sums += group.kept(c);
    }
    all.window = std::max(all.window, window);
    all.items += items;
    all.slices += slices;
    all.sums += slices * group.sums;
  }
  return all;
}

}  // namespace

bool encode_clusters_on_cuda(Executor& executor, Workspace& workspace, const ClusterSketch& sketch,
                             std::size_t first, Span<const float> gradient, Span<const float> residual,
                             Span<std::uint64_t> codes, Span<float> means) {
  CudaExecutor& own = executor_on_device(executor);
  const Slicing slicing = cut_into_slices(workspace, sketch, first);
  const std::size_t count = slicing.groups.size();
  const Operand g(own, gradient);
  const Operand r(own, residual);
  const Scratch<SlicedGroup> groups(own, count);
  submit_copy(own, static_cast<const SlicedGroup*>(slicing.groups.data()), groups.data(), count,
              "a copy failed");

  const Scratch<std::uint32_t> slices(own, 2 * slicing.items);
  const Scratch<std::uint32_t> numbers(own, 2 * slicing.items);
  std::uint32_t* const sorted_slices = slices.data() + slicing.items;
  std::uint32_t* const sorted_numbers = numbers.data() + slicing.items;
  launch(own.stream(), grid_for(slicing.items), slice_kernel, groups.data(), count, sketch.stream,
         slicing.items, slices.data(), numbers.data());
  sort_pairs(own, slices.data(), sorted_slices, numbers.data(), sorted_numbers, slicing.items,
             static_cast<int>(std::bit_width(slicing.slices)));
  const Scratch<std::uint32_t> begins(own, slicing.slices + 1);
  launch(own.stream(), grid_for(slicing.items + 1), begin_kernel, sorted_slices, slicing.items,
         slicing.slices, begins.data());

  // Runs come in no order: their words go where that costs little, and then to the host together.
  const std::size_t words = (gradient.size() + kClusterRun - 1) / kClusterRun * sketch.bits;
  const Scratch<std::uint64_t> packed(own, words);
  check(cudaMemsetAsync(packed.data(), 0, words * sizeof(std::uint64_t), own.stream()), "no zeros");
  const Scratch<float> sums(own, slicing.sums);
  const Scratch<std::uint32_t> counts(own, slicing.sums);
  const Sums parts{sums.data(), counts.data()};
  const Grid grid{static_cast<unsigned>((slicing.slices + kSumWarps - 1) / kSumWarps), kSumWarps * kWarp,
                  kSumWarps * slicing.window * 2 * sizeof(float)};
  const auto kernel = sketch.bits == 1   ? sum_kernel<1>
                      : sketch.bits == 2 ? sum_kernel<2>
                      : sketch.bits == 3 ? sum_kernel<3>
                                         : sum_kernel<4>;
  launch(own.stream(), grid, kernel, groups.data(), count, sketch.stream, slicing.slices, begins.data(),
         sorted_numbers, first, g.data(), r.data(), reinterpret_cast<unsigned long long*>(packed.data()),
         slicing.window, parts);

  const Scratch<float> result(own, means.size());
  const Findings findings(own);
  launch(own.stream(), grid_for(means.size() * kCellLanes), mean_kernel, groups.data(), count, parts,
         means.size(), result.data(), findings.flag());
  submit_copy(own, packed.data(), codes.data(), words, "a copy failed");
  submit_copy(own, result.data(), means.data(), means.size(), "a copy failed");
  return !findings.flagged();
}

}  // namespace thinwire
