#include "kernels/row_merge.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <vector>

#include "kernels/bitmap.h"
#include "kernels/test_targets.h"
#include "kernels/test_vectors.h"

namespace thinwire {
namespace {

TEST(Bitmap, ListsRanksAndCountsAgreeWithALoop) {
  for_each_target([&](const std::string& target) {
    const auto executor = make_cpu_executor(3);
    for (const std::size_t places : kTestSizes) {
      for (const std::uint32_t every : {1u, 3u, 200u}) {
        std::vector<std::uint32_t> wanted;
        for (std::uint32_t i = 0; i < places; ++i) {
          if (i * 7919 % every == 0) wanted.push_back(i);
        }
        std::vector<std::uint64_t> bits(bitmap_words(places), 0);
        std::vector<std::uint32_t> shuffled = wanted;
        std::shuffle(shuffled.begin(), shuffled.end(), std::mt19937(1));
        if (!shuffled.empty()) shuffled.push_back(shuffled.front());  // repeated
        set_bits(*executor, shuffled, bits);
        std::vector<std::uint32_t> before(bits.size());
        ASSERT_EQ(count_bits_before(*executor, bits, before), wanted.size()) << target;
        std::vector<std::uint32_t> listed(wanted.size());
        list_bits(*executor, bits, before, listed);
        ASSERT_EQ(listed, wanted) << target;
        for (std::size_t k = 0; k < wanted.size(); ++k) ASSERT_EQ(rank_of(bits, before, wanted[k]), k);
      }
    }
  });
}

struct Rows {
  std::vector<std::uint32_t> indices;
  std::vector<float> values;
};

/// Rows with distinct, ascending indices below 4 * count and integer values.
Rows random_rows(std::size_t count, std::size_t width, std::uint32_t seed) {
  std::mt19937 random(seed);
  Rows rows;
  std::uint32_t index = 0;
  for (std::size_t k = 0; k < count; ++k) {
    index += static_cast<std::uint32_t>(1 + random() % 3);
    rows.indices.push_back(index);
    for (std::size_t i = 0; i < width; ++i) rows.values.push_back(static_cast<float>(random() % 100) - 50.0f);
  }
  return rows;
}

using Table = std::map<std::uint32_t, std::vector<float>>;

void add_to(Table& table, const Rows& rows, std::size_t width) {
  for (std::size_t k = 0; k < rows.indices.size(); ++k) {
    auto& row = table.try_emplace(rows.indices[k], width, 0.0f).first->second;
    for (std::size_t i = 0; i < width; ++i) row[i] += rows.values[k * width + i];
  }
}

Table table_of(const Rows& rows, std::size_t width) {
  Table table;
  add_to(table, rows, width);
  return table;
}

TEST(RowMerge, BothWaysAgreeWithATable) {
  for_each_target([&](const std::string& target) {
    for (const std::size_t width : {1u, 2u, 15u, 64u, 100u}) {
      for (const auto& [first_count, second_count] :
           {std::pair{0, 0}, {0, 5}, {5, 0}, {1, 1}, {100, 3}, {3, 100}, {1000, 1000}}) {
        const Rows first = random_rows(static_cast<std::size_t>(first_count), width, 1);
        const Rows second = random_rows(static_cast<std::size_t>(second_count), width, 2);
        Table wanted = table_of(first, width);
        add_to(wanted, second, width);

        const auto executor = make_cpu_executor(2);
        Rows merged;
        merged.indices.resize(first.indices.size() + second.indices.size());
        merged.values.resize(merged.indices.size() * width);
        const std::size_t count = merge_sorted_rows(*executor, first.indices, first.values, second.indices,
                                                    second.values, width, merged.indices, merged.values);
        merged.indices.resize(count);
        merged.values.resize(count * width);
        ASSERT_TRUE(std::is_sorted(merged.indices.begin(), merged.indices.end()));
        ASSERT_EQ(count, wanted.size()) << target;
        ASSERT_EQ(table_of(merged, width), wanted) << target << " width " << width;

        std::vector<std::uint64_t> bits(bitmap_words(4 * 1000 + 1), 0);
        std::vector<std::uint32_t> before(bits.size());
        set_bits(*executor, first.indices, bits);
        set_bits(*executor, second.indices, bits);
        ASSERT_EQ(count_bits_before(*executor, bits, before), wanted.size());
        Rows ranked;
        ranked.indices.resize(wanted.size());
        ranked.values.assign(wanted.size() * width, 0.0f);
        list_bits(*executor, bits, before, ranked.indices);
        accumulate_rows(*executor, first.indices, first.values, width, bits, before, true, ranked.values);
        accumulate_rows(*executor, second.indices, second.values, width, bits, before, false, ranked.values);
        ASSERT_EQ(table_of(ranked, width), wanted) << target << " width " << width;
      }
    }
  });
}

TEST(RowMerge, ScatterAndGatherAreInverse) {
  const auto executor = make_cpu_executor(2);
  for (const std::size_t width : {1u, 7u}) {
    const Rows rows = random_rows(20'000, width, 3);
    std::vector<float> table(60'001 * width, 0.0f);
    scatter_rows(*executor, rows.indices, rows.values, width, table);
    std::vector<float> values(rows.values.size());
    gather_rows(*executor, table, rows.indices, width, values);
    EXPECT_EQ(values, rows.values);
    EXPECT_EQ(std::count_if(table.begin(), table.end(), [](float x) { return x != 0; }),
              std::count_if(values.begin(), values.end(), [](float x) { return x != 0; }));
  }
}

}  // namespace
}  // namespace thinwire
