#include "kernels/signs/random_signs.h"

#include <bit>
#include <stdexcept>
#include <string>

#include "kernels/blocks.h"
#include "kernels/device/on_device.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/signs/random_signs.cc"
#include <hwy/foreach_target.h>  // must come before highway.h

#include "kernels/bits-inl.h"
#include "kernels/philox-inl.h"

HWY_BEFORE_NAMESPACE();
namespace thinwire::HWY_NAMESPACE {

/// `count` elements from gradient on are the first of word first_word; fewer than 64 only in the last word.
void StochasticSigns(const RandomStream& stream, std::size_t first_word, Reads<float> gradient,
                     Reads<float> residual, float half_inverse_norm, Writes<std::uint64_t> bits,
                     std::size_t count) {
  const FloatTag d;
  const hn::RebindToUnsigned<FloatTag> du;
  const hn::RebindToSigned<FloatTag> di;
  const std::size_t lanes = hn::Lanes(d);
  const auto half = hn::Set(d, 0.5f);
  const auto factor = hn::Set(d, half_inverse_norm);
  const auto unit = hn::Set(d, 0x1p-24f);
  const auto lane_counters = hn::Iota(du, 0);
  const RandomStream local_stream = stream;  // nothing points to it, so its broadcasts leave the loop
  for (std::size_t word = 0; word * 64 < count; ++word) {
    const std::size_t valid = count - word * 64 < 64 ? count - word * 64 : 64;
    HWY_ALIGN float p[64] = {};
    const float* g = gradient + word * 64;
    const float* r = residual == nullptr ? nullptr : residual + word * 64;
    for (std::size_t e = 0; e < valid; ++e) p[e] = sum_at(g, r, e);
    std::uint64_t result = 0;
    for (std::size_t lane = 0; lane < 16; lane += lanes) {
      const auto first = hn::Set(du, static_cast<std::uint32_t>((first_word + word) * 16 + lane));
      const auto random = philox_lanes(du, hn::Add(lane_counters, first), 0, local_stream);
      auto decide = [&](std::size_t quarter, hn::Vec<decltype(du)> x) HWY_ATTR {
        const auto u = hn::Mul(hn::ConvertTo(d, hn::BitCast(di, hn::ShiftRight<8>(x))), unit);
        // Not fused: the scalar definition rounds twice as well.
        const auto threshold = hn::Add(hn::Mul(hn::LoadU(d, p + quarter * 16 + lane), factor), half);
        result |= mask_to_word(d, hn::Lt(u, threshold), quarter * 16 + lane);
      };
      decide(0, random.x0);
      decide(1, random.x1);
      decide(2, random.x2);
      decide(3, random.x3);
    }
    bits[word] = valid == 64 ? result : result & ((std::uint64_t{1} << valid) - 1);
  }
}

/// As many words at a time as there are 32-bit lanes; their low and high halves lie in two vectors.
void BernoulliBits(const RandomStream& stream, std::uint32_t first_word, std::uint32_t threshold, int draws,
                   Writes<std::uint64_t> words, std::size_t count) {
  const HWY_CAPPED(std::uint32_t, 16) d;
  using V = hn::Vec<decltype(d)>;
  const std::size_t lanes = hn::Lanes(d);
  HWY_ALIGN std::uint32_t halves[32];
  const V lane_counters = hn::Iota(d, 0);
  const RandomStream local_stream = stream;  // nothing points to it, so its broadcasts leave the loop
  for (std::size_t k = 0; k < count; k += lanes) {
    const V index = hn::Add(lane_counters, hn::Set(d, first_word + static_cast<std::uint32_t>(k)));
    V open_low = hn::Not(hn::Zero(d));
    V open_high = open_low;
    V low = hn::Zero(d);
    V high = low;
    auto draw = [&](int t, V random_low, V random_high) HWY_ATTR {
      if (((threshold >> (31 - t)) & 1) != 0) {
        // Digit 1: a random 0 is smaller and decides for 1; a random 1 stays open.
        low = hn::Or(low, hn::AndNot(random_low, open_low));
        high = hn::Or(high, hn::AndNot(random_high, open_high));
        open_low = hn::And(open_low, random_low);
        open_high = hn::And(open_high, random_high);
      } else {
        open_low = hn::AndNot(random_low, open_low);
        open_high = hn::AndNot(random_high, open_high);
      }
    };
    for (int t = 0; t < draws; t += 2) {
      const auto random = philox_lanes(d, index, static_cast<std::uint32_t>(t / 2), local_stream);
      draw(t, random.x0, random.x1);
      if (t + 1 < draws) draw(t + 1, random.x2, random.x3);
      if (hn::AllTrue(d, hn::Eq(hn::Or(open_low, open_high), hn::Zero(d)))) break;
    }
    hn::StoreInterleaved2(low, high, d, halves);
    const std::size_t valid = count - k < lanes ? count - k : lanes;
    for (std::size_t word = 0; word < valid; ++word) {
      words[k + word] = halves[2 * word] | (std::uint64_t{halves[2 * word + 1]} << 32);
    }
  }
}

}  // namespace thinwire::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace thinwire {

HWY_EXPORT(StochasticSigns);
HWY_EXPORT(BernoulliBits);

void stochastic_signs(Executor& executor, const RandomStream& stream, Span<const float> gradient,
                      Span<const float> residual, float half_inverse_norm, Span<std::uint64_t> bits) {
  THINWIRE_ON_DEVICE(stochastic_signs, executor, stream, gradient, residual, half_inverse_norm, bits);
  executor.parallel_for(gradient.size(), kBlockElements, [&](std::size_t begin, std::size_t end) {
    HWY_DYNAMIC_DISPATCH(StochasticSigns)
    (stream, begin / 64, gradient.data() + begin, data_at(residual, begin), half_inverse_norm,
     bits.data() + begin / 64, end - begin);
  });
}

void bernoulli_bits(Executor& executor, const RandomStream& stream, std::uint32_t first_word,
                    std::uint32_t numerator, std::uint32_t denominator, Span<std::uint64_t> words) {
  if (numerator == 0 || numerator >= denominator) {
    throw std::invalid_argument("probability " + std::to_string(numerator) + "/" +
                                std::to_string(denominator) + " must lie strictly between 0 and 1");
  }
  THINWIRE_ON_DEVICE(bernoulli_bits, executor, stream, first_word, numerator, denominator, words);
  const std::uint32_t threshold = bernoulli_threshold(numerator, denominator);
  // Digits after the last 1 cannot decide for 1 any more.
  const int draws = kBernoulliDraws - std::countr_zero(threshold);
  executor.parallel_for(words.size(), kBlockElements / 64, [&](std::size_t begin, std::size_t end) {
    HWY_DYNAMIC_DISPATCH(BernoulliBits)
    (stream, first_word + static_cast<std::uint32_t>(begin), threshold, draws, words.data() + begin,
     end - begin);
  });
}

}  // namespace thinwire
#endif
