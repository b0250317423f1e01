#include "kernels/codes/quantize.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <stdexcept>
#include <string>
#include <type_traits>

#include "kernels/blocks.h"
#include "kernels/codes/fine_rounding.h"
#include "kernels/dense/dense.h"
#include "kernels/device/on_device.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/codes/quantize.cc"
#include <hwy/cache_control.h>
#include <hwy/foreach_target.h>  // must come before highway.h

#include "kernels/bits-inl.h"
#include "kernels/codes/level_tables-inl.h"
#include "kernels/philox-inl.h"

HWY_BEFORE_NAMESPACE();
namespace thinwire::HWY_NAMESPACE {

/// Where a magnitude lies between equal steps: its place in units of 2^-16 of a step.
class EqualSteps {
 public:
  static constexpr bool kZero = true;

  explicit EqualSteps(const QuantizationLevels& levels) : scale_(levels.last() * 65536.0f) {}

  template <class D, class V, class VU>
  HWY_INLINE V place(D d, V magnitude, VU&) const {
    const auto scale = hn::Set(d, scale_);
    return hn::Min(hn::Mul(magnitude, scale), scale);
  }

 private:
  float scale_;
};

/// The same from the level below on, which a binary search finds; there are 2^(bits - 1) of them. bits: 0 for
/// any number.
template <class Table, int bits, bool zero>
class SearchedLevels {
 public:
  static constexpr bool kZero = zero;

  explicit SearchedLevels(const QuantizationLevels& levels)
      : values_(levels.values.data()),
        slopes_(levels.slopes.data()),
        middle_(std::uint32_t{1} << (levels.bits - 2)),
        lowest_(levels.values[0]),
        lowest_slope_(levels.lowest_slope) {}

  /// doubled: becomes twice the index of the level below, -2 below the lowest.
  template <class D, class V, class VU>
  HWY_INLINE V place(D d, V magnitude, VU& doubled) const {
    const hn::RebindToUnsigned<D> du;
    const auto a = hn::Min(magnitude, hn::Set(d, 1.0f));
    auto j = hn::Zero(du);
    for (std::uint32_t half = bits == 0 ? middle_ : 1u << (bits - 2); half != 0; half /= 2) {
      const auto candidate = hn::Or(j, hn::Set(du, half));
      j = hn::IfThenElse(hn::RebindMask(du, hn::Ge(a, values_(d, candidate))), candidate, j);
    }
    doubled = hn::Add(j, j);
    const auto y = hn::Min(hn::Mul(hn::Sub(a, values_(d, j)), slopes_(d, j)), hn::Set(d, 65536.0f));
    if (zero) return y;
    const auto lowest = hn::Set(d, lowest_);
    const auto crosses = hn::Lt(a, lowest);
    doubled = hn::IfThenElse(hn::RebindMask(du, crosses), hn::Set(du, ~1u), doubled);
    return hn::IfThenElse(crosses, hn::Mul(hn::Add(a, lowest), hn::Set(d, lowest_slope_)), y);
  }

