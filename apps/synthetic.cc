#include "apps/synthetic.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/philox.h"

namespace thinwire::apps {
namespace {

double uniform(std::uint32_t word) {
  return (static_cast<double>(word) + 0.5) * 0x1p-32;
}

/// Two normal numbers per pair of words (Box and Muller).
void fill_normal(const RandomStream& stream, std::uint64_t first, Span<float> values) {
  for (std::size_t i = 0; i < values.size(); i += 4) {
    const std::uint64_t index = (first + i) / 4;
    const auto words =
        stream.block(static_cast<std::uint32_t>(index), static_cast<std::uint32_t>(index >> 32));
    for (std::size_t pair = 0; pair < 2; ++pair) {
      const auto radius = static_cast<float>(std::sqrt(-2 * std::log(uniform(words[2 * pair]))));
      const float angle = static_cast<float>(uniform(words[2 * pair + 1])) * 2 * std::numbers::pi_v<float>;
      if (i + 2 * pair < values.size()) values[i + 2 * pair] = radius * std::cos(angle);
      if (i + 2 * pair + 1 < values.size()) values[i + 2 * pair + 1] = radius * std::sin(angle);
    }
  }
}

/// A rank in [0, count) with probability about (rank + 1)^-skew, by inverting the continuous distribution.
std::uint64_t skewed_rank(double u, double skew, std::uint64_t count) {
  const auto n = static_cast<double>(count);
  const double value = skew == 1 ? std::exp(u * std::log(n + 1)) - 1
                                 : std::pow(1 + u * (std::pow(n + 1, 1 - skew) - 1), 1 / (1 - skew)) - 1;
  return std::min(count - 1, static_cast<std::uint64_t>(std::max(0.0, value)));
}

/// A fixed permutation of the rows, so that hot rows do not lie side by side: multiplication by a number that
/// has no factor in common with their count.
std::uint64_t scatter_step(std::uint64_t rows) {
  std::uint64_t step = static_cast<std::uint64_t>(static_cast<double>(rows) * 0.6180339887) | 1;
  while (std::gcd(step, rows) != 1) step += 2;
  return step;
}

}  // namespace

void fill_synthetic(const SyntheticGradient& shape, int rank, Span<float> gradient) {
  if (!(shape.density > 0 && shape.density <= 1)) {
    throw std::invalid_argument("density " + std::to_string(shape.density) +
                                " must be above 0 and at most 1");
  }
  if (!(shape.zipf >= 0 && shape.zipf <= 100)) {
    throw std::invalid_argument("zipf " + std::to_string(shape.zipf) + " must be from 0 to 100");
  }
  if (shape.row_width == 0 || (!gradient.empty() && shape.row_width > gradient.size())) {
    throw std::invalid_argument("row width " + std::to_string(shape.row_width) + " must be from 1 to the " +
                                std::to_string(gradient.size()) + " elements of the gradient");
  }
  const RandomStream values =
      random_stream(shape.seed, 0, 0, RandomPurpose::bench, static_cast<std::uint32_t>(rank), 0);
  if (gradient.empty()) return;
  if (shape.density == 1) {
    fill_normal(values, 0, gradient);
    return;
  }
  std::fill(gradient.begin(), gradient.end(), 0.0f);
  const std::uint64_t rows = (gradient.size() + shape.row_width - 1) / shape.row_width;
  const auto wanted =
      std::max<std::uint64_t>(1, static_cast<std::uint64_t>(static_cast<double>(rows) * shape.density));
  const RandomStream choice =
      random_stream(shape.seed, 0, 0, RandomPurpose::bench, static_cast<std::uint32_t>(rank), 1);
  const std::uint64_t step = scatter_step(rows);
  std::vector<bool> taken(rows, false);
  std::uint64_t chosen = 0;
  // A skewed draw that hits a taken row takes the next free one in rank order, so the density is exact.
  for (std::uint32_t draw = 0; chosen < wanted; ++draw) {
    std::uint64_t at = skewed_rank(uniform(choice.block(draw, 0)[0]), shape.zipf, rows);
    while (taken[at]) at = (at + 1) % rows;
    taken[at] = true;
    ++chosen;
    const std::uint64_t row = at * step % rows;  // both below 2^32
    const std::uint64_t begin = row * shape.row_width;
    const std::uint64_t count = std::min<std::uint64_t>(shape.row_width, gradient.size() - begin);
    fill_normal(values, begin * 4, gradient.subspan(begin, count));
  }
}

}  // namespace thinwire::apps
