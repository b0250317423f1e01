#include "kernels/quantize.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <string>

#include "kernels/blocks.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/quantize.cc"
#include <hwy/cache_control.h>
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>

#include "kernels/bits-inl.h"
#include "kernels/philox-inl.h"

#ifndef THINWIRE_KERNELS_QUANTIZE_ONCE_
#define THINWIRE_KERNELS_QUANTIZE_ONCE_
namespace thinwire {

/// Elements that share the words of their random blocks.
inline constexpr std::size_t kPair = 128;
/// Elements between elements and bit planes at a time; their codes, one byte each, stay in the first-level
/// cache.
inline constexpr std::size_t kStaged = 1024;
/// Adding it to 0 <= y < 2^23 rounds y to the integer that the low 23 bits then are, plus 1.
inline constexpr float kMagic = 0x1p23f + 1.0f;

/// The definition in quantize.h, for the elements that 16 bits of u do not decide. i: index within the pair.
inline std::uint8_t decide_finely(const QuantizationLevels& levels, const RandomStream& stream,
                                  std::size_t pair, std::size_t i, float p, float inverse) {
  std::uint32_t j = 0;
  float y = 0;
  if (levels.equal_steps) {
    const float scale = levels.last() * 65536.0f;
    y = std::min(std::fabs(p) * inverse * scale, scale);
  } else {
    const float a = std::min(std::fabs(p) * inverse, 1.0f);
    while (j + 1 < levels.count() && a >= levels.values[j + 1]) ++j;
    y = std::min((a - levels.values[j]) * levels.slopes[j], 65536.0f);
  }
  const auto block = static_cast<std::uint32_t>(16 * pair + i % 16);
  const std::size_t word = i % 64 / 16;
  const std::uint32_t coarse = (stream.block(block, 0)[word] >> (i < 64 ? 0 : 16)) & 0xFFFF;
  const auto fine =
      static_cast<double>(stream.block(block, 1 + static_cast<std::uint32_t>(i / 64))[word] >> 8);
  const double sum = static_cast<double>(y) + static_cast<double>(coarse) + fine * 0x1p-24;
  const std::uint32_t index = j + (static_cast<std::uint32_t>(sum) >> 16);
  return static_cast<std::uint8_t>(index << 1 | (std::signbit(p) ? 1u : 0u));
}

}  // namespace thinwire
#endif

HWY_BEFORE_NAMESPACE();
namespace thinwire::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using ByteTag = HWY_CAPPED(std::uint8_t, 64);

template <class D>
HWY_INLINE hn::Vec<D> load(D d, const float* gradient, const float* residual, std::size_t i) {
  const auto g = hn::LoadU(d, gradient + i);
  return residual == nullptr ? g : hn::Add(g, hn::LoadU(d, residual + i));
}

/// Bits of the largest |p|, which order like the values; inf and NaN are the largest.
std::uint32_t LargestMagnitude(const float* HWY_RESTRICT gradient, const float* HWY_RESTRICT residual,
                               std::size_t count) {
  const FloatTag d;
  const hn::RebindToUnsigned<FloatTag> du;
  const std::size_t lanes = hn::Lanes(d);
  const auto magnitude = hn::Set(du, 0x7FFFFFFFu);
  auto most0 = hn::Zero(du);
  auto most1 = most0;
  std::size_t i = 0;
  for (; i + 2 * lanes <= count; i += 2 * lanes) {
    most0 = hn::Max(most0, hn::And(hn::BitCast(du, load(d, gradient, residual, i)), magnitude));
    most1 = hn::Max(most1, hn::And(hn::BitCast(du, load(d, gradient, residual, i + lanes)), magnitude));
  }
  std::uint32_t most = hn::GetLane(hn::MaxOfLanes(du, hn::Max(most0, most1)));
  for (; i < count; ++i) {
    const float p = residual == nullptr ? gradient[i] : gradient[i] + residual[i];
    std::uint32_t bits = 0;
    std::memcpy(&bits, &p, sizeof bits);
    most = std::max(most, bits & 0x7FFFFFFFu);
  }
  return most;
}

