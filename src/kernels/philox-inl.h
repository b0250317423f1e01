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

#if HWY_TARGET != HWY_SCALAR
/// Ten rounds on blocks whose words lie in the low halves of 64-bit lanes, where a product of 32-bit words
/// needs no reassembly; the high halves hold whatever is left over.
template <class D, class DW, class W>
HWY_INLINE void philox_rounds(D d, DW wide, const RandomStream& stream, W& x0, W& x1, W& x2, W& x3) {
  const auto multiplier0 = hn::Set(d, kPhiloxMultiplier0);
  const auto multiplier1 = hn::Set(d, kPhiloxMultiplier1);
  std::uint32_t key0 = stream.key[0];
  std::uint32_t key1 = stream.key[1];
  for (int round = 0; round < kPhiloxRounds; ++round) {
    const W product0 = hn::MulEven(hn::BitCast(d, x0), multiplier0);
    const W product1 = hn::MulEven(hn::BitCast(d, x2), multiplier1);
    x0 = hn::Xor3(hn::ShiftRight<32>(product1), x1, hn::Set(wide, std::uint64_t{key0}));
    x1 = product1;
    x2 = hn::Xor3(hn::ShiftRight<32>(product0), x3, hn::Set(wide, std::uint64_t{key1}));
    x3 = product0;
    key0 += kPhiloxWeyl0;
    key1 += kPhiloxWeyl1;
  }
}
#endif

/// Block {i, j, stream.rank, stream.hop} for every lane's i.
template <class D, class V = hn::Vec<D>>
HWY_INLINE PhiloxLanes<V> philox_lanes(D d, V i, std::uint32_t j, const RandomStream& stream) {
#if HWY_TARGET == HWY_SCALAR
  const PhiloxCounter x = stream.block(hn::GetLane(i), j);
  return {hn::Set(d, x[0]), hn::Set(d, x[1]), hn::Set(d, x[2]), hn::Set(d, x[3])};
#else
  const hn::Repartition<std::uint64_t, D> wide;
  auto even0 = hn::BitCast(wide, i);
  auto even1 = hn::Set(wide, std::uint64_t{j});
  auto even2 = hn::Set(wide, std::uint64_t{stream.rank});
  auto even3 = hn::Set(wide, std::uint64_t{stream.hop});
  auto odd0 = hn::ShiftRight<32>(even0);
  auto odd1 = even1;
  auto odd2 = even2;
  auto odd3 = even3;
  philox_rounds(d, wide, stream, even0, even1, even2, even3);
  philox_rounds(d, wide, stream, odd0, odd1, odd2, odd3);
  auto join = [&](hn::Vec<decltype(wide)> even, hn::Vec<decltype(wide)> odd) HWY_ATTR {
    return hn::OddEven(hn::BitCast(d, hn::ShiftLeft<32>(odd)), hn::BitCast(d, even));
  };
  return {join(even0, odd0), join(even1, odd1), join(even2, odd2), join(even3, odd3)};
#endif
}

}  // namespace thinwire::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
