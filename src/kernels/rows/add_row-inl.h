// Adding one row to another. Included once per target.

#if defined(THINWIRE_KERNELS_ADD_ROW_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef THINWIRE_KERNELS_ADD_ROW_INL_H_
#undef THINWIRE_KERNELS_ADD_ROW_INL_H_
#else
#define THINWIRE_KERNELS_ADD_ROW_INL_H_
#endif

#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace thinwire::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

HWY_INLINE void AddRow(float* HWY_RESTRICT sum, const float* HWY_RESTRICT row, std::size_t width) {
  const HWY_CAPPED(float, 16) d;
  const std::size_t lanes = hn::Lanes(d);
  std::size_t i = 0;
  for (; i + lanes <= width; i += lanes) {
    hn::StoreU(hn::Add(hn::LoadU(d, sum + i), hn::LoadU(d, row + i)), d, sum + i);
  }
  for (; i < width; ++i) sum[i] += row[i];
}

}  // namespace thinwire::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