 private:
  Table values_;
  Table slopes_;
  std::uint32_t middle_;
  float lowest_;
  float lowest_slope_;
};

/// Asks for the elements of a pair, unless values is null.
HWY_INLINE void FetchPair(const float* values, std::size_t pair) {
  for (std::size_t line = 0; values != nullptr && line < kPair; line += 16) {
    hwy::Prefetch(values + pair * kPair + line);
  }
}

/// The blocks of random words from `first` on, one to a lane; for the nearest level what rounds to it.
template <bool kNearest, class DU, class V>
HWY_INLINE void DrawWords(DU du, const RandomStream& stream, std::uint32_t first, V (&words)[4]) {
  if constexpr (kNearest) {
    for (V& word : words) word = hn::Set(du, kToNearest << 16 | kToNearest);
    return;
  }
  const auto random = philox_lanes(du, hn::Add(hn::Iota(du, 0), hn::Set(du, first)), 0, stream);
  words[0] = random.x0;
  words[1] = random.x1;
  words[2] = random.x2;
  words[3] = random.x3;
}

/// Codes of `pairs` * kPair elements, one per byte: index * 2 + sign. Meanwhile as many elements from next_
/// pointers on come into the cache, unless these are null.
template <bool kNearest, class Placement>
void CodeBytes(const QuantizationLevels& levels, const Placement& placement, const RandomStream& stream,
               std::size_t first_pair, std::size_t pairs, Reads<float> p, float inverse,
               const float* next_gradient, const float* next_residual, Writes<std::uint8_t> bytes) {
  const FloatTag d;
  const hn::RebindToUnsigned<FloatTag> du;
  const hn::Rebind<std::uint8_t, FloatTag> d8;
  const std::size_t lanes = hn::Lanes(d);
  const auto factor = hn::Set(d, inverse);
  const auto magic = hn::Set(d, kMagic);
  const auto even = hn::Set(du, ~1u);
  const auto least_clear = hn::Set(du, kLeastClear);
  // Copies that nothing points to: bytes may alias what the arguments refer to.
  const RandomStream local_stream = stream;
  const Placement local_placement = placement;
  for (std::size_t pair = 0; pair < pairs; ++pair, p += kPair, bytes += kPair) {
    FetchPair(next_gradient, pair);
    FetchPair(next_residual, pair);
    for (std::size_t lane = 0; lane < 16; lane += lanes) {
      hn::Vec<decltype(du)> words[4];
      DrawWords<kNearest>(du, local_stream, static_cast<std::uint32_t>((first_pair + pair) * 16 + lane),
                          words);
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
        auto code = hn::Or(doubled, sign);
        if (!Placement::kZero) {
          // Less than the magic number's own bits: the other side of 0.
          const auto crossed = hn::Gt(hn::Set(du, kMagicBits >> 15), doubled);
          code = hn::IfThenElse(crossed, hn::Xor(sign, hn::Set(du, 1)), code);
        }
        hn::StoreU(hn::TruncateTo(d8, code), d8, bytes + at);
      }
      if (kNearest || hn::AllTrue(du, hn::Gt(closest, least_clear))) continue;
      for (std::size_t at = lane; at < kPair; at += 16) {
        auto below = hn::Zero(du);
        const auto sum = sum_of(at, hn::LoadU(d, p + at), below);
        const auto close = hn::Gt(hn::Add(least_clear, hn::Set(du, 1)), hn::ShiftLeft<16>(sum));
        for (std::uint64_t left = mask_to_word(du, close, 0); left != 0; left &= left - 1) {
          const std::size_t i = at + static_cast<std::size_t>(std::countr_zero(left));
          bytes[i] = decide_finely(levels, stream, first_pair + pair, i, std::fabs(p[i]) * inverse,
                                   std::signbit(p[i]));
        }
      }
    }
  }
}

