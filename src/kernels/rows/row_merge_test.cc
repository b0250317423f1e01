#include "kernels/rows/row_access.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <tuple>
#include <vector>

#include "kernels/rows/bitmap.h"
#include "kernels/test_executors.h"
#include "kernels/test_vectors.h"

namespace thinwire::row_merge_test {
namespace {

TEST(Bitmap, ListsRanksAndCountsAgreeWithALoop) {
  for_each_executor([&](Executor& executor, const std::string& name) {
    for (const std::size_t places : kTestSizes) {
      for (const std::uint32_t every : {1u, 3u, 200u}) {
        std::vector<std::uint32_t> wanted;
        std::vector<std::uint64_t> wanted_bits(bitmap_words(places), 0);
        for (std::uint32_t i = 0; i < places; ++i) {
          if (i * 7919 % every != 0) continue;
          wanted.push_back(i);
          wanted_bits[i / 64] |= std::uint64_t{1} << (i % 64);
        }
        std::vector<std::uint32_t> shuffled = wanted;
        std::shuffle(shuffled.begin(), shuffled.end(), std::mt19937(1));
        if (!shuffled.empty()) shuffled.push_back(shuffled.front());  // repeated
        Placed bits(executor, std::vector<std::uint64_t>(wanted_bits.size(), 0));
        set_bits(executor, Placed(executor, shuffled), bits);
        ASSERT_EQ(bits.read(), wanted_bits) << name;
        Placed before(executor, std::vector<std::uint32_t>(wanted_bits.size()));
        ASSERT_EQ(count_bits_before(executor, bits, before), wanted.size()) << name;
        Placed listed(executor, std::vector<std::uint32_t>(wanted.size()));
        list_bits(executor, bits, before, listed);
        ASSERT_EQ(listed.read(), wanted) << name;
        const auto counts = before.read();
        for (std::size_t k = 0; k < wanted.size(); ++k) ASSERT_EQ(rank_of(wanted_bits, counts, wanted[k]), k);

        Placed ranks(executor, std::vector<std::uint32_t>(shuffled.size()));
        find_ranks(executor, bits, before, Placed(executor, shuffled), ranks);
        const auto found = ranks.read();
        for (std::size_t k = 0; k < found.size(); ++k) ASSERT_EQ(wanted[found[k]], shuffled[k]) << name;

        // Everything but one operand in host memory.
        std::vector<std::uint64_t> host_bits(wanted_bits.size(), 0);
        set_bits(executor, Placed(executor, shuffled), host_bits);
        ASSERT_EQ(host_bits, wanted_bits) << name;
        std::vector<std::uint32_t> host_before(wanted_bits.size()), host_listed(wanted.size());
        ASSERT_EQ(count_bits_before(executor, bits, host_before), wanted.size()) << name;
        ASSERT_EQ(host_before, counts) << name;
        list_bits(executor, bits, host_before, host_listed);
        ASSERT_EQ(host_listed, wanted) << name;
        clear_bitmap(executor, bits);
        ASSERT_EQ(bits.read(), std::vector<std::uint64_t>(wanted_bits.size(), 0)) << name;
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

/// Rows that a kernel wrote to memory of the executor or, every other time, of the host.
class Output {
 public:
  Output(Executor& executor, std::size_t rows, std::size_t width, bool on_host, float value = 0)
      : on_host_(on_host),
        host_{std::vector<std::uint32_t>(rows), std::vector<float>(rows * width, value)},
        indices_(executor, host_.indices),
        values_(executor, host_.values) {}
  Span<std::uint32_t> indices() { return on_host_ ? Span<std::uint32_t>(host_.indices) : indices_.span(); }
  Span<float> values() { return on_host_ ? Span<float>(host_.values) : values_.span(); }
  Rows read(std::size_t rows, std::size_t width) {
    Rows result = on_host_ ? host_ : Rows{indices_.read(), values_.read()};
    result.indices.resize(rows);
    result.values.resize(rows * width);
    return result;
  }

 private:
  bool on_host_;
  Rows host_;
  Placed<std::uint32_t> indices_;
  Placed<float> values_;
};

TEST(RowMerge, BothWaysAgreeWithATable) {
  for_each_executor([&](Executor& executor, const std::string& name) {
    bool on_host = false;
    for (const std::size_t width : {1u, 2u, 15u, 64u, 100u}) {
      for (const auto& [first_count, second_count] :
           {std::pair{0, 0}, {0, 5}, {5, 0}, {1, 1}, {100, 3}, {3, 100}, {1000, 1000}}) {
        if (executor.memory() == Memory::cuda && width == 64 && first_count == 1000) continue;
        on_host = !on_host;
        const Rows first = random_rows(static_cast<std::size_t>(first_count), width, 1);
        const Rows second = random_rows(static_cast<std::size_t>(second_count), width, 2);
        Table wanted = table_of(first, width);
        add_to(wanted, second, width);
        Placed first_indices(executor, first.indices);
        Placed first_values(executor, first.values);
        Placed second_indices(executor, second.indices);
        Placed second_values(executor, second.values);

        Output merged(executor, first.indices.size() + second.indices.size(), width, on_host);
        const std::size_t count = merge_sorted_rows(executor, first_indices, first_values, second_indices,
                                                    second_values, width, merged.indices(), merged.values());
        const Rows rows = merged.read(count, width);
        ASSERT_TRUE(std::is_sorted(rows.indices.begin(), rows.indices.end()));
        ASSERT_EQ(count, wanted.size()) << name;
        ASSERT_EQ(table_of(rows, width), wanted) << name << " width " << width;

        Placed bits(executor, std::vector<std::uint64_t>(bitmap_words(4 * 1000 + 1), 0));
        Placed before(executor, std::vector<std::uint32_t>(bitmap_words(4 * 1000 + 1)));
        set_bits(executor, first_indices, bits);
        set_bits(executor, second_indices, bits);
        ASSERT_EQ(count_bits_before(executor, bits, before), wanted.size());
        Output ranked(executor, wanted.size(), width, on_host);
        list_bits(executor, bits, before, ranked.indices());
        accumulate_rows(executor, first_indices, first_values, width, bits, before, true, ranked.values());
        accumulate_rows(executor, second_indices, second_values, width, bits, before, false, ranked.values());
        ASSERT_EQ(table_of(ranked.read(wanted.size(), width), width), wanted) << name << " width " << width;
      }
    }
  });
}

TEST(RowMerge, RepeatedRowsAreAddedInOrder) {
  // Values whose sum depends on the order.
  for_each_executor([&](Executor& executor, const std::string& name) {
    for (const std::size_t width : {1u, 3u}) {
      constexpr std::size_t kRows = 3000;
      std::mt19937 random(8);
      const auto values = test_values(kRows * width, 9);
      std::vector<std::uint32_t> positions(kRows);
      std::vector<float> wanted(100 * width, 0.5f);
      for (std::size_t k = 0; k < kRows; ++k) {
        const std::size_t slot = random() % 100;
        positions[k] = static_cast<std::uint32_t>(7 * slot);
        for (std::size_t i = 0; i < width; ++i) wanted[slot * width + i] += values[k * width + i];
      }
      Placed bits(executor, std::vector<std::uint64_t>(bitmap_words(700), 0));
      Placed before(executor, std::vector<std::uint32_t>(bitmap_words(700)));
      Placed placed(executor, positions);
      set_bits(executor, placed, bits);
      ASSERT_EQ(count_bits_before(executor, bits, before), 100u);
      Output sums(executor, 100, width, false, 0.5f);
      accumulate_rows(executor, placed, Placed(executor, values), width, bits, before, false, sums.values());
      ASSERT_EQ(sums.read(100, width).values, wanted) << name;
    }
  });
}

/// Every third row of a table whose last row may be short.
struct ShortTable {
  std::size_t width;
  std::size_t elements;
  std::vector<std::uint32_t> indices;
  std::vector<float> before, residual, values;

  ShortTable(std::size_t rows, std::size_t row_width, std::size_t missing)
      : width(row_width),
        elements(rows * row_width - missing),
        before(test_values(elements, 1)),
        residual(test_values(elements, 2)) {
    for (std::size_t row = (rows + 2) % 3; row < rows; row += 3)
      indices.push_back(static_cast<std::uint32_t>(row));
    values = test_values(indices.size() * width, 3);
  }

  /// body(element of the table, element of the values), for those that the table has.
  template <class Body>
  void for_each(Body body) const {
    for (std::size_t k = 0; k < indices.size(); ++k) {
      for (std::size_t i = 0; i < width && indices[k] * width + i < elements; ++i)
        body(indices[k] * width + i, k * width + i);
    }
  }
};

TEST(RowAccess, AgreesWithLoops) {
  for_each_executor([&](Executor& executor, const std::string& name) {
    for (const auto& [rows, width, missing] : {std::tuple{1u, 1u, 0u},
                                               {20'000u, 1u, 0u},
                                               {5u, 7u, 0u},
                                               {301u, 7u, 6u},
                                               {1u, 64u, 1u},
                                               {100u, 64u, 0u},
                                               {100u, 64u, 4u},
                                               {100u, 256u, 255u},
                                               {65u, 1000u, 3u}}) {
      const ShortTable t(rows, width, missing);
      const std::string where = name + ", width " + std::to_string(width);
      Placed indices(executor, t.indices);
      Placed values(executor, t.values);
      Placed residual(executor, t.residual);

      Placed table(executor, t.before);
      scatter_rows(executor, indices, values, width, table);
      auto wanted = t.before;
      t.for_each([&](std::size_t at, std::size_t k) { wanted[at] = t.values[k]; });
      ASSERT_EQ(table.read(), wanted) << where;

      subtract_rows(executor, t.indices, t.values, width, table);  // lists in host memory
      t.for_each([&](std::size_t at, std::size_t) { wanted[at] = 0; });
      ASSERT_EQ(table.read(), wanted) << where;

      fill_rows(executor, t.indices, width, 2.5f, table);
      t.for_each([&](std::size_t at, std::size_t) { wanted[at] = 2.5f; });
      ASSERT_EQ(table.read(), wanted) << where;

      Placed original(executor, t.before);
      Placed gathered(executor, std::vector<float>(t.values.size(), 7.0f));
      std::vector<float> on_host(t.values.size(), 7.0f);
      std::vector<float> wanted_values(t.values.size(), 0.0f);
      gather_rows(executor, original, {}, indices, width, gathered);
      gather_rows(executor, original, {}, t.indices, width, on_host);
      t.for_each([&](std::size_t at, std::size_t k) { wanted_values[k] = t.before[at]; });
      ASSERT_EQ(gathered.read(), wanted_values) << where;
      ASSERT_EQ(on_host, wanted_values) << where;

      gather_rows(executor, original, residual, t.indices, width, on_host);
      t.for_each([&](std::size_t at, std::size_t k) { wanted_values[k] = t.before[at] + t.residual[at]; });
      ASSERT_EQ(on_host, wanted_values) << where;
    }
  });
}

}  // namespace
}  // namespace thinwire::row_merge_test
