#include "kernels/codes/dequantize.h"

#include <algorithm>
#include <array>

#include "kernels/blocks.h"
#include "kernels/dense/average_tiles.h"
#include "kernels/device/on_device.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/codes/dequantize.cc"
#include <hwy/foreach_target.h>  // must come before highway.h

#include "kernels/bits-inl.h"
#include "kernels/codes/level_tables-inl.h"

HWY_BEFORE_NAMESPACE();
namespace thinwire::HWY_NAMESPACE {

/// 64 bytes, bit k of each from word k.
void BytesOfPlanes(Reads<std::uint64_t> codes, std::size_t groups, std::size_t bits,
                   Writes<std::uint8_t> bytes) {
  const ByteTag d;
  const std::size_t lanes = hn::Lanes(d);
  for (std::size_t group = 0; group < groups; ++group, bytes += 64, codes += bits) {
    for (std::size_t lane = 0; lane < 64; lane += lanes) {
      auto code = hn::Zero(d);
      for (std::size_t k = 0; k < bits; ++k) {
        const auto bit = hn::Set(d, static_cast<std::uint8_t>(1u << k));
        code = hn::Or(code, hn::IfThenElseZero(word_to_mask(d, codes[k], lane), bit));
      }
      hn::StoreU(code, d, bytes + lane);
    }
  }
}

template <class Value>
void DecodeWith(const Value& value, std::size_t bits, Reads<std::uint64_t> codes, std::size_t count, bool add,
                Writes<float> values) {
  HWY_ALIGN std::uint8_t bytes[kStagedCodes];
  HWY_ALIGN float last[64];
  const FloatTag d;
  const hn::RebindToUnsigned<FloatTag> du;
  const hn::Rebind<std::uint8_t, FloatTag> d8;
  const std::size_t lanes = hn::Lanes(d);
  auto decode = [&](const std::uint8_t* from, float* to) HWY_ATTR {
    const auto code = hn::PromoteTo(du, hn::LoadU(d8, from));
    const auto magnitude = value.of(d, hn::ShiftRight<1>(code));
    const auto sign = hn::ShiftLeft<31>(code);
    const auto q = hn::BitCast(d, hn::Or(hn::BitCast(du, magnitude), sign));
    hn::StoreU(add ? hn::Add(hn::LoadU(d, to), q) : q, d, to);
  };
  for (std::size_t begin = 0; begin < count; begin += kStagedCodes) {
    const std::size_t valid = std::min(kStagedCodes, count - begin);
    BytesOfPlanes(codes + begin / 64 * bits, (valid + 63) / 64, bits, bytes);
    const std::size_t whole = valid / 64 * 64;
    for (std::size_t i = 0; i < whole; i += lanes) decode(bytes + i, values + begin + i);
    if (whole == valid) continue;
    const std::size_t rest = valid - whole;
    for (std::size_t i = 0; i < 64; ++i) last[i] = add && i < rest ? values[begin + whole + i] : 0.0f;
    for (std::size_t i = 0; i < 64; i += lanes) decode(bytes + whole + i, last + i);
    std::copy(last, last + rest, values + begin + whole);
  }
}

class EqualValues {
 public:
  EqualValues(const QuantizationLevels& levels, float norm) : unit_(norm / levels.last()), norm_(norm) {}

  template <class D, class VU>
  HWY_INLINE hn::Vec<D> of(D d, VU index) const {
    const hn::RebindToSigned<D> di;
    return hn::Min(hn::Mul(hn::ConvertTo(d, hn::BitCast(di, index)), hn::Set(d, unit_)), hn::Set(d, norm_));
  }

 private:
  float unit_;
  float norm_;
};

template <class Table>
class TableValues {
 public:
  TableValues(const QuantizationLevels& levels, float norm) : values_(levels.values.data()), norm_(norm) {}

  template <class D, class VU>
  HWY_INLINE hn::Vec<D> of(D d, VU index) const {
    return hn::Mul(values_(d, index), hn::Set(d, norm_));
  }

