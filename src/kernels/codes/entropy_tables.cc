#include "kernels/codes/entropy_tables.h"

#include <algorithm>
#include <memory>

namespace thinwire {
namespace {

/// Largest sums of classes: each is about 2^(1/3) times the one before. The last class has all that is
/// larger.
constexpr std::array<std::uint32_t, kLevelClasses> kMostSums = {
    0,  1,   2,   3,   4,   5,   7,   9,   12,  15,  19,  24,   31,   39,   49,   63,
    79, 101, 127, 160, 202, 255, 322, 406, 511, 645, 812, 1023, 1290, 1625, 2047, ~0u};
constexpr std::uint32_t kLastMostSum = 3200;  // what the last class's mean is computed with

/// The integer part of the square root.
std::uint64_t root_of(std::uint64_t value) {
  std::uint64_t root = 0;
  for (std::uint64_t bit = std::uint64_t{1} << 31; bit != 0; bit /= 2) {
    const std::uint64_t next = root | bit;
    if (next * next <= value) root = next;
  }
  return root;
}

/// Twice the mean magnitude of the class's levels, times kLevelBlock.
std::uint64_t doubled_sum(std::size_t number) {
  const std::uint32_t most = number + 1 == kLevelClasses ? kLastMostSum : kMostSums[number];
  return std::uint64_t{kMostSums[number - 1]} + 1 + most;
}

constexpr std::uint32_t kRatioBits = 24;

/// Of a two-sided geometric distribution with mean magnitude m: how much likelier a magnitude is than the
/// next larger one, inverted: (sqrt(1 + m^2) - 1) / m, in units of 2^-24.
std::uint64_t ratio_of(std::uint64_t doubled) {
  constexpr std::uint64_t kOne = 2 * kLevelBlock;  // m = doubled / kOne
  const std::uint64_t root = root_of((kOne * kOne + doubled * doubled) << 32);
  return ((root - (kOne << 16)) << (kRatioBits - 16)) / doubled;
}

using Frequencies = std::array<std::uint32_t, kSymbols>;

/// Symbols that a block of the class can have get at least 1.
Frequencies frequencies_of(std::size_t number, std::uint32_t limit) {
  const std::uint64_t ratio = ratio_of(doubled_sum(number));
  std::array<std::uint64_t, kSymbols> weights{};
  std::uint64_t weight = std::uint64_t{1} << 38;
  for (std::uint32_t magnitude = 0; magnitude <= limit; ++magnitude) {
    if (magnitude != 0) weights[2 * magnitude - 1] = weight;
    weights[2 * magnitude] = weight;
    weight = weight * ratio >> kRatioBits;
  }
  const bool escapes = kMostSums[number] > limit;
  if (escapes) weights[2 * limit + 1] = (2 * weight << kRatioBits) / ((1u << kRatioBits) - ratio);
  std::uint64_t total = 0;
  for (const std::uint64_t one : weights) total += one;
  Frequencies frequencies{};
  std::uint32_t sum = 0;
  for (std::size_t symbol = 0; symbol < 2 * limit + 1 + (escapes ? 1 : 0); ++symbol) {
    const auto share = static_cast<std::uint32_t>(weights[symbol] / (total >> kProbabilityBits));
    frequencies[symbol] = std::max(1u, share);
    sum += frequencies[symbol];
  }
  for (; sum != kProbabilities; sum += sum < kProbabilities ? 1 : -1u) {
    *std::ranges::max_element(frequencies) += sum < kProbabilities ? 1 : -1u;
  }
  return frequencies;
}

void fill_class(std::size_t number, LevelClass& one) {
  one.most_sum = kMostSums[number];
  if (number == 0) return;
  const auto wide = static_cast<std::uint32_t>(4 + 3 * doubled_sum(number) / kLevelBlock);
  one.limit = std::min({kMostLimit, wide, one.most_sum});
  const Frequencies frequencies = frequencies_of(number, one.limit);
  std::uint32_t start = 0;
  for (std::uint32_t symbol = 0; symbol < kSymbols; ++symbol) {
    const std::uint32_t frequency = frequencies[symbol];
    if (frequency == 0) continue;
    one.codes[symbol] = start | frequency << 16;
    const std::int32_t level = symbol == 2 * one.limit + 1 ? kEscape : level_of(symbol);
    for (std::uint32_t offset = 0; offset < frequency; ++offset) {
      one.entries[start + offset] = frequency | offset << 12 | static_cast<std::uint32_t>(level) << 24;
    }
    start += frequency;
  }
}

}  // namespace

const LevelClasses& level_classes() {
  static const std::unique_ptr<const LevelClasses> all = [] {
    auto made = std::make_unique<LevelClasses>();
    for (std::size_t number = 0; number < kLevelClasses; ++number) fill_class(number, (*made)[number]);
    return made;
  }();
  return *all;
}

std::size_t class_of_sum(std::uint32_t sum) {
  return static_cast<std::size_t>(std::ranges::lower_bound(kMostSums, sum) - kMostSums.begin());
}

}  // namespace thinwire
