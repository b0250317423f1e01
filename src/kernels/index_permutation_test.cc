#include "kernels/index_permutation.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <vector>

#include "core/partition.h"
#include "kernels/hash_partition.h"
#include "kernels/test_targets.h"

namespace thinwire {
namespace {

RandomStream stream_of(std::uint64_t seed) {
  return random_stream(seed, 0, 0, RandomPurpose::ownership);
}

/// The definition: rounds of xor, multiplication and xorshift on whole blocks, again while the result is
/// outside.
std::uint32_t walk(const IndexPermutation& p, std::uint32_t index) {
  std::uint32_t x = index >> p.block_bits;
  if (p.identity || x >= p.blocks) return index;
  do {
    for (std::size_t r = 0; r < IndexPermutation::kRounds; ++r) {
      x = ((x ^ p.keys[r]) * p.multipliers[r]) & p.mask;
      x ^= x >> p.shift;
    }
  } while (x >= p.blocks);
  return (x << p.block_bits) | (index & ((1u << p.block_bits) - 1));
}

TEST(IndexPermutation, IsABijectionThatEveryTargetComputesAlike) {
  for_each_target([&](const std::string& target) {
    const auto executor = make_cpu_executor(2);
    for (const std::size_t size : {2u, 3u, 4u, 5u, 31u, 1000u, 65'536u, 65'537u, 100'003u}) {
      for (const std::uint32_t block_bits : {0u, 1u, 4u}) {
        const auto permutation = IndexPermutation::make(size, stream_of(size), block_bits);
        std::vector<std::uint32_t> indices(size);
        std::iota(indices.begin(), indices.end(), 0u);
        std::vector<std::uint32_t> places(size), back(size);
        permute(*executor, permutation, indices, places);
        for (std::size_t i = 0; i < size; ++i) {
          ASSERT_EQ(places[i], walk(permutation, indices[i])) << target;
        }
        unpermute(*executor, permutation, 0, places, back);
        ASSERT_EQ(back, indices) << target;
        permute(*executor, permutation, back, back);
        ASSERT_EQ(back, places) << target << ": in place";
        std::sort(places.begin(), places.end());
        ASSERT_EQ(places, indices) << target;
      }
    }
  });
}

TEST(IndexPermutation, LargeSizesRoundTrip) {
  const auto executor = make_cpu_executor(1);
  for (const std::size_t size : {std::size_t{1} << 31, (std::size_t{1} << 31) + 1, std::size_t{0xFFFFFFFF}}) {
    const auto permutation = IndexPermutation::make(size, stream_of(9));
    std::vector<std::uint32_t> indices = {0, 1, 2, static_cast<std::uint32_t>(size / 2),
                                          static_cast<std::uint32_t>(size - 1)};
    std::vector<std::uint32_t> places(indices.size()), back(indices.size());
    permute(*executor, permutation, indices, places);
    unpermute(*executor, permutation, 0, places, back);
    EXPECT_EQ(back, indices);
    for (std::size_t k = 0; k < places.size(); ++k) {
      EXPECT_LT(places[k], size);
      EXPECT_EQ(permutation.place_of(indices[k]), places[k]);
      EXPECT_EQ(permutation.index_of(places[k]), indices[k]);
    }
  }
}

TEST(IndexPermutation, PlacesOfAPartAreCountedFromItsBeginning) {
  const auto executor = make_cpu_executor(1);
  const auto permutation = IndexPermutation::make(1000, stream_of(3));
  const std::vector<std::uint32_t> offsets = {0, 1, 99};
  std::vector<std::uint32_t> indices(3);
  unpermute(*executor, permutation, 900, offsets, indices);
  for (std::size_t k = 0; k < 3; ++k) EXPECT_EQ(permutation.place_of(indices[k]), 900 + offsets[k]);
  unpermute(*executor, IndexPermutation::none(1000), 900, offsets, indices);
  EXPECT_EQ(indices, (std::vector<std::uint32_t>{900, 901, 999}));
}

TEST(IndexPermutation, TablesOfNoneAndOneRow) {
  EXPECT_TRUE(IndexPermutation::make(0, stream_of(1)).identity);
  EXPECT_EQ(IndexPermutation::make(1, stream_of(1)).place_of(0), 0u);
}

TEST(FindOwners, IsThePartOfThePartition) {
  const auto executor = make_cpu_executor(2);
  for (const std::size_t size : {1u, 2u, 7u, 64u, 1000u, 0xFFFFFFFFu}) {
    for (const std::size_t owners : {1u, 2u, 3u, 7u, 16u, 1000u, 65'536u}) {
      std::vector<std::uint32_t> places;
      for (std::size_t owner = 0; owner < owners; owner += std::max<std::size_t>(1, owners / 50)) {
        const std::size_t begin = part_begin(size, owners, owner);
        const std::size_t end = part_begin(size, owners, owner + 1);
        if (begin == end) continue;
        for (const std::size_t place : {begin, (begin + end) / 2, end - 1})
          places.push_back(static_cast<std::uint32_t>(place));
      }
      std::vector<std::uint16_t> owner_of(places.size());
      std::vector<std::size_t> counts(owners);
      find_owners(*executor, places, size, owners, owner_of, counts);
      for (std::size_t k = 0; k < places.size(); ++k) {
        ASSERT_LE(part_begin(size, owners, owner_of[k]), places[k]);
        ASSERT_GT(part_begin(size, owners, std::size_t{owner_of[k]} + 1), places[k]);
      }
      ASSERT_EQ(std::accumulate(counts.begin(), counts.end(), std::size_t{0}), places.size());
    }
  }
}

/// Zen theorem 2 with its constant: the imbalance is within 1 + sqrt(2 W ln(W^2) / nnz), also for
/// patterns that an even cut would load on few owners. The bound holds with probability of about 1 - 1/W, so
/// it is given a quarter more.
TEST(IndexPermutation, BalancesEveryPattern) {
  const auto executor = make_cpu_executor(1);
  constexpr std::size_t kSize = 1'000'003;
  for (const std::size_t world : {8u, 16u, 128u}) {
    const auto wanted =
        static_cast<std::size_t>(400.0 * static_cast<double>(world) * std::log(static_cast<double>(world)));
    for (std::uint64_t seed = 1; seed <= 3; ++seed) {
      std::mt19937_64 random(seed);
      std::vector<std::vector<std::uint32_t>> patterns(5);
      for (std::size_t k = 0; k < wanted; ++k) {
        patterns[0].push_back(static_cast<std::uint32_t>(k));                     // contiguous
        patterns[1].push_back(static_cast<std::uint32_t>(k * (kSize / wanted)));  // strided
        patterns[2].push_back(static_cast<std::uint32_t>(k * 2 + 500'000));   // every other, from the middle
        patterns[3].push_back(static_cast<std::uint32_t>(random() % kSize));  // uniform
        const double u = static_cast<double>(random() >> 11) * 0x1p-53;
        patterns[4].push_back(static_cast<std::uint32_t>(std::pow(kSize, u)) - 1);  // power law
      }
      const auto permutation = IndexPermutation::make(kSize, stream_of(seed));
      for (auto& pattern : patterns) {
        for (auto& index : pattern) index = static_cast<std::uint32_t>(index % kSize);
        std::sort(pattern.begin(), pattern.end());
        pattern.erase(std::unique(pattern.begin(), pattern.end()), pattern.end());
        std::vector<std::uint32_t> places(pattern.size());
        std::vector<std::uint16_t> owner_of(pattern.size());
        std::vector<std::size_t> counts(world);
        permute(*executor, permutation, pattern, places);
        find_owners(*executor, places, kSize, world, owner_of, counts);
        const auto count = static_cast<double>(pattern.size());
        const auto ranks = static_cast<double>(world);
        const double imbalance =
            static_cast<double>(*std::max_element(counts.begin(), counts.end())) * ranks / count;
        const double bound = std::sqrt(2 * ranks * std::log(ranks * ranks) / count);
        EXPECT_LT(imbalance, 1 + 1.25 * bound) << world << " owners, pattern " << &pattern - patterns.data();
        if (pattern.size() >= wanted) {
          EXPECT_LT(imbalance, 1.1);
        }
      }
    }
  }
}

TEST(SplitByOwner, KeepsTheOrderInsideEachPart) {
  const auto executor = make_cpu_executor(1);
  const std::vector<std::uint16_t> owner_of = {2, 0, 2, 1, 0};
  const std::vector<std::uint32_t> indices = {3, 5, 8, 9, 11};
  for (const std::size_t width : {1u, 3u}) {
    std::vector<float> values(indices.size() * width);
    std::iota(values.begin(), values.end(), 0.0f);
    std::vector<std::vector<std::uint32_t>> parts = {
        std::vector<std::uint32_t>(2), std::vector<std::uint32_t>(1), std::vector<std::uint32_t>(2)};
    std::vector<std::vector<float>> part_values = {std::vector<float>(2 * width), std::vector<float>(width),
                                                   std::vector<float>(2 * width)};
    std::vector<RowCursor> cursors;
    for (std::size_t p = 0; p < 3; ++p) cursors.push_back({parts[p].data(), part_values[p].data()});
    split_by_owner(*executor, owner_of, indices, values, width, cursors);
    EXPECT_EQ(parts[0], (std::vector<std::uint32_t>{5, 11}));
    EXPECT_EQ(parts[1], (std::vector<std::uint32_t>{9}));
    EXPECT_EQ(parts[2], (std::vector<std::uint32_t>{3, 8}));
    EXPECT_EQ(part_values[2].front(), 0.0f);
    EXPECT_EQ(part_values[0].back(), static_cast<float>(5 * width - 1));
  }
}

}  // namespace
}  // namespace thinwire
