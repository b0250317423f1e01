// Sign bits on a CUDA device. A warp votes: lane l of a vote is bit l of half a word.

#include <memory>
#include <vector>

#include "kernels/device/device.h"
#include "kernels/signs/sign_bits.h"

namespace thinwire {
using namespace cuda;
namespace {

/// Words whose elements a thread loads before it uses the first.
constexpr unsigned kWordsUnderWay = 4;
/// Elements of the words that a warp takes at once.
constexpr std::size_t kRun = std::size_t{kWordsAtOnce} * 64;

/// The word of 64 elements, of which every lane has two.
__device__ std::uint64_t vote(float low, float high) {
  return __ballot_sync(kAllLanes, low >= 0.0f) |
         static_cast<std::uint64_t>(__ballot_sync(kAllLanes, high >= 0.0f)) << kWarp;
}

template <bool kResidual>
THINWIRE_KERNEL void pack_kernel(Reads<float> gradient, Reads<float> residual, std::size_t count,
                                 Writes<std::uint64_t> bits, std::uint32_t* flag) {
  const unsigned lane = lane_of_warp();
  bool wrong = false;
  auto load = [&](std::size_t i) { return kResidual ? gradient[i] + residual[i] : gradient[i]; };
  for (std::size_t run = warp_of_grid(); run * kRun < count; run += warps_of_grid()) {
    const std::size_t first = run * kRun + lane;
    std::uint64_t own = 0;
    if ((run + 1) * kRun <= count) {
      for (unsigned word = 0; word < kWordsAtOnce; word += kWordsUnderWay) {
        float p[2 * kWordsUnderWay];
#pragma unroll
        for (unsigned k = 0; k < 2 * kWordsUnderWay; ++k) p[k] = load(first + word * 64 + k * kWarp);
#pragma unroll
        for (unsigned k = 0; k < kWordsUnderWay; ++k) {
          wrong = wrong || !is_finite(p[2 * k]) || !is_finite(p[2 * k + 1]);
          const std::uint64_t votes = vote(p[2 * k], p[2 * k + 1]);
          if (lane == word + k) own = votes;
        }
      }
      if (lane < kWordsAtOnce) bits[run * kWordsAtOnce + lane] = own;
    } else {
      for (std::size_t word = run * kWordsAtOnce; word * 64 < count; ++word) {
        const std::size_t low = word * 64 + lane;
        const std::size_t high = low + kWarp;
        const float a = low < count ? load(low) : -1.0f;
        const float b = high < count ? load(high) : -1.0f;
        wrong = wrong || !is_finite(a) || !is_finite(b);
        const std::uint64_t votes = vote(a, b);
        if (lane == 0) bits[word] = votes;
      }
    }
  }
  report_if(wrong, flag);
}

THINWIRE_KERNEL void merge_kernel(Writes<std::uint64_t> own, Reads<std::uint64_t> received,
                                  Reads<std::uint64_t> take_own, std::size_t words) {
  for_each_element(
      words, [&](std::size_t i) { return (take_own[i] & own[i]) | (~take_own[i] & received[i]); },
      [&](std::size_t i, std::uint64_t word) { own[i] = word; });
}

/// use(i, bit i, load(i)) for every i < count. A warp reads a run's words side by side and hands them round.
template <class Load, class Use>
__device__ void for_each_bit(Reads<std::uint64_t> bits, std::size_t count, Load load, Use use) {
  constexpr unsigned kRows = 2 * kWordsUnderWay;
  const unsigned lane = lane_of_warp();
  for (std::size_t run = warp_of_grid(); run * kRun < count; run += warps_of_grid()) {
    const std::size_t first = run * kRun + lane;
    if ((run + 1) * kRun <= count) {
      const std::uint64_t own = bits[run * kWordsAtOnce + lane % kWordsAtOnce];
      for (unsigned row = 0; row < 2 * kWordsAtOnce; row += kRows) {
        decltype(load(first)) loaded[kRows];
#pragma unroll
        for (unsigned k = 0; k < kRows; ++k) loaded[k] = load(first + (row + k) * kWarp);
#pragma unroll
        for (unsigned k = 0; k < kRows; ++k) {
          const std::uint64_t word = __shfl_sync(kAllLanes, own, static_cast<int>((row + k) / 2));
          use(first + (row + k) * kWarp, ((word >> (k % 2 * kWarp + lane)) & 1) != 0, loaded[k]);
        }
      }
    } else {
      for (std::size_t i = first; i < count; i += kWarp) use(i, bit_at(bits, i), load(i));
    }
  }
}

template <bool kResidual>
THINWIRE_KERNEL void apply_kernel(Reads<std::uint64_t> bits, float scale, std::size_t count,
                                  Writes<float> gradient, Writes<float> residual, Writes<double> sums) {
  double squares = 0;
  for_each_bit(
      bits, count, [&](std::size_t i) { return kResidual ? gradient[i] + residual[i] : 0.0f; },
      [&](std::size_t i, bool bit, float p) {
        const float step = bit ? scale : -scale;
        if (kResidual) {
          const float left = p - step;
          residual[i] = left;
          squares += static_cast<double>(left) * static_cast<double>(left);
        }
        gradient[i] = step;
      });
  if (kResidual) write_block_sum(squares, sums + blockIdx.x);
}

THINWIRE_KERNEL void accumulate_kernel(Reads<std::uint64_t> bits, float scale, std::size_t count,
                                       Writes<float> sums) {
  for_each_bit(
      bits, count, [&](std::size_t i) { return sums[i]; },
      [&](std::size_t i, bool bit, float sum) { sums[i] = sum + (bit ? scale : -scale); });
}

/// A rank's vector where kernels reach it.
struct Signs {
  const std::uint64_t* bits;
  float scale;
};

/// All ranks' values of a run are added in registers.
template <bool kResidual>
THINWIRE_KERNEL void average_kernel(Reads<Signs> ranks, unsigned count_of_ranks, unsigned self,
                                    std::size_t count, Writes<float> gradient, Writes<float> residual,
                                    Writes<double> block_sums) {
  constexpr unsigned kRows = 2 * kWordsAtOnce;
  const std::size_t words = (count + 63) / 64;
  const unsigned lane = lane_of_warp();
  const float factor = 1.0f / static_cast<float>(count_of_ranks);
  double squares = 0;
  auto bit_of = [&](std::uint64_t own, unsigned row) {
    const std::uint64_t word = __shfl_sync(kAllLanes, own, static_cast<int>(row / 2));
    return ((word >> (row % 2 * kWarp + lane)) & 1) != 0;
  };
  for (std::size_t run = warp_of_grid(); run * kRun < count; run += warps_of_grid()) {
    const std::size_t word = run * kWordsAtOnce + lane;
    const bool has_word = lane < kWordsAtOnce && word < words;
    float sums[kRows] = {};
    std::uint64_t own = 0;
    std::uint64_t next = has_word ? ranks[0].bits[word] : 0;
    for (unsigned rank = 0; rank < count_of_ranks; ++rank) {
      // The next rank's bits are on their way while this one's are added.
      const std::uint64_t bits = next;
      if (rank + 1 < count_of_ranks && has_word) next = ranks[rank + 1].bits[word];
      if (rank == self) own = bits;
      const float scale = ranks[rank].scale;
#pragma unroll
      for (unsigned row = 0; row < kRows; ++row) sums[row] += bit_of(bits, row) ? scale : -scale;
    }
    const float scale = ranks[self].scale;
#pragma unroll
    for (unsigned first = 0; first < kRows; first += 2 * kWordsUnderWay) {
      float p[2 * kWordsUnderWay];
#pragma unroll
      for (unsigned k = 0; k < 2 * kWordsUnderWay; ++k) {
        const std::size_t i = run * kRun + (first + k) * kWarp + lane;
        p[k] = kResidual && i < count ? gradient[i] + residual[i] : 0.0f;
      }
#pragma unroll
      for (unsigned k = 0; k < 2 * kWordsUnderWay; ++k) {
        const std::size_t i = run * kRun + (first + k) * kWarp + lane;
        const float step = kResidual && bit_of(own, first + k) ? scale : -scale;
        if (i < count) {
          if (kResidual) {
            const float left = p[k] - step;
            residual[i] = left;
            squares += static_cast<double>(left) * static_cast<double>(left);
          }
          gradient[i] = sums[first + k] * factor;
        }
      }
    }
  }
  if (kResidual) write_block_sum(squares, block_sums + blockIdx.x);
}

}  // namespace

bool pack_signs_on_cuda(Executor& executor, Span<const float> gradient, Span<const float> residual,
                        Span<std::uint64_t> bits) {
  return run_flagged(executor, grid_for_words(sign_words(gradient.size())),
                     residual.empty() ? pack_kernel<false> : pack_kernel<true>, gradient, residual,
                     gradient.size(), bits);
}

void merge_signs_on_cuda(Executor& executor, Span<std::uint64_t> own_bits, Span<const std::uint64_t> received,
                         Span<const std::uint64_t> take_own) {
  run(executor, grid_for_elements(own_bits.size()), merge_kernel, own_bits, received, take_own,
      own_bits.size());
}

double apply_signs_on_cuda(Executor& executor, Span<const std::uint64_t> bits, float scale,
                           Span<float> gradient, ResidualSpan turned) {
  CudaExecutor& own = executor_on_device(executor);
  const Span<float> residual = in_place(own, turned);
  const Grid grid = grid_for_words(sign_words(gradient.size()));
  const Findings findings(own, grid);
  run(own, grid, residual.empty() ? apply_kernel<false> : apply_kernel<true>, bits, scale, gradient.size(),
      gradient, residual, findings.sums());
  return residual.empty() ? 0 : findings.sum();
}

void accumulate_signs_on_cuda(Executor& executor, Span<const std::uint64_t> bits, float scale,
                              Span<float> sums) {
  run(executor, grid_for_words(sign_words(sums.size())), accumulate_kernel, bits, scale, sums.size(), sums);
}

double average_signs_on_cuda(Executor& executor, Span<const ScaledSigns> vectors, std::size_t self,
                             Span<float> gradient, ResidualSpan turned) {
  CudaExecutor& own = executor_on_device(executor);
  const Span<float> residual = in_place(own, turned);
  std::vector<std::unique_ptr<Operand<const std::uint64_t>>> bits;
  std::vector<Signs> ranks;
  for (const ScaledSigns& vector : vectors) {
    bits.push_back(std::make_unique<Operand<const std::uint64_t>>(own, vector.bits));
    ranks.push_back({bits.back()->data(), vector.scale});
  }
  const TableOnDevice<Signs> table(own, ranks);
  // Waits, too, for bits and table, which lie in host memory.
  const double squares = run_summed(own, grid_for_words(sign_words(gradient.size())),
                                    residual.empty() ? average_kernel<false> : average_kernel<true>,
                                    table.data(), static_cast<unsigned>(vectors.size()),
                                    static_cast<unsigned>(self), gradient.size(), gradient, residual);
  return residual.empty() ? 0 : squares;
}

}  // namespace thinwire
