// Philox4x32-10 over vector lanes: one counter block per 32-bit lane. Agrees with core/philox.h, see
// bernoulli_bits_test.cc. Included once per target.

#if defined(THINWIRE_KERNELS_PHILOX_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef THINWIRE_KERNELS_PHILOX_INL_H_
#undef THINWIRE_KERNELS_PHILOX_INL_H_
#else
#define THINWIRE_KERNELS_PHILOX_INL_H_
#endif

#include <hwy/highway.h>

#include "core/philox.h"

HWY_BEFORE_NAMESPACE();
namespace thinwire::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <class V>
struct PhiloxLanes {
  V x0, x1, x2, x3;
};

/// Both halves of the 32 x 32 -> 64 bit product with a constant, in every lane.
template <class D, class V>
HWY_INLINE void multiply_wide(D d, V a, V constant, V& high, V& low) {
#if HWY_TARGET == HWY_SCALAR
  const std::uint64_t product = std::uint64_t{hn::GetLane(a)} * hn::GetLane(constant);
  high = hn::Set(d, static_cast<std::uint32_t>(product >> 32));
  low = hn::Set(d, static_cast<std::uint32_t>(product));
#else
  const hn::Repartition<std::uint64_t, D> wide;
  const auto even = hn::MulEven(a, constant);
  const auto odd = hn::MulEven(hn::BitCast(d, hn::ShiftRight<32>(hn::BitCast(wide, a))), constant);
  high = hn::OddEven(hn::BitCast(d, odd), hn::BitCast(d, hn::ShiftRight<32>(even)));
  low = hn::OddEven(hn::BitCast(d, hn::ShiftLeft<32>(odd)), hn::BitCast(d, even));
#endif
}

/// Block {i, j, stream.rank, stream.hop} for every lane's i.
template <class D, class V = hn::Vec<D>>
HWY_INLINE PhiloxLanes<V> philox_lanes(D d, V i, std::uint32_t j, const RandomStream& stream) {
  const V multiplier0 = hn::Set(d, kPhiloxMultiplier0);
  const V multiplier1 = hn::Set(d, kPhiloxMultiplier1);
  PhiloxLanes<V> c{i, hn::Set(d, j), hn::Set(d, stream.rank), hn::Set(d, stream.hop)};
  std::uint32_t key0 = stream.key[0];
  std::uint32_t key1 = stream.key[1];
  for (int round = 0; round < kPhiloxRounds; ++round) {
    V high0, low0, high1, low1;
    multiply_wide(d, c.x0, multiplier0, high0, low0);
    multiply_wide(d, c.x2, multiplier1, high1, low1);
    c = {hn::Xor(hn::Xor(high1, c.x1), hn::Set(d, key0)), low1,
         hn::Xor(hn::Xor(high0, c.x3), hn::Set(d, key1)), low0};
    key0 += kPhiloxWeyl0;
    key1 += kPhiloxWeyl1;
  }
  return c;
}

}  // namespace thinwire::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