/// Bit k of 64 bytes into word k.
void PlanesOfBytes(Reads<std::uint8_t> bytes, std::size_t groups, std::size_t bits,
                   Writes<std::uint64_t> codes) {
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

template <bool kNearest, class Placement>
void EncodeWith(const QuantizationLevels& levels, const Placement& placement, const RandomStream& stream,
                std::size_t first_pair, Reads<float> gradient, Reads<float> residual, std::size_t count,
                std::size_t behind, float inverse, Writes<std::uint64_t> codes) {
  HWY_ALIGN std::uint8_t bytes[kStagedCodes];
  HWY_ALIGN float staged[kStagedCodes];
  const FloatTag d;
  const std::size_t lanes = hn::Lanes(d);
  for (std::size_t begin = 0; begin < count; begin += kStagedCodes) {
    const std::size_t valid = std::min(kStagedCodes, count - begin);
    const std::size_t pairs = (valid + kPair - 1) / kPair;
    const float* p = gradient + begin;
    if (residual != nullptr || valid % kPair != 0) {
      const float* r = residual == nullptr ? nullptr : residual + begin;
      std::size_t i = 0;
      for (; i + lanes <= valid; i += lanes) hn::StoreU(load_sum(d, p, r, i), d, staged + i);
      for (; i < valid; ++i) staged[i] = sum_at(p, r, i);
      for (; i < pairs * kPair; ++i) staged[i] = 0;
      p = staged;
    }
    const bool fetch = begin + pairs * kPair <= behind;
    CodeBytes<kNearest>(levels, placement, stream, first_pair + begin / kPair, pairs, p, inverse,
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
    const auto encode_with = levels.nearest ? EncodeWith<true, std::decay_t<decltype(placement)>>
                                            : EncodeWith<false, std::decay_t<decltype(placement)>>;
    encode_with(levels, placement, stream, first_pair, gradient, residual, count, behind, inverse, codes);
  };
  if (levels.equal_steps) return encode(EqualSteps(levels));
  auto search = [&](auto table, auto bits) {
    using Table = typename decltype(table)::type;
    if (levels.has_zero()) return encode(SearchedLevels<Table, bits, true>(levels));
    return encode(SearchedLevels<Table, bits, false>(levels));
  };
  // Gathers from memory take longer than the search's loop; each number of bits would take a second to
  // compile.
  if (!fits_a_register(levels))
    return search(std::type_identity<MemoryTable>(), std::integral_constant<int, 0>());
  const std::type_identity<RegisterTable> held;  // of 16 levels at most
  switch (levels.bits) {
    case 2:
      return search(held, std::integral_constant<int, 2>());
    case 3:
      return search(held, std::integral_constant<int, 3>());
    case 4:
      return search(held, std::integral_constant<int, 4>());
    default:
      return search(held, std::integral_constant<int, 5>());
  }
}

/// Bits of the largest |p|, which order like the values; inf and NaN are the largest.
std::uint32_t LargestMagnitude(Reads<float> gradient, Reads<float> residual, std::size_t count) {
  const FloatTag d;
  const hn::RebindToUnsigned<FloatTag> du;
  const std::size_t lanes = hn::Lanes(d);
  const auto magnitude = hn::Set(du, 0x7FFFFFFFu);
  auto most0 = hn::Zero(du);
  auto most1 = most0;
  std::size_t i = 0;
  for (; i + 2 * lanes <= count; i += 2 * lanes) {
    most0 = hn::Max(most0, hn::And(hn::BitCast(du, load_sum(d, gradient, residual, i)), magnitude));
    most1 = hn::Max(most1, hn::And(hn::BitCast(du, load_sum(d, gradient, residual, i + lanes)), magnitude));
  }
  std::uint32_t most = hn::GetLane(hn::MaxOfLanes(du, hn::Max(most0, most1)));
  for (; i < count; ++i) {
    const float p = sum_at(gradient, residual, i);
    most = std::max(most, std::bit_cast<std::uint32_t>(p) & 0x7FFFFFFFu);
  }
  return most;
}

double SumOfSquares(Reads<float> gradient, Reads<float> residual, std::size_t count) {
  const HWY_CAPPED(double, 8) d;
  const hn::Rebind<float, decltype(d)> df;
  const std::size_t lanes = hn::Lanes(d);
  auto sum0 = hn::Zero(d);
  auto sum1 = sum0;
  auto sum2 = sum0;
  auto sum3 = sum0;
  auto square = [&](std::size_t i, hn::Vec<decltype(d)>& sum) HWY_ATTR {
    const auto p = hn::PromoteTo(d, load_sum(df, gradient, residual, i));
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
    const float p = sum_at(gradient, residual, i);
    total += static_cast<double>(p) * static_cast<double>(p);
  }
  return total;
}

}  // namespace thinwire::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace thinwire {

HWY_EXPORT(Encode);
HWY_EXPORT(LargestMagnitude);
HWY_EXPORT(SumOfSquares);

bool quantize_chunks(Executor& executor, const RandomStream& stream, const QuantizationLevels& levels,
                     QuantizationNorm norm, std::size_t chunk, Span<const float> gradient,
                     Span<const float> residual, Span<float> norms, Span<std::uint64_t> codes) {
  if (chunk == 0 || chunk % QuantizationScales::kAlignment != 0) {
    throw std::invalid_argument("chunks of " + std::to_string(chunk) + " elements: give a multiple of 128");
  }
  THINWIRE_ON_DEVICE(quantize_chunks, executor, stream, levels, norm, chunk, gradient, residual, norms,
                     codes);
  std::atomic<bool> finite{true};
  executor.parallel_for(chunk_count(gradient.size(), chunk), 1, [&](std::size_t first, std::size_t last) {
    for (std::size_t c = first; c < last; ++c) {
      const std::size_t begin = c * chunk;
      const std::size_t count = std::min(chunk, gradient.size() - begin);
      const float length =
          norm_serially(norm, gradient.subspan(begin, count), residual.subspan(begin, count));
      if (!std::isfinite(length)) {
        finite.store(false, std::memory_order_relaxed);
        return;
      }
      const float inverse = inverse_of(length);
      norms[c] = inverse == 0.0f ? 0.0f : length;
      HWY_DYNAMIC_DISPATCH(Encode)
      (levels, stream, begin / kPair, gradient.data() + begin, data_at(residual, begin), count,
       gradient.size() - begin - count, inverse, codes.data() + begin / 64 * levels.bits);
    }
  });
  return finite.load();
}

void quantize_ranges(Executor& executor, const RandomStream& stream, const QuantizationLevels& levels,
                     Span<const std::size_t> ends, Span<const float> norms, Span<const float> gradient,
                     Span<const float> residual, Span<std::uint64_t> codes) {
  THINWIRE_ON_DEVICE(quantize_ranges, executor, stream, levels, ends, norms, gradient, residual, codes);
  executor.parallel_for(gradient.size(), kBlockElements, [&](std::size_t begin, std::size_t end) {
    auto range = static_cast<std::size_t>(std::upper_bound(ends.begin(), ends.end(), begin) - ends.begin());
    while (begin < end) {
      const std::size_t whole = std::min(end, ends[range]);
      const std::size_t run = whole == end ? end - begin : (whole - begin) / kPair * kPair;
      if (run != 0) {
        HWY_DYNAMIC_DISPATCH(Encode)
        (levels, stream, begin / kPair, gradient.data() + begin, data_at(residual, begin), run, 0,
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

float norm_serially(QuantizationNorm norm, Span<const float> gradient, Span<const float> residual) {
  const float* g = gradient.data();
  const float* r = data_at(residual, 0);
  return norm == QuantizationNorm::largest
             ? std::bit_cast<float>(HWY_DYNAMIC_DISPATCH(LargestMagnitude)(g, r, gradient.size()))
             : float_of(std::sqrt(HWY_DYNAMIC_DISPATCH(SumOfSquares)(g, r, gradient.size())));
}

void measure_ranges(Executor& executor, Span<const std::size_t> ends, Span<const float> gradient,
                    Span<const float> residual, Span<float> largest, Span<double> squares) {
  THINWIRE_ON_DEVICE(measure_ranges, executor, ends, gradient, residual, largest, squares);
  std::size_t begin = 0;
  for (std::size_t range = 0; range < ends.size(); begin = ends[range], ++range) {
    const auto g = gradient.subspan(begin, ends[range] - begin);
    const auto r = residual.subspan(begin, ends[range] - begin);
    largest[range] = largest_magnitude(executor, g, r);
    if (!squares.empty()) squares[range] = sum_of_squares(executor, g, r);
  }
}

float largest_magnitude(Executor& executor, Span<const float> gradient, Span<const float> residual) {
  THINWIRE_ON_DEVICE(largest_magnitude, executor, gradient, residual);
  std::atomic<std::uint32_t> most{0};
  executor.parallel_for(gradient.size(), kBlockElements, [&](std::size_t begin, std::size_t end) {
    const std::uint32_t own = HWY_DYNAMIC_DISPATCH(LargestMagnitude)(gradient.data() + begin,
                                                                     data_at(residual, begin), end - begin);
    std::uint32_t seen = most.load(std::memory_order_relaxed);
    while (seen < own && !most.compare_exchange_weak(seen, own, std::memory_order_relaxed)) {
    }
  });
  return std::bit_cast<float>(most.load());
}

}  // namespace thinwire
#endif
