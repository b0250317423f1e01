// What CASQ's codes say, on a CUDA device. A warp takes 32 runs of 64 elements at a time: its lanes fetch
// their words side by side, which matters as frames lie in the host's memory, and draw a run's random number
// each. Means are fetched at random places, so they come to the device first.

#include <algorithm>
#include <memory>
#include <vector>

#include "kernels/cluster_values.h"
#include "kernels/device.h"

namespace thinwire::cuda {
namespace {

/// Where the buckets of a group's clusters lie.
struct BucketGroup {
  std::size_t end;
  PerCluster<std::uint32_t> sizes;
  PerCluster<std::uint32_t> begins;
};

/// CodedClusters as kernels take them.
struct DeviceClusters {
  const BucketGroup* groups;
  std::size_t group_count;
  RandomStream stream;
  const float* means;
  const std::uint64_t* codes;
};

/// The first group that ends behind the element.
__device__ std::size_t group_of(const BucketGroup* groups, std::size_t count, std::size_t element) {
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

/// body(i, mean of the bucket of element first + i) for i in [0, count), each by one thread.
template <std::size_t kBits, class Body>
__device__ void for_each_mean(const DeviceClusters& coded, std::size_t first, std::size_t count, Body body) {
  constexpr unsigned kWarps = kThreads / kWarp;
  __shared__ std::uint64_t words[kWarps][kWarp * kBits];
  __shared__ std::uint32_t randoms[kWarps][kWarp];
  __shared__ std::uint32_t groups[kWarps][kWarp];
  const unsigned warp = threadIdx.x / kWarp;
  const unsigned lane = lane_of_warp();
  const std::size_t runs = (count + kClusterRun - 1) / kClusterRun;
  const std::size_t first_run = first / kClusterRun;
  for (std::size_t batch = warp_of_grid() * kWarp; batch < runs; batch += warps_of_grid() * kWarp) {
    __syncwarp();
#pragma unroll
    for (unsigned k = 0; k < kBits; ++k) {
      const std::size_t word = batch * kBits + k * kWarp + lane;
      if (word < runs * kBits) words[warp][k * kWarp + lane] = coded.codes[word];
    }
    if (batch + lane < runs) {
      randoms[warp][lane] = ClusterSketch::random_of(coded.stream, first_run + batch + lane);
      groups[warp][lane] = static_cast<std::uint32_t>(
          group_of(coded.groups, coded.group_count, first + (batch + lane) * kClusterRun));
    }
    __syncwarp();
    const unsigned here = runs - batch < kWarp ? static_cast<unsigned>(runs - batch) : kWarp;
#pragma unroll 2
    for (unsigned k = 0; k < 2 * here; ++k) {
      const unsigned run = k / 2;
      const unsigned t = k % 2 * kWarp + lane;
      const std::size_t i = (batch + run) * kClusterRun + t;
      if (i >= count) continue;
      const BucketGroup* group = coded.groups + groups[warp][run];
      while (first + i >= group->end) ++group;
      unsigned code = 0;
#pragma unroll
      for (unsigned bit = 0; bit < kBits; ++bit) {
        code |= static_cast<unsigned>((words[warp][run * kBits + bit] >> t) & 1) << bit;
      }
      const std::uint32_t size = group->sizes[code];
      const std::uint64_t random = randoms[warp][run];
      std::uint64_t place = ((random * size) >> 32) + t;
      if (place >= size) place = size >= kClusterRun ? place - size : place % size;
      body(i, coded.means[group->begins[code] + place]);
    }
  }
}

/// values = (values where `add`, else 0) + mean; divided by `divisor`.
template <std::size_t kBits>
__global__ void __launch_bounds__(kThreads)
    decode_kernel(DeviceClusters coded, std::size_t first, bool add, float divisor, std::size_t count,
                  float* __restrict__ values) {
  for_each_mean<kBits>(coded, first, count, [&](std::size_t i, float mean) {
    const float value = add ? values[i] + mean : mean;
    values[i] = divisor == 1.0f ? value : value / divisor;
  });
}

template <std::size_t kBits>
__global__ void __launch_bounds__(kThreads)
    subtract_kernel(DeviceClusters coded, std::size_t shard_begin, std::size_t shard_end,
                    const float* __restrict__ average, float world, const float* __restrict__ results,
                    std::size_t count, float* __restrict__ gradient, float* __restrict__ residual,
                    double* __restrict__ sums) {
  double squares = 0;
  for_each_mean<kBits>(coded, 0, count, [&](std::size_t i, float delivered) {
    const float result = results[i];
    if (i >= shard_begin && i < shard_end) delivered -= world * (average[i - shard_begin] - result);
    const float left = gradient[i] + residual[i] - delivered;
    residual[i] = left;
    squares += static_cast<double>(left) * static_cast<double>(left);
    gradient[i] = result;
  });
  write_block_sum(squares, sums + blockIdx.x);
}

/// What kernels need of CodedClusters, on the device. Lives until they are submitted.
class Brought {
 public:
  Brought(CudaExecutor& executor, const CodedClusters& coded)
      : groups_(executor, coded.sketch.groups.size()), codes_(executor, coded.codes) {
    std::vector<BucketGroup> groups;
    for (const ClusterGroup& from : coded.sketch.groups) {
      BucketGroup group{from.end, from.sizes, {}};
      auto begin = static_cast<std::uint32_t>(from.first_bucket);
      for (std::size_t c = 0; c < coded.sketch.clusters(); ++c) {
        group.begins[c] = begin;
        begin += from.sizes[c];
      }
      groups.push_back(group);
    }
    bring(executor, groups.data(), groups_.data(), groups.size());
    const float* means = coded.means.data();
    if (coded.means.memory() != Memory::cuda) {
      means_ = std::make_unique<Scratch<float>>(executor, coded.means.size());
      bring(executor, means, means_->data(), coded.means.size());
      means = means_->data();
    }
    device_ = {groups_.data(), groups.size(), coded.sketch.stream, means, codes_.data()};
  }

  const DeviceClusters& device() const { return device_; }
  /// Whether the host may touch something of it only when the kernels are done.
  bool on_host() const { return codes_.on_host() || means_ != nullptr; }

 private:
  template <class T>
  static void bring(CudaExecutor& executor, const T* from, T* to, std::size_t count) {
    if (count == 0) return;
    check(cudaMemcpyAsync(to, from, count * sizeof(T), cudaMemcpyDefault, executor.stream()),
          "a table could not be copied");
  }

  Scratch<BucketGroup> groups_;
  Operand<const std::uint64_t> codes_;
  std::unique_ptr<Scratch<float>> means_;
  DeviceClusters device_{};
};

void decode(CudaExecutor& executor, const Brought& coded, std::size_t bits, std::size_t first, bool add,
            float divisor, std::size_t count, float* values) {
  const auto kernel = bits == 1   ? decode_kernel<1>
                      : bits == 2 ? decode_kernel<2>
                      : bits == 3 ? decode_kernel<3>
                                  : decode_kernel<4>;
  launch(executor.stream(), grid_for(count, kClusterRun), kernel, coded.device(), first, add, divisor, count,
         values);
}

}  // namespace

void decode_clusters(Executor& executor, const CodedClusters& coded, std::size_t first, bool add,
                     Span<float> values) {
  CudaExecutor& own = executor_on_device(executor);
  Operand v(own, values);
  const Brought brought(own, coded);
  decode(own, brought, coded.sketch.bits, first, add, 1.0f, values.size(), v.data());
  finish(own, v);
  if (brought.on_host()) own.wait();
}

void average_clusters(Executor& executor, Span<const CodedClusters> coded, std::size_t first,
                      Span<float> values) {
  CudaExecutor& own = executor_on_device(executor);
  Operand v(own, values);
  for (std::size_t rank = 0; rank < coded.size(); ++rank) {
    const Brought brought(own, coded[rank]);
    const bool last = rank + 1 == coded.size();
    decode(own, brought, coded[rank].sketch.bits, first, rank != 0,
           last ? static_cast<float>(coded.size()) : 1.0f, values.size(), v.data());
  }
  finish(own, v);
  own.wait();  // for the frames
}

double subtract_clusters(Executor& executor, const CodedClusters& coded, const RecodedShard& shard,
                         Span<const float> results, Span<float> gradient, Span<float> residual) {
  if (residual.empty()) {
    copy(executor, results, gradient);
    return 0;
  }
  CudaExecutor& own = executor_on_device(executor);
  const Operand a(own, shard.average);
  const Operand o(own, results);
  Operand g(own, gradient);
  Operand r(own, residual);
  const Brought brought(own, coded);
  const Grid grid = grid_for(gradient.size(), kClusterRun);
  const Findings findings(own, grid);
  const auto kernel = coded.sketch.bits == 1   ? subtract_kernel<1>
                      : coded.sketch.bits == 2 ? subtract_kernel<2>
                      : coded.sketch.bits == 3 ? subtract_kernel<3>
                                               : subtract_kernel<4>;
  launch(own.stream(), grid, kernel, brought.device(), shard.begin, shard.begin + shard.average.size(),
         a.data(), shard.world, o.data(), gradient.size(), g.data(), r.data(), findings.sums());
  finish(own, g, r);
  return findings.sum();
}

}  // namespace thinwire::cuda
