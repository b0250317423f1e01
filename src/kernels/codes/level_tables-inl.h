// Tables of levels, looked up by vectors of indices. Included once per target.

#if defined(THINWIRE_KERNELS_LEVEL_TABLES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef THINWIRE_KERNELS_LEVEL_TABLES_INL_H_
#undef THINWIRE_KERNELS_LEVEL_TABLES_INL_H_
#else
#define THINWIRE_KERNELS_LEVEL_TABLES_INL_H_
#endif

#include "kernels/bits-inl.h"
#include "kernels/codes/quantization_levels.h"

HWY_BEFORE_NAMESPACE();
namespace thinwire::HWY_NAMESPACE {

using ByteTag = HWY_CAPPED(std::uint8_t, 64);

/// Elements between elements and bit planes at a time; their codes, one byte each, stay in the first-level
/// cache.
inline constexpr std::size_t kStagedCodes = 1024;

HWY_INLINE bool fits_a_register(const QuantizationLevels& levels) {
  return levels.count() <= hn::Lanes(FloatTag());
}

/// A table of at most as many floats as a vector has lanes.
class RegisterTable {
 public:
  explicit RegisterTable(const float* table) : held_(hn::LoadU(FloatTag(), table)) {}

  template <class D, class VU>
  HWY_INLINE hn::Vec<D> operator()(D d, VU index) const {
    return hn::TableLookupLanes(held_, hn::IndicesFromVec(d, index));
  }

 private:
  hn::Vec<FloatTag> held_;
};

/// A table of any size, in memory.
class MemoryTable {
 public:
  explicit MemoryTable(const float* table) : table_(table) {}

  template <class D, class VU>
  HWY_INLINE hn::Vec<D> operator()(D d, VU index) const {
    const hn::RebindToSigned<D> di;
    return hn::GatherIndex(d, table_, hn::BitCast(di, index));
  }

 private:
  const float* table_;
};

}  // namespace thinwire::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
