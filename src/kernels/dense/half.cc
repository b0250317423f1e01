#include "kernels/dense/half.h"

#include "kernels/blocks.h"
#include "kernels/device/on_device.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/dense/half.cc"
#include <hwy/foreach_target.h>  // must come before highway.h

#include "kernels/bits-inl.h"

HWY_BEFORE_NAMESPACE();
namespace thinwire::HWY_NAMESPACE {

// A 16-bit float in the low half of each 32-bit lane. Integer arithmetic where a target does not convert in
// hardware. Where it does (F16C comes with AVX2), the processor rounds to nearest even and keeps subnormals
// whatever its modes: the same bits but for those of a NaN.
constexpr bool kConverts = HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL;

/// Elements whose squares are summed in float before they go into a double.
constexpr std::size_t kSquaresRun = 4096;

struct Bf16 {
  static constexpr std::uint32_t kExponent = 0x7F80;

  template <class D, class V>
  static HWY_INLINE V encode(D, V bits) {
    const D d;
    const V odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(d, 1u));
    const V rounded = hn::ShiftRight<16>(hn::Add(hn::Add(bits, hn::Set(d, 0x7FFFu)), odd));
    // Rounding could carry a NaN's payload into the sign; any NaN will do.
    const V magnitude = hn::And(bits, hn::Set(d, 0x7FFFFFFFu));
    return hn::IfThenElse(hn::Gt(magnitude, hn::Set(d, 0x7F800000u)), hn::Set(d, 0x7FC0u), rounded);
  }
  template <class D, class V>
  static HWY_INLINE V decode(D, V half) {
    return hn::ShiftLeft<16>(half);
  }
};

struct Fp16 {
  static constexpr std::uint32_t kExponent = 0x7C00;

  template <class D, class V>
  static HWY_INLINE V encode(D, V bits) {
    const D d;
    const hn::Rebind<float, D> df;
    if constexpr (kConverts) {
      const hn::Rebind<hwy::float16_t, D> d16;
      const hn::Rebind<std::uint16_t, D> dh;
      return hn::PromoteTo(d, hn::BitCast(dh, hn::DemoteTo(d16, hn::BitCast(df, bits))));
    }
    const V sign = hn::And(bits, hn::Set(d, 0x80000000u));
    const V magnitude = hn::Xor(bits, sign);
    // Normal results: rebias the exponent by 15 - 127 and round to nearest even at bit 13.
    const V odd = hn::And(hn::ShiftRight<13>(magnitude), hn::Set(d, 1u));
    const V normal = hn::ShiftRight<13>(
        hn::Add(hn::Add(magnitude, hn::Set(d, (static_cast<std::uint32_t>(15 - 127) << 23) + 0xFFFu)), odd));
    // Subnormal results, below 2^-14: adding 0.5 makes the float adder shift and round; the mantissa's low
    // bits are then the result.
    const V magic = hn::Set(d, 0x3F000000u);
    const V subnormal =
        hn::Sub(hn::BitCast(d, hn::Add(hn::BitCast(df, magnitude), hn::BitCast(df, magic))), magic);
    // From 65520 on everything rounds to infinity; NaN stays NaN.
    const V special =
        hn::IfThenElse(hn::Gt(magnitude, hn::Set(d, 0x7F800000u)), hn::Set(d, 0x7E00u), hn::Set(d, 0x7C00u));
    V half = hn::IfThenElse(hn::Lt(magnitude, hn::Set(d, 0x38800000u)), subnormal, normal);
    half = hn::IfThenElse(hn::Gt(magnitude, hn::Set(d, 0x477FEFFFu)), special, half);
    return hn::Or(half, hn::ShiftRight<16>(sign));
  }
  template <class D, class V>
  static HWY_INLINE V decode(D, V half) {
    const D d;
    const hn::Rebind<float, D> df;
    if constexpr (kConverts) {
      const hn::Rebind<hwy::float16_t, D> d16;
      const hn::Rebind<std::uint16_t, D> dh;
      const hn::RebindToSigned<D> di;
      return hn::BitCast(d, hn::PromoteTo(df, hn::BitCast(d16, hn::DemoteTo(dh, hn::BitCast(di, half)))));
    }
    const V sign = hn::ShiftLeft<16>(hn::And(half, hn::Set(d, 0x8000u)));
    const V shifted = hn::ShiftLeft<13>(hn::And(half, hn::Set(d, 0x7FFFu)));
    const V exponent = hn::And(shifted, hn::Set(d, 0x7C00u << 13));
    const V rebias = hn::Set(d, static_cast<std::uint32_t>(127 - 15) << 23);
    const V normal = hn::Add(shifted, rebias);
    const V infinite = hn::Add(normal, hn::Set(d, static_cast<std::uint32_t>(128 - 16) << 23));
    // Subnormal: 2^-14 * (1 + m) - 2^-14, exact in float.
    const V smallest = hn::Set(d, 113u << 23);
    const V subnormal =
        hn::BitCast(d, hn::Sub(hn::BitCast(df, hn::Add(shifted, smallest)), hn::BitCast(df, smallest)));
    V bits = hn::IfThenElse(hn::Eq(exponent, hn::Set(d, 0x7C00u << 13)), infinite, normal);
    bits = hn::IfThenElse(hn::Eq(exponent, hn::Zero(d)), subnormal, bits);
    return hn::Or(bits, sign);
  }
};

