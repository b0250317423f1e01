// Stochastic quantization on a CUDA device. Chunks that fit into a block's shared memory are read once: their
// norms are taken and they are coded from there. Larger ones, and ranges, are measured first.
//
// A random block decides eight elements, 16 apart, so a lane has elements l + 16 q of a pair of 64 and 16
// lanes have the pair.
//
// Norms of ranges are to be read by the host: blocks take chunks, and the host joins them.

#include "kernels/codes/quantize.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <vector>

#include "kernels/codes/coded_runs.h"
#include "kernels/codes/fine_rounding.h"

namespace thinwire {
using namespace cuda;
namespace {

constexpr unsigned kHalf = kWarp / 2;
constexpr auto kPairSize = static_cast<unsigned>(kPair);
/// Elements of shared memory that a block codes at once, and the longest chunk for which that can be.
constexpr unsigned kTile = 8192;
constexpr unsigned kMostShared = 10240;

/// What a lane has of a pair: the elements before it in the run, its number among 16.
__device__ unsigned first_of_lane() {
  return lane_of_warp() / kHalf * kPairSize + lane_of_warp() % kHalf;
}

/// For one element in 30,000.
__device__ __noinline__ std::uint8_t decide_finely_on_device(const QuantizationLevels& levels,
                                                             RandomStream stream, std::size_t pair,
                                                             std::size_t i, float magnitude, bool negative) {
  return decide_finely(levels, stream, pair, i, magnitude, negative);
}

/// The code of an element but for the sign's bit where 16 bits decide; `sum` tells whether they do.
template <bool kEqualSteps>
__device__ std::uint32_t code_of(const QuantizationLevels& levels, float magnitude, std::uint32_t sign,
                                 std::uint32_t random, std::uint32_t& sum) {
  if constexpr (kEqualSteps) {
    const float scale = levels.last() * 65536.0f;
    sum = __float_as_uint(fminf(magnitude * scale, scale) + kMagic) + random;
    return ((sum >> 15) & ~1u) | sign;
  } else {
    const float a = fminf(magnitude, 1.0f);
    std::uint32_t j = 0;
    for (std::uint32_t half = 1u << (levels.bits - 2); half != 0; half /= 2) {
      if (a >= levels.values[j | half]) j |= half;
    }
    float y = fminf((a - levels.values[j]) * levels.slopes[j], 65536.0f);
    const bool below_all = a < levels.values[0];
    if (below_all) y = (a + levels.values[0]) * levels.lowest_slope;
    sum = __float_as_uint(y + kMagic) + random;
    const std::uint32_t up = (sum - kMagicBits) >> 16;
    if (below_all) return up != 0 ? sign : sign ^ 1;
    return (j + up) << 1 | sign;
  }
}

/// Codes of a run, of which the lane has p[q], to be scaled by inverse(q): the lane's word of their planes.
/// pair: of the lane's elements.
template <bool kEqualSteps, class Inverse>
__device__ std::uint64_t encode_run(const QuantizationLevels& levels, const RandomStream& stream,
                                    std::size_t pair, const float (&p)[kOfLane], Inverse inverse,
                                    CodeBuffer& buffer) {
  const unsigned of_pair = lane_of_warp() % kHalf;
  PhiloxCounter random{};
  if (!levels.nearest) random = stream.block(static_cast<std::uint32_t>(16 * pair) + of_pair, 0);
  auto* bytes = reinterpret_cast<unsigned char*>(buffer.bytes) + first_of_lane();
#pragma unroll
  for (unsigned q = 0; q < kOfLane; ++q) {
    const std::uint32_t drawn = q < 4 ? random[q] & 0xFFFFu : random[q - 4] >> 16;
    const std::uint32_t u = levels.nearest ? kToNearest : drawn;
    const float magnitude = fabsf(p[q]) * inverse(q);
    const std::uint32_t sign = __float_as_uint(p[q]) >> 31;
    std::uint32_t sum = 0;
    std::uint32_t code = code_of<kEqualSteps>(levels, magnitude, sign, u, sum);
    if (!levels.nearest && sum << 16 <= kLeastClear) {
      code = decide_finely_on_device(levels, stream, pair, q * kHalf + of_pair, magnitude, sign != 0);
    }
    bytes[q * kHalf] = static_cast<unsigned char>(code);
  }
  return planes_of_bytes(buffer, static_cast<unsigned>(levels.bits));
}

/// Norms of a tile's chunks, of which first_chunk is the first, and their inverses, from what its pairs say.
template <class Norm>
__device__ __forceinline__ void join_norms(const typename Norm::Partial* partials, unsigned elements,
                                           unsigned chunk, std::size_t first_chunk, float* inverses,
                                           Writes<float> norms, std::uint32_t* flag) {
  for (unsigned c = threadIdx.x / kWarp; c * chunk < elements; c += kWarpsOfBlock) {
    const unsigned end = (c + 1) * chunk < elements ? (c + 1) * chunk : elements;
    typename Norm::Partial whole = 0;
    for (unsigned pair = c * chunk / kPairSize + lane_of_warp(); pair * kPairSize < end; pair += kWarp) {
      whole = Norm::join(whole, partials[pair]);
    }
    const float norm = Norm::norm(joined_of_warp<Norm>(whole));
    if (lane_of_warp() == 0) {
      if (!is_finite(norm)) *flag = 1;
      inverses[c] = inverse_of(norm);
      norms[first_chunk + c] = inverses[c] == 0.0f ? 0.0f : norm;
    }
  }
}

/// A block takes `tile` elements at a time, a whole number of chunks: reads them into shared memory, joins
/// what its pairs say of their norms, and codes them.
template <bool kEqualSteps, class Norm>
THINWIRE_KERNEL void chunks_kernel(const __grid_constant__ QuantizationLevels given, RandomStream stream,
                                   Reads<float> gradient, Reads<float> residual, std::size_t count,
                                   unsigned chunk, unsigned tile, Writes<float> norms,
                                   Writes<std::uint64_t> codes, std::uint32_t* flag) {
  THINWIRE_SHARED_MEMORY(float, p);  // [tile], up to whole runs
  __shared__ CodeBuffer buffers[kWarpsOfBlock];
  __shared__ typename Norm::Partial partials[(kMostShared + kCodedRun) / kPair];
  __shared__ float inverses[kMostShared / kPair];  // of chunks
  const QuantizationLevels& levels = shared_levels(given);
  const unsigned warp = threadIdx.x / kWarp;
  const unsigned lane = lane_of_warp();
  const auto bits = static_cast<unsigned>(levels.bits);
  for (std::size_t begin = std::size_t{blockIdx.x} * tile; begin < count;
       begin += std::size_t{gridDim.x} * tile) {
    const unsigned here = count - begin < tile ? static_cast<unsigned>(count - begin) : tile;
    for (unsigned run = warp * kCodedRun; run < here; run += kWarpsOfBlock * kCodedRun) {
      float loaded[kOfLane];
#pragma unroll
      for (unsigned k = 0; k < kOfLane; ++k) {
        const unsigned i = run + k * kWarp + lane;
        loaded[k] = i < here ? sum_at(gradient, residual, begin + i) : 0.0f;
      }
      typename Norm::Partial of_pair[2] = {0, 0};
#pragma unroll
      for (unsigned k = 0; k < kOfLane; ++k) {
        p[run + k * kWarp + lane] = loaded[k];
        of_pair[k / 4] = Norm::join(of_pair[k / 4], Norm::of(loaded[k]));
      }
      for (unsigned k = 0; k < 2; ++k) {
        const auto joined = joined_of_warp<Norm>(of_pair[k]);
        if (lane == 0) partials[run / kPair + k] = joined;
      }
    }
    __syncthreads();
    join_norms<Norm>(partials, here, chunk, begin / chunk, inverses, norms, flag);
    __syncthreads();
    const unsigned words = (here + 63) / 64 * bits;
    for (unsigned run = warp * kCodedRun; run < here; run += kWarpsOfBlock * kCodedRun) {
      const unsigned first = run + first_of_lane();
      float values[kOfLane];
#pragma unroll
      for (unsigned q = 0; q < kOfLane; ++q) values[q] = p[first + q * kHalf];
      const float inverse = first < here ? inverses[first / chunk] : 0.0f;
      const std::uint64_t word = encode_run<kEqualSteps>(
          levels, stream, (begin + first) / kPair, values, [&](unsigned) { return inverse; }, buffers[warp]);
      const unsigned at = run / 64 * bits + lane;
      if (lane < kCodedRun / 64 * bits && at < words) codes[begin / 64 * bits + at] = word;
    }
    __syncthreads();
  }
}

/// inverses: of the norms of all ranges.
template <bool kEqualSteps>
THINWIRE_KERNEL void encode_kernel(const __grid_constant__ QuantizationLevels given, RandomStream stream,
                                   const __grid_constant__ DeviceScales scales, Reads<float> inverses,
                                   Reads<float> gradient, Reads<float> residual, std::size_t count,
                                   Writes<std::uint64_t> codes) {
  __shared__ CodeBuffer buffers[kWarpsOfBlock];
  const QuantizationLevels& levels = shared_levels(given);
  const auto bits = static_cast<unsigned>(levels.bits);
  const unsigned lane = lane_of_warp();
  const std::size_t words = (count + 63) / 64 * bits;
  for (std::size_t run = warp_of_grid(); run * kCodedRun < count; run += warps_of_grid()) {
    const std::size_t first = run * kCodedRun + first_of_lane();
    float values[kOfLane];
#pragma unroll
    for (unsigned q = 0; q < kOfLane; ++q) {
      const std::size_t i = first + q * kHalf;
      values[q] = i < count ? sum_at(gradient, residual, i) : 0.0f;
    }
    RangeCursor cursor(scales, first < count ? first : count - 1);
    float inverse = inverses[cursor.range()];
    const std::uint64_t word = encode_run<kEqualSteps>(
        levels, stream, first / kPair, values,
        [&](unsigned q) {
          const std::size_t i = first + q * kHalf;
          if (i < count && cursor.move_to(i)) inverse = inverses[cursor.range()];
          return inverse;
        },
        buffers[threadIdx.x / kWarp]);
    const std::size_t at = run * (kCodedRun / 64 * bits) + lane;
    if (lane < kCodedRun / 64 * bits && at < words) codes[at] = word;
  }
}

/// By the norms of ranges or chunks, which are given in host memory.
void encode(CudaExecutor& own, const RandomStream& stream, const QuantizationLevels& levels,
            const DeviceScales& scales, Span<const float> norms, const float* gradient, const float* residual,
            std::size_t count, std::uint64_t* codes) {
  std::vector<float> inverses(norms.begin(), norms.end());
  for (float& norm : inverses) norm = inverse_of(norm);
  const TableOnDevice<float> on_device(own, inverses);
  const auto kernel = levels.equal_steps ? encode_kernel<true> : encode_kernel<false>;
  launch(own.stream(), grid_for_coded_runs(count), kernel, levels, stream, scales, on_device.data(), gradient,
         residual, count, codes);
}

template <class Norm>
auto chunks_kernel_for(const QuantizationLevels& levels) {
  return levels.equal_steps ? chunks_kernel<true, Norm> : chunks_kernel<false, Norm>;
}

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

}  // namespace

bool quantize_chunks_on_cuda(Executor& executor, const RandomStream& stream, const QuantizationLevels& levels,
                             QuantizationNorm norm, std::size_t chunk, Span<const float> gradient,
                             Span<const float> residual, Span<float> norms, Span<std::uint64_t> codes) {
  CudaExecutor& own = executor_on_device(executor);
  const std::size_t count = gradient.size();
  const Operand g(own, gradient);
  const Operand r(own, residual);
  Operand c(own, codes);
  const bool largest = norm == QuantizationNorm::largest;
  if (chunk <= kMostShared) {
    Operand n(own, norms);
    const Findings findings(own);
    const auto tile = static_cast<unsigned>(chunk * std::max<std::size_t>(1, kTile / chunk));
    const std::size_t tiles = (count + tile - 1) / tile;
    const Grid grid{static_cast<unsigned>(std::min(tiles, kMostBlocks)), kThreads,
                    (tile + kCodedRun - 1) / kCodedRun * kCodedRun * sizeof(float)};
    launch(own.stream(), grid, largest ? chunks_kernel_for<Largest>(levels) : chunks_kernel_for<L2>(levels),
           levels, stream, g.data(), r.data(), count, static_cast<unsigned>(chunk), tile, n.data(), c.data(),
           findings.flag());
    finish(own, c, n);
    return !findings.flagged();
  }
  std::vector<float> lengths(norms.size());
  std::vector<double> squares(largest ? 0 : norms.size());
  std::vector<std::size_t> ends(norms.size());
  for (std::size_t k = 0; k < ends.size(); ++k) ends[k] = std::min(count, (k + 1) * chunk);
  measure_ranges(executor, ends, gradient, residual, lengths, squares);
  for (std::size_t k = 0; k < lengths.size(); ++k) {
    if (!largest) lengths[k] = float_of(std::sqrt(squares[k]));
    if (!std::isfinite(lengths[k])) return false;
    if (inverse_of(lengths[k]) == 0.0f) lengths[k] = 0.0f;
  }
  copy(own, Span<const float>(lengths), norms);
  encode(own, stream, levels, {chunk, nullptr, 0}, lengths, g.data(), r.data(), count, c.data());
  finish(own, c);
  return true;
}

void quantize_ranges_on_cuda(Executor& executor, const RandomStream& stream, const QuantizationLevels& levels,
                             Span<const std::size_t> ends, Span<const float> norms,
                             Span<const float> gradient, Span<const float> residual,
                             Span<std::uint64_t> codes) {
  CudaExecutor& own = executor_on_device(executor);
  const Operand g(own, gradient);
  const Operand r(own, residual);
  const TableOnDevice<std::size_t> e(own, ends);
  Operand c(own, codes);
  std::vector<float> on_host(norms.size());
  copy(own, norms, Span<float>(on_host));
  encode(own, stream, levels, {0, e.data(), ends.size()}, on_host, g.data(), r.data(), gradient.size(),
         c.data());
  finish(own, c);
  own.wait();
}

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
    largest[range] = std::bit_cast<float>(most);
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