double SumOfSquares(const float* HWY_RESTRICT gradient, const float* HWY_RESTRICT residual,
                    std::size_t count) {
  const HWY_CAPPED(double, 8) d;
  const hn::Rebind<float, decltype(d)> df;
  const std::size_t lanes = hn::Lanes(d);
  auto sum0 = hn::Zero(d);
  auto sum1 = sum0;
  auto sum2 = sum0;
  auto sum3 = sum0;
  auto square = [&](std::size_t i, hn::Vec<decltype(d)>& sum) HWY_ATTR {
    const auto p = hn::PromoteTo(d, load(df, gradient, residual, i));
    sum = hn::MulAdd(p, p, sum);
  };
  std::size_t i = 0;
  for (; i + 4 * lanes <= count; i += 4 * lanes) {
    square(i, sum0);
    square(i + lanes, sum1);
    square(i + 2 * lanes, sum2);
    square(i + 3 * lanes, sum3);
  }
  double total = hn::GetLane(hn::SumOfLanes(d, hn::Add(hn::Add(sum0, sum1), hn::Add(sum2, sum3))));
  for (; i < count; ++i) {
    const float p = residual == nullptr ? gradient[i] : gradient[i] + residual[i];
    total += static_cast<double>(p) * static_cast<double>(p);
  }
  return total;
}

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

/// Where a magnitude lies between equal steps: its place in units of 2^-16 of a step.
class EqualSteps {
 public:
  explicit EqualSteps(const QuantizationLevels& levels) : scale_(levels.last() * 65536.0f) {}

  template <class D, class V, class VU>
  HWY_INLINE V place(D d, V magnitude, VU&) const {
    const auto scale = hn::Set(d, scale_);
    return hn::Min(hn::Mul(magnitude, scale), scale);
  }

 private:
  float scale_;
};

/// The same from the level below on, which a binary search finds; there are 2^(bits - 1) of them.
template <class Table, int bits>
class SearchedLevels {
 public:
  explicit SearchedLevels(const QuantizationLevels& levels)
      : values_(levels.values.data()), slopes_(levels.slopes.data()) {}

  /// doubled: becomes twice the index of the level below.
  template <class D, class V, class VU>
  HWY_INLINE V place(D d, V magnitude, VU& doubled) const {
    const hn::RebindToUnsigned<D> du;
    const auto a = hn::Min(magnitude, hn::Set(d, 1.0f));
    auto j = hn::Zero(du);
    for (std::uint32_t half = 1u << (bits - 2); half != 0; half /= 2) {
      const auto candidate = hn::Or(j, hn::Set(du, half));
      j = hn::IfThenElse(hn::RebindMask(du, hn::Ge(a, values_(d, candidate))), candidate, j);
    }
    doubled = hn::Add(j, j);
    const auto y = hn::Mul(hn::Sub(a, values_(d, j)), slopes_(d, j));
    return hn::Min(y, hn::Set(d, 65536.0f));
  }

 private:
  Table values_;
  Table slopes_;
};

/// Codes of `pairs` * kPair elements, one per byte: index * 2 + sign. Meanwhile as many elements from next_
/// pointers on come into the cache, unless these are null.
template <class Placement>
void CodeBytes(const QuantizationLevels& levels, const Placement& placement, const RandomStream& stream,
               std::size_t first_pair, std::size_t pairs, const float* HWY_RESTRICT p, float inverse,
               const float* next_gradient, const float* next_residual, std::uint8_t* HWY_RESTRICT bytes) {
  const FloatTag d;
  const hn::RebindToUnsigned<FloatTag> du;
  const hn::Rebind<std::uint8_t, FloatTag> d8;
  const std::size_t lanes = hn::Lanes(d);
  const auto factor = hn::Set(d, inverse);
  const auto magic = hn::Set(d, kMagic);
  const auto even = hn::Set(du, ~1u);
  const auto lane_counters = hn::Iota(du, 0);
  const auto least_clear = hn::Set(du, 0x1FFFFu);
  // Copies that nothing points to: bytes may alias what the arguments refer to.
  const RandomStream local_stream = stream;
  const Placement local_placement = placement;
  for (std::size_t pair = 0; pair < pairs; ++pair, p += kPair, bytes += kPair) {
    for (std::size_t line = 0; line < kPair; line += 16) {
      if (next_gradient != nullptr) hwy::Prefetch(next_gradient + pair * kPair + line);
      if (next_residual != nullptr) hwy::Prefetch(next_residual + pair * kPair + line);
    }
    for (std::size_t lane = 0; lane < 16; lane += lanes) {
      const auto first = hn::Set(du, static_cast<std::uint32_t>((first_pair + pair) * 16 + lane));
      const auto random = philox_lanes(du, hn::Add(lane_counters, first), 0, local_stream);
      const hn::Vec<decltype(du)> words[4] = {random.x0, random.x1, random.x2, random.x3};
      // floor(y) or one more, plus u's high bits, plus 1: the low half is 0 or 1 where u's low bits matter.
      auto sum_of = [&](std::size_t at, hn::Vec<FloatTag> value, hn::Vec<decltype(du)>& below) HWY_ATTR {
        const auto word = words[at / 16 % 4];
        const auto u = at < 64 ? hn::And(word, hn::Set(du, 0xFFFFu)) : hn::ShiftRight<16>(word);
        const auto y = local_placement.place(d, hn::Mul(hn::Abs(value), factor), below);
        return hn::Add(hn::BitCast(du, hn::Add(y, magic)), u);
      };
      auto closest = hn::Set(du, ~0u);
      for (std::size_t at = lane; at < kPair; at += 16) {
        const auto value = hn::LoadU(d, p + at);
        auto below = hn::Zero(du);
        const auto sum = sum_of(at, value, below);
        closest = hn::Min(closest, hn::ShiftLeft<16>(sum));
        const auto sign = hn::ShiftRight<31>(hn::BitCast(du, value));
        const auto doubled = hn::Add(hn::And(hn::ShiftRight<15>(sum), even), below);
        hn::StoreU(hn::TruncateTo(d8, hn::Or(doubled, sign)), d8, bytes + at);
      }
      if (hn::AllTrue(du, hn::Gt(closest, least_clear))) continue;
      for (std::size_t at = lane; at < kPair; at += 16) {
        auto below = hn::Zero(du);
        const auto sum = sum_of(at, hn::LoadU(d, p + at), below);
        const auto close = hn::Gt(hn::Add(least_clear, hn::Set(du, 1)), hn::ShiftLeft<16>(sum));
        for (std::uint64_t left = mask_to_word(du, close, 0); left != 0; left &= left - 1) {
          const std::size_t i = at + static_cast<std::size_t>(std::countr_zero(left));
          bytes[i] = decide_finely(levels, stream, first_pair + pair, i, p[i], inverse);
        }
      }
    }
  }
}

