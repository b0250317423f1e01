// What CASQ's codes say, on a CUDA device. A warp takes 8 runs of 64 elements at a time, of one rank after
// the other: its lanes fetch their words side by side, which matters as frames lie in the host's memory, and
// sums stay in registers. Means are fetched at random places, so they come to the device first.

#include <memory>
#include <vector>

#include "kernels/codes/cluster_values.h"
#include "kernels/device/device.h"

namespace thinwire {
using namespace cuda;
namespace {

constexpr unsigned kRunsAtOnce = 8;
/// Elements of a lane in these runs: half * kWarp + lane.
constexpr unsigned kHalves = kRunsAtOnce * kClusterRun / kWarp;
constexpr unsigned kNobody = ~0u;

/// Where the cells of a group's clusters lie.
struct CellGroup {
  std::size_t end;
  PerCluster<std::uint32_t> sizes;
  PerCluster<std::uint32_t> begins;
};

/// What a rank said.
struct DeviceClusters {
  RandomStream stream;
  const CellGroup* groups;
  const float* means;
  const std::uint64_t* codes;
};

/// What kernels are given of all ranks, whose groups end at the same elements.
struct DeviceRanks {
  std::size_t group_count;
  const DeviceClusters* ranks;
  unsigned rank_count;
};

/// The first group that ends behind the element.
__device__ std::size_t group_of(const CellGroup* groups, std::size_t count, std::size_t element) {
  std::size_t low = 0;
  while (low < count) {
    const std::size_t middle = low + (count - low) / 2;
    if (groups[middle].end <= element) {
      low = middle + 1;
    } else {
      count = middle;
    }
  }
  return low;
}

/// What a rank says of element t of a run. words: of the run's codes; random: the rank's, of the run.
template <std::size_t kBits>
__device__ __forceinline__ float mean_of(const CellGroup& group, const float* means,
                                         const std::uint64_t* words, std::uint64_t random, unsigned t) {
  unsigned code = 0;
#pragma unroll
  for (unsigned bit = 0; bit < kBits; ++bit) {
    code |= static_cast<unsigned>((words[bit] >> t) & 1) << bit;
  }
  const std::uint32_t size = group.sizes[code];
  std::uint64_t cell = ((random * size) >> 32) + t;
  if (cell >= size) cell = size >= kClusterRun ? cell - size : cell % size;
  return means[group.begins[code] + cell];
}

/// use(i, sum over ranks of what they say of element first + i, load(i) - what rank `self` says) for every
/// i < count.
template <std::size_t kBits, class Load, class Use>
__device__ void for_each_sum(const DeviceRanks& all, unsigned self, std::size_t first, std::size_t count,
                             Load load, Use use) {
  constexpr unsigned kWarps = kThreads / kWarp;
  __shared__ std::uint64_t words[kWarps][kRunsAtOnce * kBits];
  __shared__ std::uint32_t randoms[kWarps][kRunsAtOnce];
  __shared__ std::uint32_t groups[kWarps][kRunsAtOnce];
  const unsigned warp = threadIdx.x / kWarp;
  const unsigned lane = lane_of_warp();
  const std::size_t runs = (count + kClusterRun - 1) / kClusterRun;
  for (std::size_t batch = warp_of_grid() * kRunsAtOnce; batch < runs;
       batch += warps_of_grid() * kRunsAtOnce) {
    const std::size_t begin = batch * kClusterRun;
    float sums[kHalves];
    float remains[kHalves];
#pragma unroll
    for (unsigned k = 0; k < kHalves; ++k) {
      const std::size_t i = begin + k * kWarp + lane;
      remains[k] = i < count ? load(i) : 0.0f;
      sums[k] = 0;
    }
    const std::size_t at = batch * kBits + lane;
    const bool has_word = lane < kRunsAtOnce * kBits && at < runs * kBits;
    std::uint64_t next = has_word ? all.ranks[0].codes[at] : 0;
    for (unsigned rank = 0; rank < all.rank_count; ++rank) {
      const DeviceClusters& own = all.ranks[rank];
      __syncwarp();
      if (lane < kRunsAtOnce) {
        randoms[warp][lane] = ClusterSketch::random_of(own.stream, first / kClusterRun + batch + lane);
        if (rank == 0) {
          groups[warp][lane] = static_cast<std::uint32_t>(
              group_of(own.groups, all.group_count, first + begin + lane * kClusterRun));
        }
      }
      if (lane < kRunsAtOnce * kBits) words[warp][lane] = next;
      // The next rank's codes are on their way while this one's are looked up.
      if (rank + 1 < all.rank_count && has_word) next = all.ranks[rank + 1].codes[at];
      __syncwarp();
#pragma unroll
      for (unsigned k = 0; k < kHalves; ++k) {
        const unsigned run = k / 2;
        const unsigned t = k % 2 * kWarp + lane;
        const std::size_t i = begin + k * kWarp + lane;
        if (i < count) {
          const CellGroup* group = own.groups + groups[warp][run];
          while (first + i >= group->end) ++group;
          const float mean =
              mean_of<kBits>(*group, own.means, words[warp] + run * kBits, randoms[warp][run], t);
          sums[k] = rank == 0 ? mean : sums[k] + mean;
          if (rank == self) remains[k] -= mean;
        }
      }
    }
#pragma unroll
    for (unsigned k = 0; k < kHalves; ++k) {
      const std::size_t i = begin + k * kWarp + lane;
      if (i < count) use(i, sums[k], remains[k]);
    }
  }
}

/// values = (values where `add`, else 0) + sum, or sum / divisor.
template <std::size_t kBits>
THINWIRE_KERNEL void decode_kernel(DeviceRanks all, std::size_t first, bool add, float divisor,
                                   std::size_t count, Writes<float> values) {
  for_each_sum<kBits>(
      all, kNobody, first, count, [&](std::size_t i) { return add ? values[i] : 0.0f; },
      [&](std::size_t i, float sum, float before) {
        values[i] = add ? before + sum : divisor == 1.0f ? sum : sum / divisor;
      });
}

/// gradient = sum * factor, residual = gradient + residual - what rank `self` says. residual may be null.
template <std::size_t kBits>
THINWIRE_KERNEL void apply_kernel(DeviceRanks all, unsigned self, float factor, std::size_t count,
                                  Writes<float> gradient, Writes<float> residual, Writes<double> block_sums) {
  double squares = 0;
  for_each_sum<kBits>(
      all, self, 0, count,
      [&](std::size_t i) { return residual != nullptr ? gradient[i] + residual[i] : 0.0f; },
      [&](std::size_t i, float sum, float left) {
        gradient[i] = sum * factor;
        if (residual == nullptr) return;
        residual[i] = left;
        squares += static_cast<double>(left) * static_cast<double>(left);
      });
  write_block_sum(squares, block_sums + blockIdx.x);
}

/// A shard's elements [begin, end), see RecodedShard.
struct DeviceShard {
  std::size_t begin;
  std::size_t end;
  const float* average;
  float world;
};

template <std::size_t kBits>
THINWIRE_KERNEL void subtract_kernel(DeviceRanks all, DeviceShard shard, Reads<float> results,
                                     std::size_t count, Writes<float> gradient, Writes<float> residual,
                                     Writes<double> block_sums) {
  double squares = 0;
  for_each_sum<kBits>(
      all, kNobody, 0, count, [&](std::size_t i) { return gradient[i] + residual[i]; },
      [&](std::size_t i, float delivered, float p) {
        const float result = results[i];
        if (i >= shard.begin && i < shard.end) {
          delivered -= shard.world * (shard.average[i - shard.begin] - result);
        }
        const float left = p - delivered;
        residual[i] = left;
        squares += static_cast<double>(left) * static_cast<double>(left);
        gradient[i] = result;
      });
  write_block_sum(squares, block_sums + blockIdx.x);
}

/// What kernels need of all ranks, on the device. Lives until they are submitted.
class Brought {
 public:
  Brought(CudaExecutor& executor, Span<const CodedClusters> coded)
      : executor_(executor),
        groups_(executor, coded.size() * coded[0].sketch.groups.size()),
        ranks_(executor, coded.size()),
        means_(executor, coded.size() * coded[0].means.size()) {
    const std::size_t count = coded[0].sketch.groups.size();
    std::vector<CellGroup> groups;
    std::vector<DeviceClusters> ranks;
    for (const CodedClusters& one : coded) {
      // Most often all ranks have the same groups.
      const bool shared = !groups.empty() && one.sketch.groups.data() == coded[0].sketch.groups.data();
      const std::size_t first = shared ? 0 : groups.size();
      if (!shared) add_groups(one.sketch, groups);
      float* const means = means_.data() + ranks.size() * one.means.size();
      bring(one.means.data(), means, one.means.size());
      codes_.push_back(std::make_unique<Operand<const std::uint64_t>>(executor, one.codes));
      ranks.push_back({one.sketch.stream, groups_.data() + first, means, codes_.back()->data()});
    }
    bring(groups.data(), groups_.data(), groups.size());
    bring(ranks.data(), ranks_.data(), ranks.size());
    device_ = {count, ranks_.data(), static_cast<unsigned>(ranks.size())};
  }

