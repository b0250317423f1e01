// Codes back into values on a CUDA device. Codes mostly lie in host memory, behind a bus: a warp reads a
// run's planes side by side, once.

#include "kernels/codes/dequantize.h"

#include <memory>
#include <vector>

#include "kernels/codes/coded_runs.h"

namespace thinwire {
using namespace cuda;
namespace {

/// use(k, Q(p)) for the lane's elements k * kWarp + lane of a run whose planes the lanes hold. first: the
/// run's first element, `left` of which are there; cursor: at the lane's first.
template <bool kEqualSteps, class Use>
__device__ void decode_run(const QuantizationLevels& levels, RangeCursor cursor, const float* norms,
                           std::uint64_t word, CodeBuffer& buffer, std::size_t first, std::size_t left,
                           Use use) {
  bytes_of_planes(buffer, static_cast<unsigned>(levels.bits), word);
  const auto* bytes = reinterpret_cast<const unsigned char*>(buffer.bytes) + lane_of_warp();
  const float last = levels.last();
  float norm = norms[cursor.range()];
  float unit = norm / last;
#pragma unroll
  for (unsigned k = 0; k < kOfLane; ++k) {
    const unsigned i = k * kWarp + lane_of_warp();
    if (i < left) {
      if (cursor.move_to(first + i)) {
        norm = norms[cursor.range()];
        unit = norm / last;
      }
      const std::uint32_t code = bytes[k * kWarp];
      const std::uint32_t index = code >> 1;
      const float magnitude =
          kEqualSteps ? fminf(static_cast<float>(index) * unit, norm) : levels.values[index] * norm;
      use(k, __uint_as_float(__float_as_uint(magnitude) | code << 31));
    }
  }
}

/// A rank's vector where kernels reach it.
struct Coded {
  const float* norms;
  const std::uint64_t* codes;
};

template <bool kEqualSteps, bool kAdd>
THINWIRE_KERNEL void decode_kernel(const __grid_constant__ QuantizationLevels given,
                                   const __grid_constant__ DeviceScales scales, Coded coded,
                                   std::size_t first, std::size_t count, Writes<float> values) {
  __shared__ CodeBuffer buffers[kWarpsOfBlock];
  const QuantizationLevels& levels = shared_levels(given);
  const unsigned lane = lane_of_warp();
  const std::size_t words_of_run = kCodedRun / 64 * levels.bits;
  const std::size_t words = (count + 63) / 64 * levels.bits;
  const std::uint64_t* codes = coded.codes + first / 64 * levels.bits;
  for (std::size_t run = warp_of_grid(); run * kCodedRun < count; run += warps_of_grid()) {
    const std::size_t begin = run * kCodedRun;
    const std::size_t left = count - begin;
    const std::size_t at = run * words_of_run + lane;
    const std::uint64_t word = lane < words_of_run && at < words ? codes[at] : 0;
    float sums[kOfLane];
    if (kAdd) {
#pragma unroll
      for (unsigned k = 0; k < kOfLane; ++k) {
        const unsigned i = k * kWarp + lane;
        sums[k] = i < left ? values[begin + i] : 0.0f;
      }
    }
    const RangeCursor cursor(scales, first + begin + (lane < left ? lane : 0));
    decode_run<kEqualSteps>(
        levels, cursor, coded.norms, word, buffers[threadIdx.x / kWarp], first + begin, left,
        [&](unsigned k, float value) { values[begin + k * kWarp + lane] = kAdd ? sums[k] + value : value; });
  }
}

/// All ranks' values of a run are added in registers. residual may be null.
template <bool kEqualSteps>
THINWIRE_KERNEL void average_kernel(const __grid_constant__ QuantizationLevels given,
                                    const __grid_constant__ DeviceScales scales, Reads<Coded> ranks,
                                    unsigned count_of_ranks, unsigned self, std::size_t count,
                                    Writes<float> gradient, Writes<float> residual,
                                    Writes<double> block_sums) {
  __shared__ CodeBuffer buffers[kWarpsOfBlock];
  const QuantizationLevels& levels = shared_levels(given);
  const unsigned lane = lane_of_warp();
  const std::size_t words_of_run = kCodedRun / 64 * levels.bits;
  const std::size_t words = (count + 63) / 64 * levels.bits;
  const float factor = 1.0f / static_cast<float>(count_of_ranks);
  double squares = 0;
  for (std::size_t run = warp_of_grid(); run * kCodedRun < count; run += warps_of_grid()) {
    const std::size_t begin = run * kCodedRun;
    const std::size_t left = count - begin;
    const std::size_t at = run * words_of_run + lane;
    const bool has_word = lane < words_of_run && at < words;
    float sums[kOfLane];
    float remains[kOfLane];  // gradient + residual, then less what this rank's codes say
#pragma unroll
    for (unsigned k = 0; k < kOfLane; ++k) {
      const std::size_t i = begin + k * kWarp + lane;
      remains[k] = residual != nullptr && i < count ? gradient[i] + residual[i] : 0.0f;
      sums[k] = 0;
    }
    const RangeCursor cursor(scales, begin + (lane < left ? lane : 0));
    std::uint64_t next = has_word ? ranks[0].codes[at] : 0;
    for (unsigned rank = 0; rank < count_of_ranks; ++rank) {
      // The next rank's codes are on their way while this one's are decoded.
      const std::uint64_t word = next;
      if (rank + 1 < count_of_ranks && has_word) next = ranks[rank + 1].codes[at];
      decode_run<kEqualSteps>(levels, cursor, ranks[rank].norms, word, buffers[threadIdx.x / kWarp], begin,
                              left, [&](unsigned k, float value) {
                                sums[k] = rank == 0 ? value : sums[k] + value;
                                if (rank == self) remains[k] -= value;
                              });
    }
#pragma unroll
    for (unsigned k = 0; k < kOfLane; ++k) {
      const std::size_t i = begin + k * kWarp + lane;
      if (i < count) {
        if (residual != nullptr) {
          residual[i] = remains[k];
          squares += static_cast<double>(remains[k]) * static_cast<double>(remains[k]);
        }
        gradient[i] = sums[k] * factor;
      }
    }
  }
  if (residual != nullptr) write_block_sum(squares, block_sums + blockIdx.x);
}

template <bool kEqualSteps>
auto decode_kernel_for(bool add) {
  return add ? decode_kernel<kEqualSteps, true> : decode_kernel<kEqualSteps, false>;
}

}  // namespace

void dequantize_on_cuda(Executor& executor, const QuantizationLevels& levels,
                        const QuantizationScales& scales, Span<const float> norms,
                        Span<const std::uint64_t> codes, std::size_t first, bool add, Span<float> values) {
  CudaExecutor& own = executor_on_device(executor);
  const TableOnDevice<float> n(own, norms);
  const TableOnDevice<std::size_t> e(own, scales.ends);
  const Operand<const std::uint64_t> c(own, codes);
  run(own, grid_for_coded_runs(values.size()),
      levels.equal_steps ? decode_kernel_for<true>(add) : decode_kernel_for<false>(add), levels,
      DeviceScales{scales.chunk, e.data(), scales.ends.size()}, Coded{n.data(), c.data()}, first,
      values.size(), values);
  own.wait();  // for codes and tables
}

double average_dequantized_on_cuda(Executor& executor, const QuantizationLevels& levels,
                                   const QuantizationScales& scales, Span<const QuantizedVector> vectors,
                                   std::size_t self, Span<float> gradient, ResidualSpan turned) {
  CudaExecutor& own = executor_on_device(executor);
  const Span<float> residual = in_place(own, turned);
  const TableOnDevice<std::size_t> e(own, scales.ends);
  std::vector<std::unique_ptr<TableOnDevice<float>>> norms;
  std::vector<std::unique_ptr<Operand<const std::uint64_t>>> codes;
  std::vector<Coded> coded;
  for (const QuantizedVector& vector : vectors) {
    norms.push_back(std::make_unique<TableOnDevice<float>>(own, vector.norms));
    codes.push_back(std::make_unique<Operand<const std::uint64_t>>(own, vector.codes));
    coded.push_back({norms.back()->data(), codes.back()->data()});
  }
  const TableOnDevice<Coded> table(own, coded);
  // Waits, too, for codes and tables, which lie in host memory.
  const double squares = run_summed(own, grid_for_coded_runs(gradient.size()),
                                    levels.equal_steps ? average_kernel<true> : average_kernel<false>, levels,
                                    DeviceScales{scales.chunk, e.data(), scales.ends.size()}, table.data(),
                                    static_cast<unsigned>(vectors.size()), static_cast<unsigned>(self),
                                    gradient.size(), gradient, residual);
  return residual.empty() ? 0 : squares;
}

}  // namespace thinwire
