#pragma once
// Randomness as a pure function of where it is used: seed, step, bucket, rank or hop, element. Two ranks
// that must draw the same numbers do so without talking, a resumed run draws what the first would have
// drawn, and the CPU and the GPU agree.
//
// Philox4x32-10: J. Salmon, M. Moraes, R. Dror, D. Shaw, "Parallel random
// numbers: as easy as 1, 2, 3", SC 2011.

#include <array>
#include <cstdint>

namespace thinwire {

inline constexpr std::uint32_t kPhiloxMultiplier0 = 0xD2511F53;
inline constexpr std::uint32_t kPhiloxMultiplier1 = 0xCD9E8D57;
inline constexpr std::uint32_t kPhiloxWeyl0 = 0x9E3779B9;  // golden ratio
inline constexpr std::uint32_t kPhiloxWeyl1 = 0xBB67AE85;  // sqrt(3) - 1
inline constexpr int kPhiloxRounds = 10;

using PhiloxCounter = std::array<std::uint32_t, 4>;
using PhiloxKey = std::array<std::uint32_t, 2>;

constexpr PhiloxCounter philox4x32(PhiloxCounter counter, PhiloxKey key) {
  for (int round = 0; round < kPhiloxRounds; ++round) {
    const std::uint64_t product0 = std::uint64_t{kPhiloxMultiplier0} * counter[0];
    const std::uint64_t product1 = std::uint64_t{kPhiloxMultiplier1} * counter[2];
    counter = {static_cast<std::uint32_t>(product1 >> 32) ^ counter[1] ^ key[0],
               static_cast<std::uint32_t>(product1),
               static_cast<std::uint32_t>(product0 >> 32) ^ counter[3] ^ key[1],
               static_cast<std::uint32_t>(product0)};
    key[0] += kPhiloxWeyl0;
    key[1] += kPhiloxWeyl1;
  }
  return counter;
}

/// What a stream is used for; keeps streams of one step apart.
enum class RandomPurpose : std::uint32_t {
  merge = 1,
  stochastic_sign = 2,
  tie = 3,
  bench = 4,
  sample = 5,
  ownership = 6,
  sketch = 7,
  low_rank = 8,
  rounding = 9,
  fill = 10
};

/// A stream of random blocks; block(i, j) may be asked for in any order.
struct RandomStream {
  PhiloxKey key{};
  std::uint32_t rank = 0;
  std::uint32_t hop = 0;

  constexpr PhiloxCounter block(std::uint32_t i, std::uint32_t j) const {
    return philox4x32({i, j, rank, hop}, key);
  }
};

/// The stream of (seed, step, bucket, purpose), the part of `rank` and `hop`. Seed, step and bucket are
/// folded into the key by one Philox block, which leaves all 64 bits of (i, j) to the elements.
constexpr RandomStream random_stream(std::uint64_t seed, std::uint64_t step, std::uint32_t bucket,
                                     RandomPurpose purpose, std::uint32_t rank = 0, std::uint32_t hop = 0) {
  const PhiloxCounter mixed =
      philox4x32({static_cast<std::uint32_t>(step), static_cast<std::uint32_t>(step >> 32), bucket,
                  static_cast<std::uint32_t>(purpose)},
                 {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)});
  return {{mixed[0], mixed[1]}, rank, hop};
}

}  // namespace thinwire