 private:
  Table values_;
  float norm_;
};

void Decode(const QuantizationLevels& levels, float norm, const std::uint64_t* codes, std::size_t count,
            bool add, float* values) {
  if (levels.equal_steps) {
    DecodeWith(EqualValues(levels, norm), levels.bits, codes, count, add, values);
  } else if (fits_a_register(levels)) {
    DecodeWith(TableValues<RegisterTable>(levels, norm), levels.bits, codes, count, add, values);
  } else {
    DecodeWith(TableValues<MemoryTable>(levels, norm), levels.bits, codes, count, add, values);
  }
}

}  // namespace thinwire::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace thinwire {

HWY_EXPORT(Decode);

namespace {

/// Range that element `first` lies in.
std::size_t range_of(const QuantizationScales& scales, std::size_t first) {
  if (scales.ends.empty()) return first / scales.chunk;
  return static_cast<std::size_t>(std::upper_bound(scales.ends.begin(), scales.ends.end(), first) -
                                  scales.ends.begin());
}

std::size_t end_of(const QuantizationScales& scales, std::size_t range) {
  return scales.ends.empty() ? (range + 1) * scales.chunk : scales.ends[range];
}

/// On the calling thread, in host memory.
void dequantize_serially(const QuantizationLevels& levels, const QuantizationScales& scales,
                         Span<const float> norms, Span<const std::uint64_t> codes, std::size_t first,
                         bool add, Span<float> values) {
  const std::size_t bits = levels.bits;
  const std::size_t end = first + values.size();
  std::size_t begin = first;
  std::size_t range = begin < end ? range_of(scales, begin) : 0;
  while (begin < end) {
    const std::size_t whole = std::min(end, end_of(scales, range));
    const std::size_t run = whole == end ? end - begin : (whole - begin) / 64 * 64;
    if (run != 0) {
      HWY_DYNAMIC_DISPATCH(Decode)
      (levels, norms[range], codes.data() + begin / 64 * bits, run, add, values.data() + (begin - first));
      begin += run;
      if (begin == end) return;
    }
    while (begin >= end_of(scales, range)) ++range;
    if (end_of(scales, range) - begin >= 64) continue;
    // Elements of several ranges share words: they are decoded once for each range.
    std::array<float, 64> group;
    const std::size_t mixed = std::min<std::size_t>(64, end - begin);
    for (std::size_t i = 0; i < mixed;) {
      const std::size_t until = std::min(mixed, end_of(scales, range) - begin);
      HWY_DYNAMIC_DISPATCH(Decode)
      (levels, norms[range], codes.data() + begin / 64 * bits, mixed, false, group.data());
      for (; i < until; ++i) {
        float& value = values[begin - first + i];
        value = add ? value + group[i] : group[i];
      }
      while (begin + i < end && begin + i >= end_of(scales, range)) ++range;
    }
    begin += mixed;
  }
}

}  // namespace

void dequantize(Executor& executor, const QuantizationLevels& levels, const QuantizationScales& scales,
                Span<const float> norms, Span<const std::uint64_t> codes, std::size_t first, bool add,
                Span<float> values) {
  THINWIRE_ON_DEVICE(dequantize, executor, levels, scales, norms, codes, first, add, values);
  executor.parallel_for(values.size(), kBlockElements, [&](std::size_t begin, std::size_t end) {
    dequantize_serially(levels, scales, norms, codes, first + begin, add, values.subspan(begin, end - begin));
  });
}

double average_dequantized(Executor& executor, const QuantizationLevels& levels,
                           const QuantizationScales& scales, Span<const QuantizedVector> vectors,
                           std::size_t self, Span<float> gradient, ResidualSpan residual) {
  THINWIRE_ON_DEVICE(average_dequantized, executor, levels, scales, vectors, self, gradient, residual);
  return average_tiles(executor, vectors.size(), self, gradient, residual,
                       [&](std::size_t rank, std::size_t first, bool add, Span<float> values) {
                         dequantize_serially(levels, scales, vectors[rank].norms, vectors[rank].codes, first,
                                             add, values);
                       });
}

}  // namespace thinwire
#endif
