#pragma once
// The tables of entropy_code.h: probabilities of levels in each class, in units of 1/2048. They are made of
// integers alone, so that all machines have the same.

#include <array>
#include <cstddef>
#include <cstdint>

namespace thinwire {

inline constexpr std::size_t kLevelBlock = 128;
inline constexpr std::size_t kLevelClasses = 32;
inline constexpr std::uint32_t kProbabilityBits = 11;
inline constexpr std::uint32_t kProbabilities = 1u << kProbabilityBits;
/// Magnitudes with a probability of their own; larger ones are escapes.
inline constexpr std::uint32_t kMostLimit = 31;
inline constexpr std::size_t kSymbols = 2 * kMostLimit + 2;
/// States lie in [kLeastState, kLeastState * 2^16).
inline constexpr std::uint32_t kLeastState = 1u << 15;
/// The level of an entry that stands for an escape.
inline constexpr std::int32_t kEscape = 127;

struct LevelClass {
  std::uint32_t most_sum;  ///< Of magnitudes in a block of this class.
  std::uint32_t limit;     ///< Larger magnitudes are escapes.
  /// By symbol: the probabilities of the symbols before it, and its own << 16. Symbols stand for the levels
  /// 0, -1, 1, -2, 2, ..., limit, and the one behind them for an escape.
  std::array<std::uint32_t, kSymbols> codes;
  /// By the state's lowest 11 bits: the symbol's probability | what lies between its start and these bits
  /// << 12 | its level << 24.
  std::array<std::uint32_t, kProbabilities> entries;
};

/// Class 0 is of blocks of zeros, and has no table.
using LevelClasses = std::array<LevelClass, kLevelClasses>;
const LevelClasses& level_classes();

/// Of a block whose magnitudes have this sum.
std::size_t class_of_sum(std::uint32_t sum);

inline std::uint32_t symbol_of(std::int32_t level) {
  const auto doubled = static_cast<std::uint32_t>(level) << 1;
  return level < 0 ? ~doubled : doubled;
}
inline std::int32_t level_of(std::uint32_t symbol) {
  const auto half = static_cast<std::int32_t>(symbol >> 1);
  return (symbol & 1) != 0 ? -half - 1 : half;
}

}  // namespace thinwire
