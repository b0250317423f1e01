// Random words on a CUDA device: a thread draws a word.

#include <bit>

#include "kernels/device/device.h"
#include "kernels/signs/bernoulli_bits.h"

namespace thinwire {
using namespace cuda;
namespace {

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

void bernoulli_bits_on_cuda(Executor& executor, const RandomStream& stream, std::uint32_t first_word,
                            std::uint32_t numerator, std::uint32_t denominator, Span<std::uint64_t> words) {
  CudaExecutor& own = executor_on_device(executor);
  const std::uint32_t threshold = bernoulli_threshold(numerator, denominator);
  launch(own.stream(), grid_for(words.size()), bernoulli_kernel, stream, first_word, threshold,
         kBernoulliDraws - std::countr_zero(threshold), words.data(), words.size());
}

}  // namespace thinwire
