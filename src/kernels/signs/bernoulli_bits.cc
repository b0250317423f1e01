#include "kernels/signs/bernoulli_bits.h"

#include <bit>
#include <stdexcept>
#include <string>

#include "kernels/blocks.h"
#include "kernels/device/on_device.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/signs/bernoulli_bits.cc"
#include <hwy/foreach_target.h>  // must come before highway.h

#include "kernels/philox-inl.h"

HWY_BEFORE_NAMESPACE();
namespace thinwire::HWY_NAMESPACE {

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

HWY_EXPORT(BernoulliBits);

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
