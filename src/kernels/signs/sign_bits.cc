#include "kernels/signs/sign_bits.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "kernels/blocks.h"
#include "kernels/device/on_device.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/signs/sign_bits.cc"
#include <hwy/foreach_target.h>  // must come before highway.h

#include "kernels/bits-inl.h"

HWY_BEFORE_NAMESPACE();
namespace thinwire::HWY_NAMESPACE {

/// x * 0 is 0 for finite x and NaN otherwise, and NaN sticks to a sum: one fused multiply-add per vector
/// tells.
template <class D, class V>
bool all_zero(D d, V sum_of_zeros) {
  return hn::AllTrue(d, hn::Eq(sum_of_zeros, hn::Zero(d)));
}

bool PackSigns(Reads<float> gradient, Reads<float> residual, Writes<std::uint64_t> bits, std::size_t count) {
  const FloatTag d;
  const std::size_t lanes = hn::Lanes(d);
  const auto zero = hn::Zero(d);
  auto check = zero;
  std::size_t i = 0;
  for (; i + 64 <= count; i += 64) {
    std::uint64_t word = 0;
    for (std::size_t lane = 0; lane < 64; lane += lanes) {
      const auto p = load_sum(d, gradient, residual, i + lane);
      check = hn::MulAdd(p, zero, check);
      word |= mask_to_word(d, hn::Ge(p, zero), lane);
    }
    bits[i / 64] = word;
  }
  bool finite = all_zero(d, check);
  if (i < count) {
    std::uint64_t word = 0;
    for (std::size_t lane = 0; i + lane < count; ++lane) {
      const float p = sum_at(gradient, residual, i + lane);
      finite = finite && std::isfinite(p);
      word |= static_cast<std::uint64_t>(p >= 0.0f) << lane;
    }
    bits[i / 64] = word;
  }
  return finite;
}

void MergeSigns(Writes<std::uint64_t> own, Reads<std::uint64_t> received, Reads<std::uint64_t> take_own,
                std::size_t words) {
  const hn::ScalableTag<std::uint64_t> d;
  const std::size_t lanes = hn::Lanes(d);
  std::size_t i = 0;
  for (; i + lanes <= words; i += lanes) {
    const auto take = hn::LoadU(d, take_own + i);
    const auto a = hn::LoadU(d, own + i);
    const auto b = hn::LoadU(d, received + i);
    hn::StoreU(hn::OrAnd(hn::AndNot(take, b), take, a), d, own + i);
  }
  for (; i < words; ++i) own[i] = (take_own[i] & own[i]) | (~take_own[i] & received[i]);
}

/// For every element: step = bit ? scale : -scale, p = gradient + residual, residual = p - step and
/// gradient = mean != nullptr ? mean : step. Returns the residual's sum of squares.
double ApplySigns(Reads<std::uint64_t> bits, float scale, Reads<float> mean, Writes<float> gradient,
                  ResidualBlock residual, std::size_t count) {
  const FloatTag d;
  const std::size_t lanes = hn::Lanes(d);
  const auto plus = hn::Set(d, scale);
  const auto minus = hn::Neg(plus);
  // Squares are summed in float over a run that is short enough to lose nothing that a norm needs, then in
  // double.
  constexpr std::size_t kRun = 4096;
  auto squares = hn::Zero(d);
  double total = 0;
  std::size_t i = 0;
  const bool past_caches = goes_past_caches(d, residual.large, residual.after);
  for (; i + 64 <= count; i += 64) {
    const std::uint64_t word = bits[i / 64];
    for (std::size_t lane = 0; lane < 64; lane += lanes) {
      const auto step = hn::IfThenElse(word_to_mask(d, word, lane), plus, minus);
      if (residual.after != nullptr) {
        const auto p = hn::Add(hn::LoadU(d, gradient + i + lane), hn::LoadU(d, residual.before + i + lane));
        const auto left = hn::Sub(p, step);
        store_residual(left, d, residual.after + i + lane, past_caches);
        squares = hn::MulAdd(left, left, squares);
      }
      hn::StoreU(mean != nullptr ? hn::LoadU(d, mean + i + lane) : step, d, gradient + i + lane);
    }
    if ((i + 64) % kRun == 0 || i + 128 > count) {
      total += static_cast<double>(hn::GetLane(hn::SumOfLanes(d, squares)));
      squares = hn::Zero(d);
    }
  }
  for (; i < count; ++i) {
    const float step = ((bits[i / 64] >> (i % 64)) & 1) != 0 ? scale : -scale;
    if (residual.after != nullptr) {
      const float left = gradient[i] + residual.before[i] - step;
      residual.after[i] = left;
      total += static_cast<double>(left) * static_cast<double>(left);
    }
    gradient[i] = mean != nullptr ? mean[i] : step;
  }
  if (past_caches) hwy::FlushStream();
  return total;
}

void AccumulateSigns(Reads<std::uint64_t> bits, float scale, Writes<float> sums, std::size_t count) {
  const FloatTag d;
  const std::size_t lanes = hn::Lanes(d);
  const auto plus = hn::Set(d, scale);
  const auto minus = hn::Neg(plus);
  std::size_t i = 0;
  for (; i + 64 <= count; i += 64) {
    const std::uint64_t word = bits[i / 64];
    for (std::size_t lane = 0; lane < 64; lane += lanes) {
      const auto step = hn::IfThenElse(word_to_mask(d, word, lane), plus, minus);
      hn::StoreU(hn::Add(hn::LoadU(d, sums + i + lane), step), d, sums + i + lane);
    }
  }
  for (; i < count; ++i) sums[i] += ((bits[i / 64] >> (i % 64)) & 1) != 0 ? scale : -scale;
}

}  // namespace thinwire::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace thinwire {