/// Bit k of 64 bytes into word k.
void PlanesOfBytes(const std::uint8_t* HWY_RESTRICT bytes, std::size_t groups, std::size_t bits,
                   std::uint64_t* HWY_RESTRICT codes) {
  const ByteTag d;
  const std::size_t lanes = hn::Lanes(d);
  for (std::size_t group = 0; group < groups; ++group, bytes += 64, codes += bits) {
    for (std::size_t k = 0; k < bits; ++k) {
      const auto bit = hn::Set(d, static_cast<std::uint8_t>(1u << k));
      std::uint64_t word = 0;
      for (std::size_t lane = 0; lane < 64; lane += lanes) {
        word |= mask_to_word(d, hn::TestBit(hn::LoadU(d, bytes + lane), bit), lane);
      }
      codes[k] = word;
    }
  }
}

template <class Placement>
void EncodeWith(const QuantizationLevels& levels, const Placement& placement, const RandomStream& stream,
                std::size_t first_pair, const float* HWY_RESTRICT gradient,
                const float* HWY_RESTRICT residual, std::size_t count, std::size_t behind, float inverse,
                std::uint64_t* HWY_RESTRICT codes) {
  HWY_ALIGN std::uint8_t bytes[kStaged];
  HWY_ALIGN float staged[kStaged];
  const FloatTag d;
  const std::size_t lanes = hn::Lanes(d);
  for (std::size_t begin = 0; begin < count; begin += kStaged) {
    const std::size_t valid = std::min(kStaged, count - begin);
    const std::size_t pairs = (valid + kPair - 1) / kPair;
    const float* p = gradient + begin;
    if (residual != nullptr || valid % kPair != 0) {
      const float* r = residual == nullptr ? nullptr : residual + begin;
      std::size_t i = 0;
      for (; i + lanes <= valid; i += lanes) hn::StoreU(load(d, p, r, i), d, staged + i);
      for (; i < valid; ++i) staged[i] = r == nullptr ? p[i] : p[i] + r[i];
      for (; i < pairs * kPair; ++i) staged[i] = 0;
      p = staged;
    }
    const bool fetch = begin + pairs * kPair <= behind;
    CodeBytes(levels, placement, stream, first_pair + begin / kPair, pairs, p, inverse,
              fetch ? gradient + count + begin : nullptr,
              fetch && residual != nullptr ? residual + count + begin : nullptr, bytes);
    PlanesOfBytes(bytes, (valid + 63) / 64, levels.bits, codes + begin / 64 * levels.bits);
  }
}

