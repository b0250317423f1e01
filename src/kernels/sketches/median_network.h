#pragma once
// Compare-exchanges that bring the middle of some values into place, the same ones for every kernel: so
// medians are the same, down to the sign of a zero.

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <utility>

namespace thinwire {

struct MedianNetwork {
  // Batcher's sort of 31 values takes 186 of them.
  std::array<std::pair<std::uint8_t, std::uint8_t>, 192> exchanges{};
  std::size_t size = 0;
};

/// Of n values, 2 to 31: Batcher's merge exchange for n values (Knuth, The Art of Computer Programming,
/// volume 3, algorithm 5.2.2M), less what the middle does not depend on.
constexpr MedianNetwork median_network(std::size_t n) {
  std::array<std::pair<std::uint8_t, std::uint8_t>, 192> all{};
  std::size_t count = 0;
  const std::size_t top = std::bit_ceil(n) / 2;
  for (std::size_t p = top; p > 0; p /= 2) {
    std::size_t q = top;
    std::size_t r = 0;
    for (std::size_t d = p;; d = q - p, q /= 2, r = p) {
      for (std::size_t i = 0; i + d < n; ++i) {
        if ((i & p) == r) {
          all[count++] = {static_cast<std::uint8_t>(i), static_cast<std::uint8_t>(i + d)};
        }
      }
      if (q == p) break;
    }
  }
  std::uint64_t needed = std::uint64_t{1} << (n / 2);
  if (n % 2 == 0) needed |= std::uint64_t{1} << (n / 2 - 1);
  MedianNetwork network;
  for (std::size_t e = count; e-- > 0;) {
    const std::uint64_t both = std::uint64_t{1} << all[e].first | std::uint64_t{1} << all[e].second;
    if ((needed & both) == 0) continue;
    needed |= both;
    network.exchanges[network.size++] = all[e];
  }
  std::reverse(network.exchanges.begin(),
               network.exchanges.begin() + static_cast<std::ptrdiff_t>(network.size));
  return network;
}

}  // namespace thinwire
