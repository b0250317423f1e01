// 16-bit floats on a CUDA device, by the same integer steps as half.cc: the device's own conversions encode
// NaN differently.
//
// Lane l of a warp works on elements l and l + 32 of 64 and has words l of their 16-bit floats, so that both
// sides are read and written in whole lines; that matters most for 16-bit floats in host memory.

#include <memory>
#include <vector>

#include "kernels/dense/half.h"
#include "kernels/device/device.h"

namespace thinwire {
using namespace cuda;
namespace {

struct Bf16 {
  static constexpr std::uint32_t kExponent = 0x7F80;

  __device__ static std::uint32_t encode(float value) {
    const std::uint32_t bits = __float_as_uint(value);
    if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return 0x7FC0;
    return (bits + 0x7FFFu + ((bits >> 16) & 1)) >> 16;
  }
  __device__ static float decode(std::uint32_t half) { return __uint_as_float(half << 16); }
};

struct Fp16 {
  static constexpr std::uint32_t kExponent = 0x7C00;

  __device__ static std::uint32_t encode(float value) {
    const std::uint32_t bits = __float_as_uint(value);
    const std::uint32_t magnitude = bits & 0x7FFFFFFFu;
    const std::uint32_t sign = (bits >> 16) & 0x8000u;
    if (magnitude > 0x477FEFFFu) return sign | (magnitude > 0x7F800000u ? 0x7E00u : 0x7C00u);
    // Below 2^-14 the float adder shifts and rounds.
    if (magnitude < 0x38800000u) {
      return sign | (__float_as_uint(__uint_as_float(magnitude) + 0.5f) - 0x3F000000u);
    }
    const std::uint32_t rebias = (static_cast<std::uint32_t>(15 - 127) << 23) + 0xFFFu;
    return sign | ((magnitude + rebias + ((magnitude >> 13) & 1)) >> 13);
  }
  __device__ static float decode(std::uint32_t half) {
    const std::uint32_t sign = (half & 0x8000u) << 16;
    const std::uint32_t shifted = (half & 0x7FFFu) << 13;
    const std::uint32_t exponent = shifted & (0x7C00u << 13);
    std::uint32_t bits = shifted + (static_cast<std::uint32_t>(127 - 15) << 23);
    if (exponent == 0x7C00u << 13) bits += static_cast<std::uint32_t>(128 - 16) << 23;
    // Subnormal: 2^-14 * (1 + m) - 2^-14, exact in float.
    if (exponent == 0) {
      bits = __float_as_uint(__uint_as_float(shifted + (113u << 23)) - __uint_as_float(113u << 23));
    }
    return __uint_as_float(bits | sign);
  }
};

/// Lane l's word, elements 2 l and 2 l + 1, from elements l and l + 32 of every lane.
__device__ std::uint32_t word_of_halves(std::uint32_t low, std::uint32_t high) {
  const std::uint32_t both = low | high << 16;
  const unsigned lane = lane_of_warp();
  const std::uint32_t even = __shfl_sync(kAllLanes, both, static_cast<int>(2 * lane % kWarp));
  const std::uint32_t odd = __shfl_sync(kAllLanes, both, static_cast<int>((2 * lane + 1) % kWarp));
  return lane < kWarp / 2 ? (even & 0xFFFFu) | odd << 16 : even >> 16 | (odd & 0xFFFF0000u);
}

/// The reverse: elements l and l + 32.
__device__ uint2 halves_of_word(std::uint32_t word) {
  const unsigned lane = lane_of_warp();
  const unsigned shift = lane % 2 * 16;
  const std::uint32_t low = __shfl_sync(kAllLanes, word, static_cast<int>(lane / 2));
  const std::uint32_t high = __shfl_sync(kAllLanes, word, static_cast<int>(kWarp / 2 + lane / 2));
  return {(low >> shift) & 0xFFFFu, (high >> shift) & 0xFFFFu};
}

/// Words of 64 elements each that a warp has under way at once.
constexpr unsigned kRows = 4;
constexpr std::size_t kRun = kRows * 2 * kWarp;

Grid grid_for_runs(std::size_t count) {
  return grid_for((count + kRun - 1) / kRun * kWarp);
}

/// Whether 16-bit floats can be reached two at a time.
bool paired(const std::uint16_t* halves) {
  return reinterpret_cast<std::uintptr_t>(halves) % sizeof(std::uint32_t) == 0;
}

/// whole(first) for runs of kRun elements, by a whole warp; single(i) for the elements that remain, which are
/// all of them unless they come in pairs.
template <class Whole, class Single>
__device__ void for_each_run(std::size_t count, bool pairs, Whole whole, Single single) {
  for (std::size_t first = warp_of_grid() * kRun; first < count; first += warps_of_grid() * kRun) {
    if (pairs && first + kRun <= count) {
      whole(first);
    } else {
      const std::size_t end = first + kRun < count ? first + kRun : count;
      for (std::size_t i = first + lane_of_warp(); i < end; i += kWarp) single(i);
    }
  }
}

template <class Format>
THINWIRE_KERNEL void encode_kernel(Reads<float> gradient, Reads<float> residual, std::size_t count,
                                   Writes<std::uint16_t> out, bool pairs, std::uint32_t* flag) {
  const unsigned lane = lane_of_warp();
  bool wrong = false;
  auto encode = [&](float p) {
    const std::uint32_t half = Format::encode(p);
    wrong = wrong || (half & Format::kExponent) == Format::kExponent;
    return half;
  };
  for_each_run(
      count, pairs,
      [&](std::size_t first) {
        float p[2 * kRows];
#pragma unroll
        for (unsigned k = 0; k < 2 * kRows; ++k) p[k] = sum_at(gradient, residual, first + k * kWarp + lane);
        auto* words = reinterpret_cast<std::uint32_t*>(out + first);
#pragma unroll
        for (unsigned k = 0; k < kRows; ++k) {
          const std::uint32_t low = encode(p[2 * k]);
          words[k * kWarp + lane] = word_of_halves(low, encode(p[2 * k + 1]));
        }
      },
      [&](std::size_t i) { out[i] = static_cast<std::uint16_t>(encode(sum_at(gradient, residual, i))); });
  report_if(wrong, flag);
}

template <class Format>
THINWIRE_KERNEL void decode_kernel(Reads<std::uint16_t> in, std::size_t count, Writes<float> out,
                                   bool pairs) {
  const unsigned lane = lane_of_warp();
  for_each_run(
      count, pairs,
      [&](std::size_t first) {
        const auto* from = reinterpret_cast<const std::uint32_t*>(in + first);
        std::uint32_t words[kRows];
#pragma unroll
        for (unsigned k = 0; k < kRows; ++k) words[k] = from[k * kWarp + lane];
#pragma unroll
        for (unsigned k = 0; k < kRows; ++k) {
          const uint2 halves = halves_of_word(words[k]);
          float* to = out + first + 2 * k * kWarp + lane;
          to[0] = Format::decode(halves.x);
          to[kWarp] = Format::decode(halves.y);
        }
      },
      [&](std::size_t i) { out[i] = Format::decode(in[i]); });
}

/// parts: table of `ranks` pointers.
template <class Format>
THINWIRE_KERNEL void mean_kernel(Reads<const std::uint16_t*> parts, unsigned ranks, std::size_t count,
                                 Writes<float> sums, Writes<std::uint16_t> mean, std::uint32_t* flag) {
  const float factor = 1.0f / static_cast<float>(ranks);
  bool wrong = false;
  for_each_element(
      count,
      [&](std::size_t i) {
        float sum = 0;
#pragma unroll 4
        for (unsigned rank = 0; rank < ranks; ++rank) sum += Format::decode(parts[rank][i]);
        return sum;
      },
      [&](std::size_t i, float sum) {
        if (sums != nullptr) sums[i] = sum;
        const std::uint32_t half = Format::encode(sum * factor);
        wrong = wrong || (half & Format::kExponent) == Format::kExponent;
        mean[i] = static_cast<std::uint16_t>(half);
      });
  report_if(wrong, flag);
}

template <class Format>
THINWIRE_KERNEL void apply_kernel(Reads<std::uint16_t> mean, std::size_t count, Writes<float> gradient,
                                  Writes<float> residual, bool pairs, Writes<double> block_sums) {
  const unsigned lane = lane_of_warp();
  double squares = 0;
  auto left_of = [&](std::size_t i) {
    const float p = gradient[i] + residual[i];
    const float left = p - Format::decode(Format::encode(p));
    squares += static_cast<double>(left) * static_cast<double>(left);
    return left;
  };
  for_each_run(
      count, pairs,
      [&](std::size_t first) {
        const auto* from = reinterpret_cast<const std::uint32_t*>(mean + first);
        std::uint32_t words[kRows];
        float left[2 * kRows];
#pragma unroll
        for (unsigned k = 0; k < kRows; ++k) words[k] = from[k * kWarp + lane];
        if (residual != nullptr) {
#pragma unroll
          for (unsigned k = 0; k < 2 * kRows; ++k) left[k] = left_of(first + k * kWarp + lane);
#pragma unroll
          for (unsigned k = 0; k < 2 * kRows; ++k) residual[first + k * kWarp + lane] = left[k];
        }
#pragma unroll
        for (unsigned k = 0; k < kRows; ++k) {
          const uint2 halves = halves_of_word(words[k]);
          float* to = gradient + first + 2 * k * kWarp + lane;
          to[0] = Format::decode(halves.x);
          to[kWarp] = Format::decode(halves.y);
        }
      },
      [&](std::size_t i) {
        if (residual != nullptr) residual[i] = left_of(i);
        gradient[i] = Format::decode(mean[i]);
      });
  write_block_sum(squares, block_sums + blockIdx.x);
}

/// The kernel for the format.
template <class Kernel>
Kernel of_format(HalfFormat format, Kernel fp16, Kernel bf16) {
  return format == HalfFormat::fp16 ? fp16 : bf16;
}

}  // namespace

bool encode_half_on_cuda(Executor& executor, HalfFormat format, Span<const float> gradient,
                         Span<const float> residual, Span<std::uint16_t> out) {
  CudaExecutor& own = executor_on_device(executor);
  Operand o(own, out);
  const Findings findings(own);
  run(own, grid_for_runs(gradient.size()), of_format(format, encode_kernel<Fp16>, encode_kernel<Bf16>),
      gradient, residual, gradient.size(), o.data(), paired(o.data()), findings.flag());
  finish(own, o);
  return !findings.flagged();
}

void decode_half_on_cuda(Executor& executor, HalfFormat format, Span<const std::uint16_t> in,
                         Span<float> out) {
  CudaExecutor& own = executor_on_device(executor);
  Operand i(own, in);
  Operand o(own, out);
  launch(own.stream(), grid_for_runs(out.size()), of_format(format, decode_kernel<Fp16>, decode_kernel<Bf16>),
         i.data(), out.size(), o.data(), paired(i.data()));
  finish(own, i, o);
}

bool mean_of_halves_on_cuda(Executor& executor, HalfFormat format,
                            Span<const Span<const std::uint16_t>> parts, Span<float> sums,
                            Span<std::uint16_t> mean) {
  CudaExecutor& own = executor_on_device(executor);
  std::vector<std::unique_ptr<Operand<const std::uint16_t>>> operands;
  std::vector<const std::uint16_t*> pointers;
  for (const auto& part : parts) {
    operands.push_back(std::make_unique<Operand<const std::uint16_t>>(own, part));
    pointers.push_back(operands.back()->data());
  }
  return run_flagged(own, grid_for_elements(mean.size()),
                     of_format(format, mean_kernel<Fp16>, mean_kernel<Bf16>),
                     Span<const std::uint16_t* const>(pointers), static_cast<unsigned>(parts.size()),
                     mean.size(), sums, mean);
}

double apply_half_on_cuda(Executor& executor, HalfFormat format, Span<const std::uint16_t> mean,
                          Span<float> gradient, ResidualSpan turned) {
  CudaExecutor& own = executor_on_device(executor);
  const Span<float> residual = in_place(own, turned);
  Operand m(own, mean);
  Operand g(own, gradient);
  Operand r(own, residual);
  const Grid grid = grid_for_runs(gradient.size());
  const Findings findings(own, grid);
  launch(own.stream(), grid, of_format(format, apply_kernel<Fp16>, apply_kernel<Bf16>), m.data(),
         gradient.size(), g.data(), r.data(), paired(m.data()), findings.sums());
  finish(own, m, g, r);
  return residual.empty() ? 0 : findings.sum();
}

}  // namespace thinwire
