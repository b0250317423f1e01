#include "kernels/sketches/count_sketch.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>

#include "kernels/test_executors.h"
#include "kernels/test_vectors.h"

namespace thinwire::count_sketch_test {
namespace {

struct Cell {
  std::size_t column;
  float sign;
};

/// The definition of count_sketch.h, element by element.
Cell cell_of(const CountSketch& sketch, std::size_t row, std::size_t element) {
  const auto w = sketch.stream.block(static_cast<std::uint32_t>(element / sketch.run_length),
                                     static_cast<std::uint32_t>(row));
  __extension__ using Wide = unsigned __int128;
  const std::uint64_t x = w[0] | std::uint64_t{w[1]} << 32;
  const auto start = static_cast<std::uint64_t>((Wide{x} * sketch.columns) >> 64);
  const std::uint64_t signs = w[2] | std::uint64_t{w[3]} << 32;
  const std::size_t t = element % sketch.run_length;
  return {(start + t) % sketch.columns, ((signs >> t) & 1) != 0 ? -1.0f : 1.0f};
}

std::vector<std::size_t> listed_elements(const BlockList& list) {
  std::vector<std::size_t> elements;
  for (const std::uint32_t block : list.blocks) {
    for (std::size_t e = block * list.width; e < std::min((block + 1) * list.width, list.elements); ++e) {
      elements.push_back(e);
    }
  }
  return elements;
}

std::vector<float> scalar_insert(const CountSketch& sketch, const BlockList& list, BlockLayout layout,
                                 const std::vector<float>& values, const std::vector<float>& residual) {
  std::vector<float> table(sketch.cells(), 0.0f);
  std::size_t at = 0;
  for (const std::size_t e : listed_elements(list)) {
    const std::size_t place = layout == BlockLayout::packed ? at++ : e;
    const float p = residual.empty() ? values[place] : values[place] + residual[place];
    for (std::size_t row = 0; row < sketch.rows; ++row) {
      const Cell cell = cell_of(sketch, row, e);
      table[row * sketch.columns + cell.column] += cell.sign * p;
    }
  }
  return table;
}

float scalar_estimate(const CountSketch& sketch, const std::vector<float>& table, std::size_t element) {
  std::vector<float> estimates;
  for (std::size_t row = 0; row < sketch.rows; ++row) {
    const Cell cell = cell_of(sketch, row, element);
    estimates.push_back(cell.sign * table[row * sketch.columns + cell.column]);
  }
  std::sort(estimates.begin(), estimates.end());
  const std::size_t middle = sketch.rows / 2;
  return sketch.rows % 2 == 1 ? estimates[middle] : 0.5f * estimates[middle - 1] + 0.5f * estimates[middle];
}

RandomStream stream_of(std::uint64_t seed) {
  return random_stream(seed, 0, 0, RandomPurpose::sketch);
}

/// Every third block and the last.
std::vector<std::uint32_t> some_blocks(std::size_t elements, std::size_t width) {
  std::vector<std::uint32_t> blocks;
  const std::size_t count = (elements + width - 1) / width;
  for (std::size_t b = 0; b < count; ++b) {
    if (b % 3 == 1 || b + 1 == count) blocks.push_back(static_cast<std::uint32_t>(b));
  }
  return blocks;
}

std::vector<float> take_listed(const BlockList& list, const std::vector<float>& values) {
  std::vector<float> packed;
  for (const std::size_t e : listed_elements(list)) packed.push_back(values[e]);
  return packed;
}

/// Tables and estimates equal their definitions, to the bit. Lists of blocks lie in host memory, as they do
/// in systems; tables here and there.
void expect_definition(Executor& executor, const CountSketch& sketch, const BlockList& list) {
  const std::size_t elements = list.elements;
  ASSERT_EQ(list.listed(), listed_elements(list).size());
  const auto values = test_values(elements, 1);
  const auto residual = test_values(elements, 2);

  Placed table(executor, std::vector<float>(sketch.cells(), 0.0f));
  insert_blocks(executor, sketch, list, BlockLayout::in_bucket, Placed(executor, values),
                Placed(executor, residual), table);
  ASSERT_EQ(table.read(), scalar_insert(sketch, list, BlockLayout::in_bucket, values, residual));
  const auto packed = take_listed(list, values);
  std::vector<float> host_table(sketch.cells(), 0.0f);
  insert_blocks(executor, sketch, list, BlockLayout::packed, Placed(executor, packed), {}, host_table);
  ASSERT_EQ(host_table, scalar_insert(sketch, list, BlockLayout::packed, packed, {}));

  std::vector<float> expected(elements, 7.0f);
  for (const std::size_t e : listed_elements(list)) expected[e] = scalar_estimate(sketch, host_table, e);
  Placed estimates(executor, std::vector<float>(elements, 7.0f));
  query_blocks(executor, sketch, list, BlockLayout::in_bucket, host_table, estimates);
  ASSERT_EQ(estimates.read(), expected);
  std::vector<float> packed_estimates(list.listed());
  query_blocks(executor, sketch, list, BlockLayout::packed, Placed(executor, host_table), packed_estimates);
  ASSERT_EQ(packed_estimates, take_listed(list, expected));
}

TEST(CountSketch, InsertAndQueryAgreeWithTheirDefinition) {
  for_each_executor([&](Executor& executor, const std::string& name) {
    for (const std::size_t elements : {0u, 1u, 63u, 64u, 65u, 1000u, 20'003u}) {
      for (const std::size_t width : {1u, 3u, 16u, 64u, 100u, 256u, 5000u}) {
        for (const std::size_t columns : {1u, 5u, 64u, 77u, 129u, 1003u}) {
          const std::size_t rows = 1 + (elements + width + columns) % 4;
          const std::size_t run = std::size_t{16} << (width % 3);
          SCOPED_TRACE(testing::Message() << name << " n " << elements << " width " << width << " table "
                                          << rows << "x" << columns);
          const auto blocks = some_blocks(elements, width);
          expect_definition(executor, make_count_sketch(stream_of(elements + 1), rows, columns, run),
                            {blocks, width, elements});
        }
      }
    }
  });
}

TEST(CountSketch, InsertAddsToWhatTheTableHolds) {
  for_each_executor([&](Executor& executor, const std::string& name) {
    const auto values = test_values(5000, 1);
    const CountSketch sketch = make_count_sketch(stream_of(3), 3, 500, 64);
    const auto before = test_values(sketch.cells(), 2);
    auto expected = before;
    for (std::size_t e = 0; e < values.size(); ++e) {
      for (std::size_t row = 0; row < sketch.rows; ++row) {
        const Cell cell = cell_of(sketch, row, e);
        expected[row * sketch.columns + cell.column] += cell.sign * values[e];
      }
    }
    Placed table(executor, before);
    insert(executor, sketch, Placed(executor, values), {}, table);
    const auto sums = table.read();
    EXPECT_EQ(std::memcmp(sums.data(), expected.data(), sums.size() * sizeof(float)), 0) << name;
  });
}

TEST(CountSketch, LargeBucketsHaveTheBitsOfTheirDefinition) {
  const auto values = test_values(200'003, 1);
  const CountSketch sketch = make_count_sketch(stream_of(9), 5, 2001, 64);
  const std::uint32_t only_block = 0;
  const BlockList whole{{&only_block, 1}, values.size(), values.size()};
  const auto expected = scalar_insert(sketch, whole, BlockLayout::in_bucket, values, {});
  std::vector<float> estimates(values.size());
  for (std::size_t e = 0; e < values.size(); ++e) estimates[e] = scalar_estimate(sketch, expected, e);
  for_each_executor([&](Executor& executor, const std::string& name) {
    Placed table(executor, std::vector<float>(sketch.cells(), 0.0f));
    insert(executor, sketch, Placed(executor, values), {}, table);
    const auto sums = table.read();
    ASSERT_EQ(std::memcmp(sums.data(), expected.data(), sums.size() * sizeof(float)), 0) << name;
    Placed queried(executor, std::vector<float>(values.size()));
    query(executor, sketch, table, queried);
    ASSERT_EQ(queried.read(), estimates) << name;
  });
}

TEST(CountSketch, HashesOfRunsAreTheirDefinition) {
  for (const std::size_t columns : {std::size_t{64}, std::size_t{100'003}, std::size_t{0xffffffff}}) {
    const CountSketch sketch = make_count_sketch(stream_of(columns), 3, columns, 64);
    for (std::uint32_t run = 0; run < 100; ++run) {
      for (std::uint32_t row = 0; row < 3; ++row) {
        const SketchRun hashes = hash_run(sketch, run, row);
        for (const std::size_t t : {0u, 1u, 63u}) {
          const Cell cell = cell_of(sketch, row, run * std::size_t{64} + t);
          ASSERT_EQ((hashes.start + t) % columns, cell.column);
          ASSERT_EQ(((hashes.signs >> t) & 1) != 0, cell.sign < 0);
        }
      }
    }
  }
}

TEST(CountSketch, TheMedianOfEveryNumberOfRowsIsTheSortedMiddle) {
  constexpr std::size_t kElements = 300;
  const auto values = test_values(kElements, 3);
  for_each_executor([&](Executor& executor, const std::string& name) {
    for (std::size_t rows = 1; rows <= kMostSketchRows; ++rows) {
      const CountSketch sketch = make_count_sketch(stream_of(rows), rows, 90, 64);
      Placed table(executor, std::vector<float>(sketch.cells(), 0.0f));
      insert(executor, sketch, Placed(executor, values), {}, table);
      Placed estimates(executor, std::vector<float>(kElements));
      query(executor, sketch, table, estimates);
      const auto cells = table.read();
      const auto queried = estimates.read();
      for (std::size_t e = 0; e < kElements; ++e) {
        ASSERT_EQ(queried[e], scalar_estimate(sketch, cells, e)) << name << " rows " << rows;
      }
    }
  });
}

TEST(CountSketch, TheSketchOfASumIsTheSumOfSketches) {
  constexpr std::size_t kElements = 10'000;
  const auto executor = make_cpu_executor(1);
  const CountSketch sketch = make_count_sketch(stream_of(5), 3, 700, 64);
  std::mt19937 random(1);
  std::vector<float> sum(kElements, 0.0f);
  std::vector<float> added(sketch.cells(), 0.0f);
  for (int worker = 0; worker < 5; ++worker) {
    std::vector<float> values(kElements);
    for (auto& value : values) value = static_cast<float>(random() % 201) - 100.0f;
    for (std::size_t i = 0; i < kElements; ++i) sum[i] += values[i];
    std::vector<float> table(sketch.cells(), 0.0f);
    insert(*executor, sketch, values, {}, table);
    for (std::size_t i = 0; i < table.size(); ++i) added[i] += table[i];
  }
  std::vector<float> direct(sketch.cells(), 0.0f);
  insert(*executor, sketch, sum, {}, direct);
  EXPECT_EQ(added, direct);
}

TEST(CountSketch, WithoutCollisionsEstimatesAreExact) {
  const auto executor = make_cpu_executor(1);
  const auto values = test_values(64, 4);
  // One run never meets itself, whatever the table's size, also where it wraps around.
  for (const std::size_t columns : {64u, 65u, 1000u}) {
    for (std::uint64_t seed = 0; seed < 50; ++seed) {
      const CountSketch sketch = make_count_sketch(stream_of(seed), 1, columns, 64);
      std::vector<float> table(sketch.cells(), 0.0f);
      insert(*executor, sketch, values, {}, table);
      std::vector<float> estimates(values.size());
      query(*executor, sketch, table, estimates);
      ASSERT_EQ(estimates, values);
    }
  }
}

/// What 1,000 seeds say about one element's estimate.
struct Moments {
  double bias = 0;            // mean of estimate - truth
  double standard_error = 0;  // of the bias
  double variance = 0;
};

Moments estimate_moments(const std::vector<float>& values, std::size_t element, std::size_t rows,
                         std::size_t columns, std::size_t run, int seeds) {
  const auto executor = make_cpu_executor(1);
  double sum = 0;
  double squares = 0;
  std::vector<float> estimates(values.size());
  for (int seed = 0; seed < seeds; ++seed) {
    const CountSketch sketch =
        make_count_sketch(stream_of(static_cast<std::uint64_t>(seed)), rows, columns, run);
    std::vector<float> table(sketch.cells(), 0.0f);
    insert(*executor, sketch, values, {}, table);
    query(*executor, sketch, table, estimates);
    const double error = static_cast<double>(estimates[element]) - static_cast<double>(values[element]);
    sum += error;
    squares += error * error;
  }
  Moments result;
  result.bias = sum / seeds;
  result.variance = squares / seeds - result.bias * result.bias;
  result.standard_error = std::sqrt(result.variance / seeds);
  return result;
}

// Two-sided test at 4 sigma over fixed seeds: a correct kernel fails with probability below 7e-5 per case.
TEST(CountSketch, EstimatesAreUnbiasedOverSeeds) {
  const auto values = test_values(2000, 6);
  for (const std::size_t rows : {1u, 2u, 3u, 4u}) {
    for (const std::size_t element : {0u, 63u, 64u, 1999u}) {
      const Moments moments = estimate_moments(values, element, rows, 400, 64, 1000);
      EXPECT_LT(std::fabs(moments.bias), 4 * moments.standard_error) << rows << " rows, element " << element;
    }
  }
}

// The lower of the two middle values would be far too small here.
TEST(CountSketch, TheMiddleOfTwoRowsIsTheirMean) {
  std::vector<float> values(640, 1.0f);
  const Moments moments = estimate_moments(values, 100, 2, 128, 64, 4000);
  EXPECT_LT(std::fabs(moments.bias), 4 * moments.standard_error);
}

// One row: Var[estimate_i] = (sum of squares of the others)/columns for scattered hashing. In runs, those of
// the own run never collide, so they drop out of the sum. 4,000 seeds give the variance to about 2.5 % (one
// sigma, light tails); 12 % is beyond 4 sigma.
TEST(CountSketch, TheVarianceIsThatOfTheFormulaAndRunsAddNothing) {
  const auto values = test_values(1500, 8);
  constexpr std::size_t kColumns = 300;
  for (const std::size_t run : {1u, 16u, 64u}) {
    for (const std::size_t element : {5u, 700u}) {
      double others = 0;
      double all_others = 0;
      for (std::size_t i = 0; i < values.size(); ++i) {
        const double square = static_cast<double>(values[i]) * static_cast<double>(values[i]);
        if (i != element) all_others += square;
        if (i / run != element / run) others += square;
      }
      const Moments moments = estimate_moments(values, element, 1, kColumns, run, 4000);
      EXPECT_NEAR(moments.variance, others / kColumns, 0.12 * others / kColumns)
          << "run " << run << " element " << element;
      EXPECT_LT(moments.variance, 1.12 * all_others / kColumns);
    }
  }
}

// An offset that is heavy in every block is the worst case of aligned starts. Here starts are uniform over
// all columns, and heavy offsets meet no more often than others.
TEST(CountSketch, AHeavyOffsetInEveryBlockMeetsItselfNoMoreOftenThanOthers) {
  std::vector<float> values(64 * 64, 0.01f);
  for (std::size_t block = 0; block < 64; ++block) values[block * 64 + 10] = 1;
  double others = 0;
  for (std::size_t i = 64; i < values.size(); ++i) {
    others += static_cast<double>(values[i]) * static_cast<double>(values[i]);
  }
  const Moments moments = estimate_moments(values, 10, 1, 1024, 64, 4000);
  EXPECT_NEAR(moments.variance, others / 1024, 0.2 * others / 1024);  // heavier tails: 4 sigma is 20 %
}

TEST(CountSketch, RefusesShapesThatCannotBe) {
  EXPECT_THROW(make_count_sketch({}, 0, 10, 64), std::invalid_argument);
  EXPECT_THROW(make_count_sketch({}, 32, 10, 64), std::invalid_argument);
  EXPECT_THROW(make_count_sketch({}, 1, 0, 64), std::invalid_argument);
  EXPECT_THROW(make_count_sketch({}, 1, std::size_t{1} << 32, 64), std::invalid_argument);
  EXPECT_THROW(make_count_sketch({}, 1, 10, 48), std::invalid_argument);
  EXPECT_THROW(make_count_sketch({}, 1, 10, 128), std::invalid_argument);
  EXPECT_EQ(make_count_sketch({}, 1, 10, 64).run_length, 8u);
}

}  // namespace
}  // namespace thinwire::count_sketch_test