HWY_EXPORT(PackSigns);
HWY_EXPORT(MergeSigns);
HWY_EXPORT(ApplySigns);
HWY_EXPORT(AccumulateSigns);

bool pack_signs(Executor& executor, Span<const float> gradient, Span<const float> residual,
                Span<std::uint64_t> bits) {
  THINWIRE_ON_DEVICE(pack_signs, executor, gradient, residual, bits);
  return in_blocks(executor, gradient.size(), HWY_DYNAMIC_DISPATCH(PackSigns), gradient, residual,
                   BitPerElement(bits));
}

void merge_signs(Executor& executor, Span<std::uint64_t> own, Span<const std::uint64_t> received,
                 Span<const std::uint64_t> take_own) {
  THINWIRE_ON_DEVICE(merge_signs, executor, own, received, take_own);
  in_blocks(executor, own.size(), HWY_DYNAMIC_DISPATCH(MergeSigns), own, received, take_own);
}

double apply_signs(Executor& executor, Span<const std::uint64_t> bits, float scale, Span<float> gradient,
                   ResidualSpan residual) {
  THINWIRE_ON_DEVICE(apply_signs, executor, bits, scale, gradient, residual);
  return in_blocks(executor, gradient.size(), HWY_DYNAMIC_DISPATCH(ApplySigns), BitPerElement(bits), scale,
                   nullptr, gradient, residual);
}

void accumulate_signs(Executor& executor, Span<const std::uint64_t> bits, float scale, Span<float> sums) {
  THINWIRE_ON_DEVICE(accumulate_signs, executor, bits, scale, sums);
  in_blocks(executor, sums.size(), HWY_DYNAMIC_DISPATCH(AccumulateSigns), BitPerElement(bits), scale, sums);
}

double average_signs(Executor& executor, Span<const ScaledSigns> vectors, std::size_t self,
                     Span<float> gradient, ResidualSpan residual) {
  THINWIRE_ON_DEVICE(average_signs, executor, vectors, self, gradient, residual);
  constexpr std::size_t kTile = 4096;  // stays in the first-level cache
  const float factor = 1.0f / static_cast<float>(vectors.size());
  return sum_over_blocks(executor, gradient.size(), [&](std::size_t begin, std::size_t end) {
    alignas(64) std::array<float, kTile> sums;
    double squares = 0;
    for (std::size_t first = begin; first < end; first += kTile) {
      const std::size_t count = std::min(kTile, end - first);
      std::fill(sums.begin(), sums.end(), 0.0f);
      for (const ScaledSigns& vector : vectors) {
        HWY_DYNAMIC_DISPATCH(AccumulateSigns)
        (vector.bits.data() + first / 64, vector.scale, sums.data(), count);
      }
      for (float& sum : sums) sum *= factor;
      squares += HWY_DYNAMIC_DISPATCH(ApplySigns)(vectors[self].bits.data() + first / 64, vectors[self].scale,
                                                  sums.data(), gradient.data() + first,
                                                  data_at(residual, first), count);
    }
    return squares;
  });
}

}  // namespace thinwire
#endif
