// What most kernels do with vectors of up to 16 lanes: sums of gradient and residual, masks of lanes to and
// from 64-bit words. Included once per target.

#if defined(THINWIRE_KERNELS_BITS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef THINWIRE_KERNELS_BITS_INL_H_
#undef THINWIRE_KERNELS_BITS_INL_H_
#else
#define THINWIRE_KERNELS_BITS_INL_H_
#endif

#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include <cstddef>
#include <cstdint>

#include "kernels/operands.h"

HWY_BEFORE_NAMESPACE();
namespace thinwire::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// 16 lanes at most, so that a word is a whole number of vectors on every target.
using FloatTag = HWY_CAPPED(float, 16);

/// Sixteen sums need more registers than some instruction sets have.
constexpr bool kManyRegisters = (HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3) || HWY_ARCH_ARM_A64;

/// gradient[i] + residual[i] and its neighbours; residual may be null.
template <class D>
HWY_INLINE hn::Vec<D> load_sum(D d, const float* gradient, const float* residual, std::size_t i) {
  const auto g = hn::LoadU(d, gradient + i);
  return residual == nullptr ? g : hn::Add(g, hn::LoadU(d, residual + i));
}
HWY_INLINE float sum_at(const float* gradient, const float* residual, std::size_t i) {
  return residual == nullptr ? gradient[i] : gradient[i] + residual[i];
}

/// target[i] += values[i].
HWY_INLINE void AddTo(Writes<float> target, Reads<float> values, std::size_t count) {
  const FloatTag d;
  const std::size_t lanes = hn::Lanes(d);
  std::size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    hn::StoreU(hn::Add(hn::LoadU(d, target + i), hn::LoadU(d, values + i)), d, target + i);
  }
  for (; i < count; ++i) target[i] += values[i];
}

/// Whether vectors of a residual can go past the caches from here on: Stream wants aligned memory.
template <class D>
HWY_INLINE bool goes_past_caches(D d, bool large, const float* to) {
  return large && reinterpret_cast<std::uintptr_t>(to) % (hn::Lanes(d) * sizeof(float)) == 0;
}
/// After the last of them, finish_stores() or hwy::FlushStream() is called before another thread may read.
template <class D>
HWY_INLINE void store_residual(hn::Vec<D> value, D d, float* to, bool past_caches) {
  if (past_caches) {
    hn::Stream(value, d, to);
  } else {
    hn::StoreU(value, d, to);
  }
}

/// The word whose lanes [shift, shift + N) are `mask`, other bits 0.
template <class D>
HWY_INLINE std::uint64_t mask_to_word(D d, hn::Mask<D> mask, std::size_t shift) {
  std::uint64_t bits = 0;
  hn::StoreMaskBits(d, mask, reinterpret_cast<std::uint8_t*>(&bits));
  return bits << shift;
}

/// Lanes [shift, shift + N) of the word as a mask.
template <class D>
HWY_INLINE hn::Mask<D> word_to_mask(D d, std::uint64_t word, std::size_t shift) {
  const std::uint64_t bits = word >> shift;
  return hn::LoadMaskBits(d, reinterpret_cast<const std::uint8_t*>(&bits));
}

}  // namespace thinwire::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