using WordTag = HWY_CAPPED(std::uint32_t, 16);
using HalfTag = hn::Rebind<std::uint16_t, WordTag>;

/// Loads and stores of a run of `lanes` elements; a short run goes through a buffer.
template <class D, class T>
HWY_INLINE hn::Vec<D> load_run(D d, const T* from, std::size_t lanes, std::size_t valid) {
  if (valid == lanes) return hn::LoadU(d, from);
  HWY_ALIGN T buffer[16] = {};
  for (std::size_t i = 0; i < valid; ++i) buffer[i] = from[i];
  return hn::Load(d, buffer);
}

template <class D, class V, class T>
HWY_INLINE void store_run(V value, D d, T* to, std::size_t lanes, std::size_t valid) {
  if (valid == lanes) {
    hn::StoreU(value, d, to);
    return;
  }
  HWY_ALIGN T buffer[16];
  hn::Store(value, d, buffer);
  for (std::size_t i = 0; i < valid; ++i) to[i] = buffer[i];
}

template <class Format>
bool Encode(Reads<float> gradient, Reads<float> residual, Writes<std::uint16_t> out, std::size_t count) {
  const WordTag d;
  const HalfTag dh;
  const hn::RebindToSigned<WordTag> di;
  const hn::Rebind<float, WordTag> df;
  const std::size_t lanes = hn::Lanes(d);
  auto overflow = hn::Zero(d);
  for (std::size_t i = 0; i < count; i += lanes) {
    const std::size_t valid = count - i < lanes ? count - i : lanes;
    auto p = load_run(df, gradient + i, lanes, valid);
    if (residual != nullptr) p = hn::Add(p, load_run(df, residual + i, lanes, valid));
    const auto half = Format::encode(d, hn::BitCast(d, p));
    const auto exponent = hn::Set(d, Format::kExponent);
    overflow = hn::Or(overflow, hn::VecFromMask(d, hn::Eq(hn::And(half, exponent), exponent)));
    store_run(hn::DemoteTo(dh, hn::BitCast(di, half)), dh, out + i, lanes, valid);
  }
  return hn::AllTrue(d, hn::Eq(overflow, hn::Zero(d)));
}

template <class Format>
void Decode(Reads<std::uint16_t> in, Writes<float> out, std::size_t count) {
  const WordTag d;
  const HalfTag dh;
  const hn::Rebind<float, WordTag> df;
  const std::size_t lanes = hn::Lanes(d);
  for (std::size_t i = 0; i < count; i += lanes) {
    const std::size_t valid = count - i < lanes ? count - i : lanes;
    const auto half = hn::PromoteTo(d, load_run(dh, in + i, lanes, valid));
    store_run(hn::BitCast(df, Format::decode(d, half)), df, out + i, lanes, valid);
  }
}

/// Elements [begin, end) of mean_of_halves.
template <class Format>
bool Mean(Span<const Span<const std::uint16_t>> parts, Writes<float> sums, Writes<std::uint16_t> mean,
          std::size_t begin, std::size_t end) {
  const WordTag d;
  const HalfTag dh;
  const hn::RebindToSigned<WordTag> di;
  const hn::Rebind<float, WordTag> df;
  const std::size_t lanes = hn::Lanes(d);
  const auto factor = hn::Set(df, 1.0f / static_cast<float>(parts.size()));
  const auto exponent = hn::Set(d, Format::kExponent);
  auto overflow = hn::Zero(d);
  for (std::size_t i = begin; i < end; i += lanes) {
    const std::size_t valid = end - i < lanes ? end - i : lanes;
    auto sum = hn::Zero(df);
    for (const Span<const std::uint16_t>& part : parts) {
      const auto half = hn::PromoteTo(d, load_run(dh, part.data() + i, lanes, valid));
      sum = hn::Add(sum, hn::BitCast(df, Format::decode(d, half)));
    }
    if (sums != nullptr) store_run(sum, df, sums + i, lanes, valid);
    const auto half = Format::encode(d, hn::BitCast(d, hn::Mul(sum, factor)));
    overflow = hn::Or(overflow, hn::VecFromMask(d, hn::Eq(hn::And(half, exponent), exponent)));
    store_run(hn::DemoteTo(dh, hn::BitCast(di, half)), dh, mean + i, lanes, valid);
  }
  return hn::AllTrue(d, hn::Eq(overflow, hn::Zero(d)));
}

