#pragma once
// SSDM's compressor: a random sign whose expectation is the element over the vector's norm.

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

}  // namespace thinwire
