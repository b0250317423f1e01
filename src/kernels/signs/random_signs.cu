// Random bits on a CUDA device. Of stochastic signs a random block decides four elements, 16 apart; 16 lanes
// of a warp have a word, and votes bring their decisions together. Of Bernoulli's bits a thread draws a word.

#include "kernels/signs/random_signs.h"

#include <bit>

#include "kernels/device/device.h"

namespace thinwire {
using namespace cuda;
namespace {

constexpr unsigned kHalf = kWarp / 2;

THINWIRE_KERNEL void signs_kernel(RandomStream stream, Reads<float> gradient, Reads<float> residual,
                                  std::size_t count, float half_inverse_norm, Writes<std::uint64_t> bits) {
  const std::size_t words = (count + 63) / 64;
  const unsigned lane = lane_of_warp();
  const unsigned offset = lane % kHalf;
  for (std::size_t first = warp_of_grid() * kWordsAtOnce; first < words;
       first += warps_of_grid() * kWordsAtOnce) {
    std::uint64_t own = 0;
#pragma unroll 2
    for (unsigned pair = 0; pair < kWordsAtOnce; pair += 2) {
      const std::size_t word = first + pair + lane / kHalf;
      const std::size_t element = word * 64 + offset;
      float p[4];
#pragma unroll
      for (unsigned quarter = 0; quarter < 4; ++quarter) {
        const std::size_t i = element + quarter * kHalf;
        p[quarter] = i < count ? sum_at(gradient, residual, i) : 0.0f;
      }
      const PhiloxCounter random = stream.block(static_cast<std::uint32_t>(word * kHalf) + offset, 0);
      std::uint64_t low = 0;   // of lanes 0 to 15
      std::uint64_t high = 0;  // of the others
#pragma unroll
      for (unsigned quarter = 0; quarter < 4; ++quarter) {
        const float u = static_cast<float>(random[quarter] >> 8) * 0x1p-24f;
        const bool valid = element + quarter * kHalf < count;
        const unsigned votes = __ballot_sync(kAllLanes, valid && u < p[quarter] * half_inverse_norm + 0.5f);
        low |= static_cast<std::uint64_t>(votes & 0xFFFFu) << (quarter * kHalf);
        high |= static_cast<std::uint64_t>(votes >> kHalf) << (quarter * kHalf);
      }
      if (lane == pair) own = low;
      if (lane == pair + 1) own = high;
    }
    if (lane < kWordsAtOnce && first + lane < words) bits[first + lane] = own;
  }
}

/// draws: digits of the threshold up to its last 1.
THINWIRE_KERNEL void bernoulli_kernel(RandomStream stream, std::uint32_t first_word, std::uint32_t threshold,
                                      int draws, Writes<std::uint64_t> words, std::size_t count) {
  for (std::size_t k = thread_of_grid(); k < count; k += threads_of_grid()) {
    const std::uint32_t word = first_word + static_cast<std::uint32_t>(k);
    std::uint64_t open = ~std::uint64_t{0};
    std::uint64_t bits = 0;
    auto draw = [&](int t, std::uint32_t low, std::uint32_t high) {
      const std::uint64_t random = low | (static_cast<std::uint64_t>(high) << 32);
      // Digit 1: a random 0 is smaller and decides for 1; a random 1 stays open. Digit 0: the reverse.
      const bool digit = ((threshold >> (31 - t)) & 1) != 0;
      if (digit) bits |= open & ~random;
      open &= digit ? random : ~random;
    };
    for (int t = 0; t < draws && open != 0; t += 2) {
      const PhiloxCounter random = stream.block(word, static_cast<std::uint32_t>(t / 2));
      draw(t, random[0], random[1]);
      if (t + 1 < draws) draw(t + 1, random[2], random[3]);
    }
    words[k] = bits;
  }
}

}  // namespace

void stochastic_signs_on_cuda(Executor& executor, const RandomStream& stream, Span<const float> gradient,
                              Span<const float> residual, float half_inverse_norm, Span<std::uint64_t> bits) {
  run(executor, grid_for_words(bits.size()), signs_kernel, stream, gradient, residual, gradient.size(),
      half_inverse_norm, bits);
}

void bernoulli_bits_on_cuda(Executor& executor, const RandomStream& stream, std::uint32_t first_word,
                            std::uint32_t numerator, std::uint32_t denominator, Span<std::uint64_t> words) {
  CudaExecutor& own = executor_on_device(executor);
  const std::uint32_t threshold = bernoulli_threshold(numerator, denominator);
  launch(own.stream(), grid_for(words.size()), bernoulli_kernel, stream, first_word, threshold,
         kBernoulliDraws - std::countr_zero(threshold), words.data(), words.size());
}

}  // namespace thinwire