  const DeviceRanks& device() const { return device_; }

 private:
  static void add_groups(const ClusterSketch& sketch, std::vector<CellGroup>& groups) {
    for (const ClusterGroup& from : sketch.groups) {
      CellGroup group{from.end, from.sizes, {}};
      auto begin = static_cast<std::uint32_t>(from.first_cell);
      for (std::size_t c = 0; c < sketch.clusters(); ++c) {
        group.begins[c] = begin;
        begin += from.sizes[c];
      }
      groups.push_back(group);
    }
  }

  template <class T>
  void bring(const T* from, T* to, std::size_t count) {
    submit_copy(executor_, from, to, count, "a table could not be copied");
  }

  CudaExecutor& executor_;
  Scratch<CellGroup> groups_;
  Scratch<DeviceClusters> ranks_;
  Scratch<float> means_;
  std::vector<std::unique_ptr<Operand<const std::uint64_t>>> codes_;
  DeviceRanks device_{};
};

Grid grid_for_runs(std::size_t count) {
  return grid_for((count + kHalves - 1) / kHalves);
}

void decode(CudaExecutor& executor, Span<const CodedClusters> coded, std::size_t first, bool add,
            float divisor, Span<float> values) {
  const Brought brought(executor, coded);
  Operand v(executor, values);
  const std::size_t bits = coded[0].sketch.bits;
  const auto kernel = bits == 1   ? decode_kernel<1>
                      : bits == 2 ? decode_kernel<2>
                      : bits == 3 ? decode_kernel<3>
                                  : decode_kernel<4>;
  launch(executor.stream(), grid_for_runs(values.size()), kernel, brought.device(), first, add, divisor,
         values.size(), v.data());
  finish(executor, v);
  executor.wait();  // for the frames
}

}  // namespace

void decode_clusters_on_cuda(Executor& executor, const CodedClusters& coded, std::size_t first, bool add,
                             Span<float> values) {
  decode(executor_on_device(executor), {&coded, 1}, first, add, 1, values);
}

void average_clusters_on_cuda(Executor& executor, Span<const CodedClusters> coded, std::size_t first,
                              Span<float> values) {
  decode(executor_on_device(executor), coded, first, false, static_cast<float>(coded.size()), values);
}

double apply_clusters_on_cuda(Executor& executor, Span<const CodedClusters> coded, std::size_t self,
                              Span<float> gradient, ResidualSpan turned) {
  CudaExecutor& own = executor_on_device(executor);
  const Span<float> residual = in_place(own, turned);
  const Brought brought(own, coded);
  const std::size_t bits = coded[0].sketch.bits;
  const auto kernel = bits == 1   ? apply_kernel<1>
                      : bits == 2 ? apply_kernel<2>
                      : bits == 3 ? apply_kernel<3>
                                  : apply_kernel<4>;
  return run_summed(own, grid_for_runs(gradient.size()), kernel, brought.device(),
                    static_cast<unsigned>(self), 1.0f / static_cast<float>(coded.size()), gradient.size(),
                    gradient, residual);
}

double subtract_clusters_on_cuda(Executor& executor, const CodedClusters& coded, const RecodedShard& shard,
                                 Span<const float> results, Span<float> gradient, ResidualSpan turned) {
  if (turned.empty()) {
    copy(executor, results, gradient);
    return 0;
  }
  CudaExecutor& own = executor_on_device(executor);
  const Span<float> residual = in_place(own, turned);
  const Brought brought(own, {&coded, 1});
  const Operand a(own, shard.average);
  const std::size_t bits = coded.sketch.bits;
  const auto kernel = bits == 1   ? subtract_kernel<1>
                      : bits == 2 ? subtract_kernel<2>
                      : bits == 3 ? subtract_kernel<3>
                                  : subtract_kernel<4>;
  return run_summed(own, grid_for_runs(gradient.size()), kernel, brought.device(),
                    DeviceShard{shard.begin, shard.begin + shard.average.size(), a.data(), shard.world},
                    results, gradient.size(), gradient, residual);
}

}  // namespace thinwire