/// Elements from 128 * first_pair on. `behind` more follow, which are fetched into the cache meanwhile.
void Encode(const QuantizationLevels& levels, const RandomStream& stream, std::size_t first_pair,
            const float* gradient, const float* residual, std::size_t count, std::size_t behind,
            float inverse, std::uint64_t* codes) {
  auto encode = [&](const auto& placement) {
    EncodeWith(levels, placement, stream, first_pair, gradient, residual, count, behind, inverse, codes);
  };
  if (levels.equal_steps) return encode(EqualSteps(levels));
  auto search = [&](auto bits) {
    if (fits_a_register(levels)) return encode(SearchedLevels<RegisterTable, bits>(levels));
    return encode(SearchedLevels<MemoryTable, bits>(levels));
  };
  switch (levels.bits) {
    case 3:
      return search(std::integral_constant<int, 3>());
    case 4:
      return search(std::integral_constant<int, 4>());
    case 5:
      return search(std::integral_constant<int, 5>());
    case 6:
      return encode(SearchedLevels<MemoryTable, 6>(levels));
    case 7:
      return encode(SearchedLevels<MemoryTable, 7>(levels));
    default:
      return encode(SearchedLevels<MemoryTable, 8>(levels));
  }
}

/// The reverse of PlanesOfBytes.
void BytesOfPlanes(const std::uint64_t* HWY_RESTRICT codes, std::size_t groups, std::size_t bits,
                   std::uint8_t* HWY_RESTRICT bytes) {
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
void DecodeWith(const Value& value, std::size_t bits, const std::uint64_t* HWY_RESTRICT codes,
                std::size_t count, bool add, float* HWY_RESTRICT values) {
  HWY_ALIGN std::uint8_t bytes[kStaged];
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
  for (std::size_t begin = 0; begin < count; begin += kStaged) {
    const std::size_t valid = std::min(kStaged, count - begin);
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

HWY_EXPORT(LargestMagnitude);
HWY_EXPORT(SumOfSquares);
HWY_EXPORT(Encode);
HWY_EXPORT(Decode);

namespace {

const float* at(Span<const float> span, std::size_t offset) {
  return span.empty() ? nullptr : span.data() + offset;
}

float float_of_bits(std::uint32_t bits) {
  float value = 0;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

/// 1 / norm, 0 where that is no float.
float inverse_of(float norm) {
  return norm < std::numeric_limits<float>::min() ? 0.0f : 1.0f / norm;
}

[[noreturn]] void refuse_bits(std::size_t bits) {
  throw std::invalid_argument(std::to_string(bits) +
                              " bits per element: a sign and at least one level take 2 bits, and a code has "
                              "at most 8; give bits from 2 to 8");
}

/// Range that element `first` lies in.
std::size_t range_of(const QuantizationScales& scales, std::size_t first) {
  if (scales.ends.empty()) return first / scales.chunk;
  return static_cast<std::size_t>(std::upper_bound(scales.ends.begin(), scales.ends.end(), first) -
                                  scales.ends.begin());
}

std::size_t end_of(const QuantizationScales& scales, std::size_t range) {
  return scales.ends.empty() ? (range + 1) * scales.chunk : scales.ends[range];
}

}  // namespace

QuantizationLevels QuantizationLevels::uniform(std::size_t bits) {
  if (bits < kLeastBits || bits > kMostBits) refuse_bits(bits);
  QuantizationLevels levels;
  levels.bits = bits;
  const auto last = static_cast<float>(levels.count() - 1);
  for (std::size_t j = 0; j < levels.count(); ++j) levels.values[j] = static_cast<float>(j) / last;
  for (std::size_t j = 0; j + 1 < levels.count(); ++j) levels.slopes[j] = 65536.0f * last;
  return levels;
}

QuantizationLevels QuantizationLevels::halving(std::size_t bits) {
  QuantizationLevels levels = uniform(bits);
  std::array<float, kMost> values{};
  const auto last = static_cast<int>(levels.count()) - 1;
  for (int j = 1; j <= last; ++j) values[static_cast<std::size_t>(j)] = std::ldexp(1.0f, j - last);
  return given(Span<const float>(values).first(levels.count()));
}

QuantizationLevels QuantizationLevels::given(Span<const float> values) {
  std::size_t bits = kLeastBits;
  while (bits < kMostBits && std::size_t{1} << (bits - 1) < values.size()) ++bits;
  QuantizationLevels levels;
  levels.bits = bits;
  if (levels.count() != values.size()) {
    throw std::invalid_argument(std::to_string(values.size()) +
                                " levels: their number is a power of two, 2 to 128");
  }
  // Two levels are 0 and 1, which are equally far from each other.
  levels.equal_steps = values.size() == 2;
  for (std::size_t j = 0; j < values.size(); ++j) {
    const bool right = j == 0 ? values[0] == 0.0f : values[j] > values[j - 1] && values[j] <= 1.0f;
    if (!right || (j + 1 == values.size() && values[j] != 1.0f)) {
      throw std::invalid_argument("level " + std::to_string(j) + " is " + std::to_string(values[j]) +
                                  ": levels ascend from 0 to 1");
    }
    levels.values[j] = values[j];
    if (j != 0) levels.slopes[j - 1] = std::min(65536.0f / (values[j] - values[j - 1]), 0x1p126f);
  }
  return levels;
}

bool quantize_chunks(Executor& executor, const RandomStream& stream, const QuantizationLevels& levels,
                     QuantizationNorm norm, std::size_t chunk, Span<const float> gradient,
                     Span<const float> residual, Span<float> norms, Span<std::uint64_t> codes) {
  if (chunk == 0 || chunk % QuantizationScales::kAlignment != 0) {
    throw std::invalid_argument("chunks of " + std::to_string(chunk) + " elements: give a multiple of 128");
  }
  std::atomic<bool> finite{true};
  executor.parallel_for(chunk_count(gradient.size(), chunk), 1, [&](std::size_t first, std::size_t last) {
    for (std::size_t c = first; c < last; ++c) {
      const std::size_t begin = c * chunk;
      const std::size_t count = std::min(chunk, gradient.size() - begin);
      const float* g = gradient.data() + begin;
      const float* r = at(residual, begin);
      const float length =
          norm == QuantizationNorm::largest
              ? float_of_bits(HWY_DYNAMIC_DISPATCH(LargestMagnitude)(g, r, count))
              : static_cast<float>(std::sqrt(HWY_DYNAMIC_DISPATCH(SumOfSquares)(g, r, count)));
      if (!std::isfinite(length)) {
        finite.store(false, std::memory_order_relaxed);
        return;
      }
      const float inverse = inverse_of(length);
      norms[c] = inverse == 0.0f ? 0.0f : length;
      HWY_DYNAMIC_DISPATCH(Encode)
      (levels, stream, begin / kPair, g, r, count, gradient.size() - begin - count, inverse,
       codes.data() + begin / 64 * levels.bits);
    }
  });
  return finite.load();
}

void quantize_ranges(Executor& executor, const RandomStream& stream, const QuantizationLevels& levels,
                     Span<const std::size_t> ends, Span<const float> norms, Span<const float> gradient,
                     Span<const float> residual, Span<std::uint64_t> codes) {
  const QuantizationScales scales{.ends = ends};
  executor.parallel_for(gradient.size(), kBlockElements, [&](std::size_t begin, std::size_t end) {
    std::size_t range = range_of(scales, begin);
    while (begin < end) {
      const std::size_t whole = std::min(end, ends[range]);
      const std::size_t run = whole == end ? end - begin : (whole - begin) / kPair * kPair;
      if (run != 0) {
        HWY_DYNAMIC_DISPATCH(Encode)
        (levels, stream, begin / kPair, gradient.data() + begin, at(residual, begin), run, 0,
         inverse_of(norms[range]), codes.data() + begin / 64 * levels.bits);
        begin += run;
        if (begin == end) return;
      }
      // Elements of several ranges share words: each is brought to its own scale first.
      std::array<float, kPair> scaled;
      const std::size_t mixed = std::min(kPair, end - begin);
      for (std::size_t i = 0; i < mixed; ++i) {
        while (begin + i >= ends[range]) ++range;
        const float p = residual.empty() ? gradient[begin + i] : gradient[begin + i] + residual[begin + i];
        scaled[i] = p * inverse_of(norms[range]);
      }
      HWY_DYNAMIC_DISPATCH(Encode)
      (levels, stream, begin / kPair, scaled.data(), nullptr, mixed, 0, 1.0f,
       codes.data() + begin / 64 * levels.bits);
      begin += mixed;
      while (begin < end && begin >= ends[range]) ++range;
    }
  });
}

float largest_magnitude(Executor& executor, Span<const float> gradient, Span<const float> residual) {
  std::atomic<std::uint32_t> most{0};
  executor.parallel_for(gradient.size(), kBlockElements, [&](std::size_t begin, std::size_t end) {
    const std::uint32_t own =
        HWY_DYNAMIC_DISPATCH(LargestMagnitude)(gradient.data() + begin, at(residual, begin), end - begin);
    std::uint32_t seen = most.load(std::memory_order_relaxed);
    while (seen < own && !most.compare_exchange_weak(seen, own, std::memory_order_relaxed)) {
    }
  });
  return float_of_bits(most.load());
}

void dequantize(const QuantizationLevels& levels, const QuantizationScales& scales, Span<const float> norms,
                Span<const std::uint64_t> codes, std::size_t first, bool add, Span<float> values) {
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

}  // namespace thinwire
#endif
