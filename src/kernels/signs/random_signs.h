#pragma once
// Random bits: SSDM's compressor, a random sign whose expectation is the element over the vector's norm; and
// words whose bits are 1 with a rational probability, the choices of Marsit's operator, 64 at a time.

#include "core/philox.h"
#include "thinwire/executor.h"
#include "thinwire/span.h"

namespace thinwire {

/// With p = gradient + residual: bits[i] = (u_i < 1/2 + p_i * half_inverse_norm), u_i uniform on the
/// multiples of 2^-24 in [0, 1), so that norm * (+-1) has expectation p_i (to 2^-24 of the norm) when
/// half_inverse_norm = 1 / (2 norm) and |p_i| <= norm. Paper: Marsit, appendix A. residual: [n] or empty;
/// bits: sign_words(n) words.
///
/// Element e of word w uses word (e % 64) / 16 of stream.block(16 w + e % 16, 0).
void stochastic_signs(Executor& executor, const RandomStream& stream, Span<const float> gradient,
                      Span<const float> residual, float half_inverse_norm, Span<std::uint64_t> bits);

/// Longest binary expansion that is compared: a probability that does not end sooner is rounded down by less
/// than 2^-32.
inline constexpr int kBernoulliDraws = 32;

/// words[k] = 64 independent bits, each 1 with probability numerator/denominator (0 < numerator <
/// denominator), a pure function of (stream, first_word + k).
///
/// Bit l of draw t is the t-th binary digit of lane l's uniform random number; a lane is decided at the first
/// digit that differs from the probability's expansion, so each draw decides half of the lanes still open,
/// and a denominator that is a power of two needs log2(denominator) draws exactly. Draw t of word w is 64
/// bits of stream.block(w, t / 2): words 0 and 1 (low first) for even t, words 2 and 3 for odd t. Throws
/// std::invalid_argument for a probability outside (0, 1).
void bernoulli_bits(Executor& executor, const RandomStream& stream, std::uint32_t first_word,
                    std::uint32_t numerator, std::uint32_t denominator, Span<std::uint64_t> words);

/// The first kBernoulliDraws digits of numerator/denominator, most significant digit in bit 31.
constexpr std::uint32_t bernoulli_threshold(std::uint32_t numerator, std::uint32_t denominator) {
  return static_cast<std::uint32_t>((std::uint64_t{numerator} << 32) / denominator);
}

}  // namespace thinwire
