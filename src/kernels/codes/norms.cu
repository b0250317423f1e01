// Norms of ranges on a CUDA device, to be read by the host: blocks take chunks, and the host joins them.

#include "kernels/codes/norms.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "kernels/codes/coded_runs.h"

namespace thinwire {
using namespace cuda;
namespace {

/// A part of a range, and what it holds.
struct Chunk {
  std::size_t begin;
  std::size_t end;
};
struct Measure {
  double squares;
  std::uint32_t largest;
};

/// A block measures a chunk at a time.
template <bool kSquares>
THINWIRE_KERNEL void measure_kernel(Reads<Chunk> chunks, std::size_t count, Reads<float> gradient,
                                    Reads<float> residual, Writes<Measure> measures) {
  __shared__ std::uint32_t largest_of_warps[kWarpsOfBlock];
  __shared__ double squares_of_block;
  for (std::size_t k = blockIdx.x; k < count; k += gridDim.x) {
    const Chunk chunk = chunks[k];
    std::uint32_t largest = 0;
    double squares = 0;
    auto take = [&](float p) {
      largest = Largest::join(largest, Largest::of(p));
      if (kSquares) squares += L2::of(p);
    };
    std::size_t i = chunk.begin + threadIdx.x;
    for (; i + 3 * kThreads < chunk.end; i += 4 * kThreads) {
      float p[4];
#pragma unroll
      for (unsigned u = 0; u < 4; ++u) p[u] = sum_at(gradient, residual, i + u * kThreads);
#pragma unroll
      for (unsigned u = 0; u < 4; ++u) take(p[u]);
    }
    for (; i < chunk.end; i += kThreads) take(sum_at(gradient, residual, i));
    largest = joined_of_warp<Largest>(largest);
    if (lane_of_warp() == 0) largest_of_warps[threadIdx.x / kWarp] = largest;
    if (kSquares) write_block_sum(squares, &squares_of_block);
    __syncthreads();
    if (threadIdx.x == 0) {
      for (unsigned w = 1; w < kWarpsOfBlock; ++w) {
        largest = Largest::join(largest, largest_of_warps[w]);
      }
      measures[k] = {kSquares ? squares_of_block : 0.0, largest};
    }
    __syncthreads();
  }
}

float float_of_bits(std::uint32_t bits) {
  float value = 0;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

}  // namespace

void measure_ranges_on_cuda(Executor& executor, Span<const std::size_t> ends, Span<const float> gradient,
                            Span<const float> residual, Span<float> largest, Span<double> squares) {
  CudaExecutor& own = executor_on_device(executor);
  // Enough for every multiprocessor, and few enough for the host to join them.
  const std::size_t chunk = std::max<std::size_t>(16384, gradient.size() / 8192);
  std::vector<Chunk> chunks;
  std::size_t begin = 0;
  for (const std::size_t end : ends) {
    for (; begin < end; begin = chunks.back().end) chunks.push_back({begin, std::min(end, begin + chunk)});
  }
  const TableOnDevice<Chunk> table(own, chunks);
  auto* measures = static_cast<Measure*>(own.results(chunks.size() * sizeof(Measure)));
  const Grid grid{static_cast<unsigned>(std::min(chunks.size(), kMostBlocks)), kThreads};
  const auto kernel = squares.empty() ? measure_kernel<false> : measure_kernel<true>;
  run(own, grid, kernel, table.data(), chunks.size(), gradient, residual, measures);
  own.wait();
  std::size_t k = 0;
  for (std::size_t range = 0; range < ends.size(); ++range) {
    std::uint32_t most = 0;
    double sum = 0;
    for (; k < chunks.size() && chunks[k].end <= ends[range]; ++k) {
      most = std::max(most, measures[k].largest);
      sum += measures[k].squares;
    }
    largest[range] = float_of_bits(most);
    if (!squares.empty()) squares[range] = sum;
  }
}

float largest_magnitude_on_cuda(Executor& executor, Span<const float> gradient, Span<const float> residual) {
  const std::size_t end = gradient.size();
  float largest = 0;
  measure_ranges_on_cuda(executor, Span<const std::size_t>(&end, 1), gradient, residual,
                         Span<float>(&largest, 1), {});
  return largest;
}

}  // namespace thinwire
