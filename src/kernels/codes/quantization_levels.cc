#include "kernels/codes/quantization_levels.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>

namespace thinwire {
namespace {

[[noreturn]] void refuse_bits(std::size_t bits) {
  throw std::invalid_argument(std::to_string(bits) +
                              " bits per element: a sign and at least one level take 2 bits, and a code has "
                              "at most 8; give bits from 2 to 8");
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
  for (std::size_t j = 0; j < values.size(); ++j) {
    const bool right = j == 0 ? values[0] >= 0 : values[j] > values[j - 1];
    if (!right || !(values[j] <= 1) || (j + 1 == values.size() && values[j] != 1)) {
      throw std::invalid_argument("level " + std::to_string(j) + " is " + std::to_string(values[j]) +
                                  ": levels ascend from 0 or more to 1");
    }
    levels.values[j] = values[j];
    if (j != 0) levels.slopes[j - 1] = std::min(65536.0f / (values[j] - values[j - 1]), 0x1p126f);
  }
  if (!levels.has_zero()) levels.lowest_slope = std::min(32768.0f / values[0], 0x1p126f);
  // 0 and 1 are as far apart as two levels can be.
  levels.equal_steps = values.size() == 2 && levels.has_zero();
  return levels;
}

}  // namespace thinwire