template <class Format>
double Apply(Reads<std::uint16_t> mean, Writes<float> gradient, ResidualBlock residual, std::size_t count) {
  const WordTag d;
  const HalfTag dh;
  const hn::Rebind<float, WordTag> df;
  const std::size_t lanes = hn::Lanes(d);
  const bool past_caches = goes_past_caches(df, residual.large, residual.after);
  double total = 0;
  auto squares = hn::Zero(df);
  for (std::size_t i = 0; i < count; i += lanes) {
    const std::size_t valid = count - i < lanes ? count - i : lanes;
    if (residual.after != nullptr) {
      if (i % kSquaresRun == 0) {
        total += static_cast<double>(hn::GetLane(hn::SumOfLanes(df, squares)));
        squares = hn::Zero(df);
      }
      const auto p =
          hn::Add(load_run(df, gradient + i, lanes, valid), load_run(df, residual.before + i, lanes, valid));
      const auto carried = hn::BitCast(df, Format::decode(d, Format::encode(d, hn::BitCast(d, p))));
      const auto left = hn::Sub(p, carried);  // 0 behind the last element
      squares = hn::MulAdd(left, left, squares);
      if (past_caches && valid == lanes) {
        hn::Stream(left, df, residual.after + i);
      } else {
        store_run(left, df, residual.after + i, lanes, valid);
      }
    }
    const auto value =
        hn::BitCast(df, Format::decode(d, hn::PromoteTo(d, load_run(dh, mean + i, lanes, valid))));
    store_run(value, df, gradient + i, lanes, valid);
  }
  if (past_caches) hwy::FlushStream();
  return total + static_cast<double>(hn::GetLane(hn::SumOfLanes(df, squares)));
}

bool EncodeHalf(HalfFormat format, const float* gradient, const float* residual, std::uint16_t* out,
                std::size_t count) {
  return format == HalfFormat::fp16 ? Encode<Fp16>(gradient, residual, out, count)
                                    : Encode<Bf16>(gradient, residual, out, count);
}

void DecodeHalf(HalfFormat format, const std::uint16_t* in, float* out, std::size_t count) {
  format == HalfFormat::fp16 ? Decode<Fp16>(in, out, count) : Decode<Bf16>(in, out, count);
}

bool MeanOfHalves(HalfFormat format, Span<const Span<const std::uint16_t>> parts, float* sums,
                  std::uint16_t* mean, std::size_t begin, std::size_t end) {
  return format == HalfFormat::fp16 ? Mean<Fp16>(parts, sums, mean, begin, end)
                                    : Mean<Bf16>(parts, sums, mean, begin, end);
}

double ApplyHalf(HalfFormat format, const std::uint16_t* mean, float* gradient, ResidualBlock residual,
                 std::size_t count) {
  return format == HalfFormat::fp16 ? Apply<Fp16>(mean, gradient, residual, count)
                                    : Apply<Bf16>(mean, gradient, residual, count);
}

}  // namespace thinwire::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace thinwire {

HWY_EXPORT(EncodeHalf);
HWY_EXPORT(DecodeHalf);
HWY_EXPORT(MeanOfHalves);
HWY_EXPORT(ApplyHalf);

bool encode_half(Executor& executor, HalfFormat format, Span<const float> gradient,
                 Span<const float> residual, Span<std::uint16_t> out) {
  THINWIRE_ON_DEVICE(encode_half, executor, format, gradient, residual, out);
  return in_blocks(executor, gradient.size(), HWY_DYNAMIC_DISPATCH(EncodeHalf), format, gradient, residual,
                   out);
}

void decode_half(Executor& executor, HalfFormat format, Span<const std::uint16_t> in, Span<float> out) {
  THINWIRE_ON_DEVICE(decode_half, executor, format, in, out);
  in_blocks(executor, out.size(), HWY_DYNAMIC_DISPATCH(DecodeHalf), format, in, out);
}

bool mean_of_halves(Executor& executor, HalfFormat format, Span<const Span<const std::uint16_t>> parts,
                    Span<float> sums, Span<std::uint16_t> mean) {
  THINWIRE_ON_DEVICE(mean_of_halves, executor, format, parts, sums, mean);
  return all_of_ranges(executor, mean.size(), kBlockElements, [&](std::size_t begin, std::size_t end) {
    return HWY_DYNAMIC_DISPATCH(MeanOfHalves)(format, parts, data_at(sums), mean.data(), begin, end);
  });
}

double apply_half(Executor& executor, HalfFormat format, Span<const std::uint16_t> mean, Span<float> gradient,
                  ResidualSpan residual) {
  THINWIRE_ON_DEVICE(apply_half, executor, format, mean, gradient, residual);
  return in_blocks(executor, gradient.size(), HWY_DYNAMIC_DISPATCH(ApplyHalf), format, mean, gradient,
                   residual);
}

}  // namespace thinwire
#endif
