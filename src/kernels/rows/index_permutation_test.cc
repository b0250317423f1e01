#include "kernels/rows/index_permutation.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <vector>

#include "core/partition.h"
#include "kernels/rows/hash_partition.h"
#include "kernels/test_executors.h"
#include "thinwire/workspace.h"

namespace thinwire::index_permutation_test {
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

TEST(IndexPermutation, IsABijectionThatEveryExecutorComputesAlike) {
  for_each_executor([&](Executor& executor, const std::string& name) {
    for (const std::size_t size : {2u, 3u, 4u, 5u, 31u, 1000u, 65'536u, 65'537u, 100'003u}) {
      for (const std::uint32_t block_bits : {0u, 1u, 4u}) {
        const auto permutation = IndexPermutation::make(size, stream_of(size), block_bits);
        std::vector<std::uint32_t> indices(size);
        std::iota(indices.begin(), indices.end(), 0u);
        Placed<std::uint32_t> placed_indices(executor, indices);
        Placed<std::uint32_t> placed(executor, std::vector<std::uint32_t>(size));
        permute(executor, permutation, placed_indices, placed);
        auto slots = placed.read();
        for (std::size_t i = 0; i < size; ++i) {
          ASSERT_EQ(slots[i], walk(permutation, indices[i])) << name;
        }
        unpermute(executor, permutation, 0, placed, placed);
        ASSERT_EQ(placed.read(), indices) << name << ": in place";
        permute(executor, permutation, placed, placed);
        ASSERT_EQ(placed.read(), slots) << name << ": in place";
        std::vector<std::uint32_t> on_host(size);
        unpermute(executor, permutation, 0, placed, on_host);
        ASSERT_EQ(on_host, indices) << name << ": into host memory";
        std::sort(slots.begin(), slots.end());
        ASSERT_EQ(slots, indices) << name;
      }
    }
  });
}

TEST(IndexPermutation, LargeSizesRoundTrip) {
  for_each_executor([&](Executor& executor, const std::string& name) {
    for (const std::size_t size :
         {std::size_t{1} << 31, (std::size_t{1} << 31) + 1, std::size_t{0xFFFFFFFF}}) {
      const auto permutation = IndexPermutation::make(size, stream_of(9));
      const std::vector<std::uint32_t> indices = {0, 1, 2, static_cast<std::uint32_t>(size / 2),
                                                  static_cast<std::uint32_t>(size - 1)};
      Placed<std::uint32_t> placed(executor, indices);
      permute(executor, permutation, placed, placed);
      const auto slots = placed.read();
      unpermute(executor, permutation, 0, placed, placed);
      EXPECT_EQ(placed.read(), indices) << name;
      for (std::size_t k = 0; k < slots.size(); ++k) {
        EXPECT_LT(slots[k], size);
        EXPECT_EQ(permutation.slot_of(indices[k]), slots[k]);
        EXPECT_EQ(permutation.index_of(slots[k]), indices[k]);
      }
    }
  });
}

TEST(IndexPermutation, PlacesOfAPartAreCountedFromItsBeginning) {
  for_each_executor([&](Executor& executor, const std::string& name) {
    const auto permutation = IndexPermutation::make(1000, stream_of(3));
    const std::vector<std::uint32_t> offsets = {0, 1, 99};
    Placed<std::uint32_t> placed(executor, offsets);
    unpermute(executor, permutation, 900, placed, placed);
    const auto indices = placed.read();
    for (std::size_t k = 0; k < 3; ++k) EXPECT_EQ(permutation.slot_of(indices[k]), 900 + offsets[k]) << name;
    Placed<std::uint32_t> straight(executor, offsets);
    unpermute(executor, IndexPermutation::none(1000), 900, straight, straight);
    EXPECT_EQ(straight.read(), (std::vector<std::uint32_t>{900, 901, 999})) << name;
  });
}

TEST(IndexPermutation, TellsWhetherAllPlacesAreInAPart) {
  for_each_executor([&](Executor& executor, const std::string& name) {
    constexpr std::uint32_t kFirst = 300;
    constexpr std::uint32_t kCount = 200;
    for (const bool identity : {false, true}) {
      const auto permutation =
          identity ? IndexPermutation::none(1000) : IndexPermutation::make(1000, stream_of(3));
      std::vector<std::uint32_t> wanted(kCount), indices(kCount);
      std::iota(wanted.begin(), wanted.end(), 0u);
      for (std::uint32_t k = 0; k < kCount; ++k) indices[k] = permutation.index_of(kFirst + k);
      Placed<std::uint32_t> slots(executor, std::vector<std::uint32_t>(kCount));
      // Indices in host memory, as those of frames are.
      EXPECT_TRUE(permute_into(executor, permutation, kFirst, kCount, indices, slots)) << name;
      EXPECT_EQ(slots.read(), wanted) << name;
      for (const std::uint32_t outside : {kFirst - 1, kFirst + kCount, 0u, 999u}) {
        indices[77] = permutation.index_of(outside);
        EXPECT_FALSE(permute_into(executor, permutation, kFirst, kCount, indices, slots)) << name;
      }
    }
    EXPECT_TRUE(permute_into(executor, IndexPermutation::none(5), 0, 0, {}, {})) << name;
  });
}

TEST(IndexPermutation, TablesOfNoneAndOneRow) {
  EXPECT_TRUE(IndexPermutation::make(0, stream_of(1)).identity);
  EXPECT_EQ(IndexPermutation::make(1, stream_of(1)).slot_of(0), 0u);
}

TEST(FindOwners, IsThePartOfThePartition) {
  for_each_executor([&](Executor& executor, const std::string& name) {
    for (const std::size_t size : {1u, 2u, 7u, 64u, 1000u, 0xFFFFFFFFu}) {
      for (const std::size_t owners : {1u, 2u, 3u, 7u, 16u, 1000u, 5000u, 65'536u}) {
        std::vector<std::uint32_t> slots;
        for (std::size_t owner = 0; owner < owners; owner += std::max<std::size_t>(1, owners / 50)) {
          const std::size_t begin = part_begin(size, owners, owner);
          const std::size_t end = part_begin(size, owners, owner + 1);
          if (begin == end) continue;
          for (const std::size_t slot : {begin, (begin + end) / 2, end - 1})
            slots.push_back(static_cast<std::uint32_t>(slot));
        }
        Placed<std::uint16_t> placed(executor, std::vector<std::uint16_t>(slots.size()));
        std::vector<std::size_t> counts(owners, 99);
        find_owners(executor, Placed(executor, slots), size, owners, placed, counts);
        const auto owner_of = placed.read();
        std::vector<std::size_t> wanted(owners);
        for (std::size_t k = 0; k < slots.size(); ++k) {
          ASSERT_LE(part_begin(size, owners, owner_of[k]), slots[k]) << name;
          ASSERT_GT(part_begin(size, owners, std::size_t{owner_of[k]} + 1), slots[k]) << name;
          ++wanted[owner_of[k]];
        }
        ASSERT_EQ(counts, wanted) << name;
      }
    }
  });
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
        std::vector<std::uint32_t> slots(pattern.size());
        std::vector<std::uint16_t> owner_of(pattern.size());
        std::vector<std::size_t> counts(world);
        permute(*executor, permutation, pattern, slots);
        find_owners(*executor, slots, kSize, world, owner_of, counts);
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
  for_each_executor([&](Executor& executor, const std::string& name) {
    for (const std::size_t count : {0u, 1u, 65u, 5000u}) {
      for (const std::size_t owners : {1u, 3u, 300u}) {
        for (const std::size_t width : {1u, 3u, 40u}) {
          if (count == 5000 && width > 3) continue;
          std::mt19937 random(4);
          std::vector<std::uint16_t> owner_of(count);
          std::vector<std::uint32_t> indices(count);
          std::vector<float> values(count * width);
          std::iota(values.begin(), values.end(), 0.0f);
          std::vector<std::vector<std::uint32_t>> wanted(owners);
          std::vector<std::vector<float>> wanted_values(owners);
          for (std::size_t k = 0; k < count; ++k) {
            // The last owner gets nothing.
            owner_of[k] = static_cast<std::uint16_t>(random() % std::max<std::size_t>(1, owners - 1));
            indices[k] = static_cast<std::uint32_t>(3 * k);
            wanted[owner_of[k]].push_back(indices[k]);
            for (std::size_t i = 0; i < width; ++i)
              wanted_values[owner_of[k]].push_back(values[k * width + i]);
          }
          std::vector<std::uint32_t> positions(count);
          std::iota(positions.begin(), positions.end(), 0u);
          std::ranges::stable_sort(positions, {}, [&](std::uint32_t k) { return owner_of[k]; });
          for (const bool by_positions : {false, true}) {
            // Outputs where frames lie.
            Workspace workspace(executor.shared_allocator());
            std::vector<RowCursor> begins(owners);
            for (std::size_t p = 0; p < owners; ++p) {
              begins[p] = {workspace.take<std::uint32_t>(wanted[p].size()).data(),
                           workspace.take<float>(wanted[p].size() * width).data()};
            }
            auto cursors = begins;
            if (by_positions) {
              deliver_rows(executor, Placed(executor, positions), Placed(executor, owner_of),
                           Placed(executor, indices), Placed(executor, values), width, cursors);
            } else {
              split_by_owner(executor, Placed(executor, owner_of), Placed(executor, indices),
                             Placed(executor, values), width, cursors);
            }
            for (std::size_t p = 0; p < owners; ++p) {
              const std::size_t rows = wanted[p].size();
              ASSERT_EQ(std::vector(begins[p].index, begins[p].index + rows), wanted[p]) << name;
              ASSERT_EQ(std::vector(begins[p].values, begins[p].values + rows * width), wanted_values[p])
                  << name;
              ASSERT_EQ(cursors[p].index, begins[p].index + rows) << name;
              ASSERT_EQ(cursors[p].values, begins[p].values + rows * width) << name;
            }
          }
        }
      }
    }
  });
}

}  // namespace
}  // namespace thinwire::index_permutation_test
