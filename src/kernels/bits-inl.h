// Masks of vector lanes to and from 64-bit words, for every vector length up to 16 lanes. Included once per
// target.

#if defined(THINWIRE_KERNELS_BITS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef THINWIRE_KERNELS_BITS_INL_H_
#undef THINWIRE_KERNELS_BITS_INL_H_
#else
#define THINWIRE_KERNELS_BITS_INL_H_
#endif

#include <hwy/highway.h>

#include <cstdint>

HWY_BEFORE_NAMESPACE();
namespace thinwire::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// 16 lanes at most, so that a word is a whole number of vectors on every target.
using FloatTag = HWY_CAPPED(float, 16);

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
