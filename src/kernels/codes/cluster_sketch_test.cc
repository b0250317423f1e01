#include "kernels/codes/cluster_sketch.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "kernels/codes/cluster_values.h"
#include "kernels/test_executors.h"
#include "kernels/test_vectors.h"
#include "wire/payloads.h"

namespace thinwire::cluster_sketch_test {
namespace {

/// A sketch and the groups that it views.
struct Grouped {
  ClusterSketch sketch;
  std::vector<ClusterGroup> groups;

  /// Groups end at `ends`; cluster c of group g has `smallest` + 11 c + g cells.
  Grouped(std::size_t bits, std::uint32_t smallest, const std::vector<std::size_t>& ends) {
    sketch.bits = bits;
    sketch.stream = random_stream(5, 6, 7, RandomPurpose::sketch);
    std::size_t cells = 0;
    for (std::size_t g = 0; g < ends.size(); ++g) {
      ClusterGroup group;
      group.end = ends[g];
      group.first_cell = cells;
      PerCluster<float> centres{};
      for (std::size_t c = 0; c < sketch.clusters(); ++c) {
        centres[c] = (c % 2 == 0 ? 0.3f : -0.25f) * static_cast<float>(c / 2 + 1 + g);
        group.sizes[c] = smallest + 11 * static_cast<std::uint32_t>(c) + static_cast<std::uint32_t>(g);
        cells += group.sizes[c];
      }
      set_thresholds(group, bits, centres);
      groups.push_back(group);
    }
    sketch.groups = groups;
  }
  Grouped(const Grouped&) = delete;
  Grouped& operator=(const Grouped&) = delete;
};

// The definitions, one element at a time.

const ClusterGroup& group_of(const ClusterSketch& sketch, std::size_t element) {
  std::size_t g = 0;
  while (element >= sketch.groups[g].end) ++g;
  return sketch.groups[g];
}

std::size_t code_of(const ClusterSketch& sketch, std::size_t element, float p) {
  const ClusterGroup& group = group_of(sketch, element);
  const std::size_t sign = p < 0 ? 1 : 0;
  std::size_t level = 0;
  while (level + 1 < sketch.levels() && std::fabs(p) >= group.thresholds[sign][level]) ++level;
  return 2 * level + sign;
}

std::size_t cell_of(const ClusterSketch& sketch, std::size_t element, std::size_t code) {
  const ClusterGroup& group = group_of(sketch, element);
  const std::size_t run = element / 64;
  const std::uint64_t x = sketch.stream.block(static_cast<std::uint32_t>(run / 4), 0)[run % 4];
  std::size_t begin = group.first_cell;
  for (std::size_t c = 0; c < code; ++c) begin += group.sizes[c];
  return begin + ((x * group.sizes[code] >> 32) + element % 64) % group.sizes[code];
}

struct Encoded {
  std::vector<std::uint64_t> codes;
  std::vector<float> means;
  bool finite = false;
};

Encoded encode(Executor& executor, const ClusterSketch& sketch, const std::vector<float>& gradient,
               const std::vector<float>& residual, std::size_t first = 0) {
  Workspace workspace(executor.shared_allocator());
  Encoded result;
  // In host memory, as frames are.
  result.codes.assign(code_words(gradient.size(), sketch.bits), ~std::uint64_t{0});
  result.means.assign(sketch.cells(), -1.0f);
  result.finite = encode_clusters(executor, workspace, sketch, first, Placed(executor, gradient),
                                  Placed(executor, residual), result.codes, result.means);
  return result;
}

Encoded encode(const ClusterSketch& sketch, const std::vector<float>& gradient,
               const std::vector<float>& residual, int threads = 1) {
  return encode(*make_cpu_executor(threads), sketch, gradient, residual);
}

/// What the codes from element `first` on say, `first` being the element of the first code.
std::vector<float> decode(Executor& executor, const ClusterSketch& sketch, const Encoded& encoded,
                          std::size_t first, bool add, std::vector<float> values) {
  Workspace workspace;
  Placed placed(executor, values);
  const auto means = lay_out_means(workspace, sketch, encoded.means, executor.memory());
  decode_clusters(executor, {sketch, means, encoded.codes}, first, add, placed);
  return placed.read();
}

std::vector<float> decode(const ClusterSketch& sketch, const Encoded& encoded, std::size_t count) {
  return decode(*make_cpu_executor(1), sketch, encoded, 0, false, std::vector<float>(count));
}

std::size_t coded(const Encoded& encoded, std::size_t bits, std::size_t element) {
  std::size_t code = 0;
  for (std::size_t k = 0; k < bits; ++k) {
    code |= ((encoded.codes[element / 64 * bits + k] >> (element % 64)) & 1) << k;
  }
  return code;
}

/// One group, and several that begin and end anywhere, some of them empty.
std::vector<std::vector<std::size_t>> groupings(std::size_t n) {
  return {{n}, {n / 7, n / 7, n / 3, n / 3 + 1, n - n / 9, n, n}};
}

TEST(ClusterSketch, CodesCellsAndMeansAreTheScalarOnes) {
  for (std::size_t bits = 1; bits <= kMostClusterBits; ++bits) {
    for (const std::uint32_t smallest : {1u, 40u, 500u}) {
      for (const std::size_t n : kTestSizes) {
        for (const auto& ends : groupings(n)) {
          const bool with_residual = (bits + n) % 2 == 0;
          const Grouped grouped(bits, smallest, ends);
          const ClusterSketch& sketch = grouped.sketch;
          const auto gradient = test_values(n, 1);
          const auto residual = with_residual ? test_values(n, 2) : std::vector<float>{};
          std::vector<double> sums(sketch.cells()), counts(sketch.cells());
          std::vector<std::size_t> codes(n), cells(n);
          std::vector<std::uint64_t> packed(code_words(n, bits));
          for (std::size_t i = 0; i < n; ++i) {
            const float p = with_residual ? gradient[i] + residual[i] : gradient[i];
            codes[i] = code_of(sketch, i, p);
            cells[i] = cell_of(sketch, i, codes[i]);
            sums[cells[i]] += static_cast<double>(p);
            counts[cells[i]] += 1;
            for (std::size_t k = 0; k < bits; ++k) {
              packed[i / 64 * bits + k] |= std::uint64_t{(codes[i] >> k) & 1} << (i % 64);
            }
          }
          for_each_executor([&](Executor& executor, const std::string& name) {
            // Emulations and sanitizers are slow. Slices are many where elements or cells are.
            const bool slow = n > 4097 ? bits != 2 || smallest != (ends.size() == 1 ? 1u : 40u)
                                       : sketch.cells() > 2000 && (bits != 2 || n < 4097);
            if ((kSanitized || executor.memory() == Memory::cuda) && slow) return;
            SCOPED_TRACE(testing::Message() << name << ", " << bits << " bits, " << n << " elements in "
                                            << ends.size() << " groups, at least " << smallest << " cells");
            const Encoded encoded = encode(executor, sketch, gradient, residual);
            ASSERT_TRUE(encoded.finite);
            ASSERT_EQ(encoded.codes, packed);
            for (std::size_t b = 0; b < sums.size(); ++b) {
              const double mean = counts[b] > 0 ? sums[b] / counts[b] : 0;
              ASSERT_NEAR(static_cast<double>(encoded.means[b]), mean, 1e-5 * (1 + counts[b] / 1000)) << b;
            }
            const auto values = decode(executor, sketch, encoded, 0, false, std::vector<float>(n, 1.0f));
            for (std::size_t i = 0; i < n; ++i) ASSERT_EQ(values[i], encoded.means[cells[i]]) << i;
            if (n <= 128) return;
            // From the middle on, added to what is there.
            const std::size_t first = 128;
            Encoded rest = encoded;
            rest.codes.erase(rest.codes.begin(),
                             rest.codes.begin() + static_cast<std::ptrdiff_t>(first / 64 * bits));
            const auto more =
                decode(executor, sketch, rest, first, true, std::vector<float>(n - first, 2.0f));
            for (std::size_t i = first; i < n; ++i) {
              ASSERT_EQ(more[i - first], 2.0f + encoded.means[cells[i]]) << i;
            }
          });
        }
      }
    }
  }
}

TEST(ClusterSketch, APartOfABucketIsCodedAsItsElementsAre) {
  constexpr std::size_t kFirst = 640;
  const Grouped grouped(2, 30, {700, 1500, 2000});
  const auto p = test_values(2000 - kFirst, 1);
  for_each_executor([&](Executor& executor, const std::string& name) {
    const Encoded encoded = encode(executor, grouped.sketch, p, {}, kFirst);
    const auto values =
        decode(executor, grouped.sketch, encoded, kFirst, false, std::vector<float>(p.size()));
    for (std::size_t i = 0; i < p.size(); ++i) {
      const std::size_t code = code_of(grouped.sketch, kFirst + i, p[i]);
      ASSERT_EQ(coded(encoded, 2, i), code) << name;
      ASSERT_EQ(values[i], encoded.means[cell_of(grouped.sketch, kFirst + i, code)]) << name;
    }
  });
}

TEST(ClusterSketch, ThreadsDoNotChangeABit) {
  const Grouped grouped(2, 3000, {1'000'003, 1'048'600, 3'000'000, 5'000'003});
  const ClusterSketch& sketch = grouped.sketch;
  const auto gradient = test_values(5'000'003, 3);
  const Encoded one = encode(sketch, gradient, {}, 1);
  const Encoded three = encode(sketch, gradient, {}, 3);
  EXPECT_EQ(one.codes, three.codes);
  EXPECT_EQ(one.means, three.means);
}

TEST(ClusterSketch, CellMeansAreAnOrthogonalProjection) {
  for (std::size_t bits = 1; bits <= kMostClusterBits; ++bits) {
    const Grouped grouped(bits, 50, {10'001, 40'000});
    const ClusterSketch& sketch = grouped.sketch;
    const auto p = test_values(40'000, 4);
    const Encoded encoded = encode(sketch, p, {});
    const auto q = decode(sketch, encoded, p.size());
    double error = 0, before = 0, after = 0;
    for (std::size_t i = 0; i < p.size(); ++i) {
      error += std::pow(static_cast<double>(q[i]) - static_cast<double>(p[i]), 2);
      before += std::pow(static_cast<double>(p[i]), 2);
      after += std::pow(static_cast<double>(q[i]), 2);
    }
    EXPECT_NEAR(error, before - after, 1e-5 * before);
    // With the same assignment, Q(Q(p)) = Q(p).
    std::vector<double> sums(sketch.cells()), counts(sketch.cells());
    for (std::size_t i = 0; i < p.size(); ++i) {
      const std::size_t cell = cell_of(sketch, i, coded(encoded, bits, i));
      sums[cell] += static_cast<double>(q[i]);
      counts[cell] += 1;
    }
    for (std::size_t i = 0; i < p.size(); ++i) {
      const std::size_t cell = cell_of(sketch, i, coded(encoded, bits, i));
      ASSERT_NEAR(static_cast<double>(q[i]), sums[cell] / counts[cell], 1e-6);
    }
    // At least one member of each cell's worth of the norm survives: the operator contracts.
    const double largest = *std::max_element(counts.begin(), counts.end());
    EXPECT_LE(error, (1 - 1 / largest) * before * (1 + 1e-6));
  }
}

TEST(ClusterSketch, ACellForEveryMemberLosesNothing) {
  const Grouped grouped(2, 64, {64});
  const auto p = test_values(64, 8);  // one run: its members are spread over 64 cells or more
  for_each_executor([&](Executor& executor, const std::string& name) {
    const Encoded encoded = encode(executor, grouped.sketch, p, {});
    EXPECT_EQ(decode(executor, grouped.sketch, encoded, 0, false, std::vector<float>(64)), p) << name;
  });
}

TEST(ClusterSketch, RunsCollideNoMoreThanSingleElements) {
  // The error of hashing by runs against that of hashing each element by itself, over 200 draws; 3 standard
  // errors of the mean.
  constexpr std::size_t kElements = 6400;
  const auto p = test_values(kElements, 9);
  double runs = 0, runs_squared = 0, single = 0;
  std::mt19937 random(1);
  constexpr int kDraws = 200;
  for (int draw = 0; draw < kDraws; ++draw) {
    Grouped grouped(2, 100, {kElements});
    ClusterSketch& sketch = grouped.sketch;
    sketch.stream = random_stream(static_cast<std::uint64_t>(draw), 0, 0, RandomPurpose::sketch);
    const Encoded encoded = encode(sketch, p, {});
    const auto q = decode(sketch, encoded, kElements);
    double error = 0;
    std::vector<double> sums(sketch.cells()), counts(sketch.cells());
    std::vector<std::size_t> cells(kElements);
    for (std::size_t i = 0; i < kElements; ++i) {
      const double value = static_cast<double>(p[i]);
      error += std::pow(static_cast<double>(q[i]) - value, 2);
      const std::size_t code = code_of(sketch, i, p[i]);
      const auto& sizes = grouped.groups[0].sizes;
      std::size_t begin = 0;
      for (std::size_t c = 0; c < code; ++c) begin += sizes[c];
      cells[i] = begin + random() % sizes[code];
      sums[cells[i]] += value;
      counts[cells[i]] += 1;
    }
    for (std::size_t i = 0; i < kElements; ++i) {
      single += std::pow(sums[cells[i]] / counts[cells[i]] - static_cast<double>(p[i]), 2);
    }
    runs += error;
    runs_squared += error * error;
  }
  const double mean = runs / kDraws;
  const double deviation = std::sqrt((runs_squared / kDraws - mean * mean) / kDraws);
  EXPECT_LT(mean, single / kDraws + 3 * deviation);
}

TEST(ClusterSketch, ValuesThatAreNotFiniteAreReported) {
  const Grouped grouped(2, 100, {64, 500, 1000});
  const ClusterSketch& sketch = grouped.sketch;
  for (const float bad : {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
                          std::numeric_limits<float>::quiet_NaN()}) {
    for (const std::size_t place : {0u, 63u, 64u, 999u}) {
      auto gradient = test_values(1000, 1);
      gradient[place] = bad;
      for_each_executor([&](Executor& executor, const std::string& name) {
        EXPECT_FALSE(encode(executor, sketch, gradient, {}).finite) << name << " " << bad << " at " << place;
      });
    }
  }
}

TEST(ClusterSketch, SumsBeyondFloat32AreReported) {
  const Grouped grouped(1, 1, {100});
  for_each_executor([&](Executor& executor, const std::string& name) {
    EXPECT_TRUE(encode(executor, grouped.sketch, std::vector<float>(100, 1e36f), {}).finite) << name;
    EXPECT_FALSE(encode(executor, grouped.sketch, std::vector<float>(100, 3e38f), {}).finite) << name;
  });
}

/// What some ranks said of the same elements.
struct Said {
  std::vector<Encoded> encoded;
  std::vector<ClusterSketch> sketches;
  std::vector<std::vector<float>> values;

  std::vector<std::vector<ClusterGroup>> groups;  // of each rank

  /// Each rank shares a group's cells among its clusters in another way.
  Said(const ClusterSketch& sketch, std::size_t ranks, std::size_t first, std::size_t count) {
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      groups.emplace_back(sketch.groups.begin(), sketch.groups.end());
      for (ClusterGroup& group : groups[rank]) {
        std::rotate(group.sizes.begin(),
                    group.sizes.begin() + static_cast<std::ptrdiff_t>(rank % sketch.clusters()),
                    group.sizes.begin() + static_cast<std::ptrdiff_t>(sketch.clusters()));
      }
      sketches.push_back(sketch.for_rank(rank));
      sketches[rank].groups = groups[rank];
      const auto gradient = test_values(count, static_cast<std::uint32_t>(rank + 1));
      const auto cpu = make_cpu_executor(1);
      encoded.push_back(encode(*cpu, sketches[rank], gradient, {}, first));
      values.push_back(decode(*cpu, sketches[rank], encoded[rank], first, false, std::vector<float>(count)));
    }
  }
  std::vector<CodedClusters> coded(Workspace& workspace, Memory memory) const {
    std::vector<CodedClusters> all;
    for (std::size_t rank = 0; rank < encoded.size(); ++rank) {
      const auto means = lay_out_means(workspace, sketches[rank], encoded[rank].means, memory);
      all.push_back({sketches[rank], means, encoded[rank].codes});
    }
    return all;
  }
};

TEST(ClusterValues, AveragesAddInRankOrderAndDivide) {
  for (const std::size_t count : {1u, 64u, 1000u, 70'001u}) {
    const std::size_t first = 640;
    const Grouped grouped(3, 30, {first + count / 3, first + count / 2, first + count});
    const Said said(grouped.sketch, 3, first, count);
    std::vector<float> expected(count);
    for (std::size_t i = 0; i < count; ++i) {
      expected[i] = (said.values[0][i] + said.values[1][i] + said.values[2][i]) / 3.0f;
    }
    for_each_executor([&](Executor& executor, const std::string& name) {
      Workspace workspace;
      const auto coded = said.coded(workspace, executor.memory());
      Placed values(executor, std::vector<float>(count, 5.0f));
      average_clusters(executor, coded, first, values);
      EXPECT_EQ(values.read(), expected) << name << " " << count;
    });
  }
}

TEST(ClusterValues, TheMeanOfAllRanksAndTheRemainderComeFromOnePass) {
  for (const std::size_t count : {1u, 64u, 1000u, 70'001u}) {
    const Grouped grouped(2, 100, {count / 3, std::min(count / 3 + 5, count), count});
    const Said said(grouped.sketch, 3, 0, count);
    const auto gradient = test_values(count, 5);
    const auto residual = test_values(count, 6);
    std::vector<float> mean(count), expected(count);
    double expected_squares = 0;
    for (std::size_t i = 0; i < count; ++i) {
      mean[i] = (said.values[0][i] + said.values[1][i] + said.values[2][i]) * (1.0f / 3.0f);
      expected[i] = gradient[i] + residual[i] - said.values[1][i];
      expected_squares += static_cast<double>(expected[i]) * static_cast<double>(expected[i]);
    }
    for_each_executor([&](Executor& executor, const std::string& name) {
      SCOPED_TRACE(testing::Message() << name << " " << count);
      Workspace workspace;
      const auto coded = said.coded(workspace, executor.memory());
      Placed placed_gradient(executor, gradient);
      Placed placed_residual(executor, residual);
      const double squares = apply_clusters(executor, coded, 1, placed_gradient, placed_residual);
      EXPECT_EQ(placed_gradient.read(), mean);
      EXPECT_EQ(placed_residual.read(), expected);
      EXPECT_NEAR(squares, expected_squares, 1e-5 * expected_squares);
      Placed again(executor, gradient);
      EXPECT_EQ(apply_clusters(executor, coded, 1, again, {}), 0);
      EXPECT_EQ(again.read(), mean);
    });
  }
}

TEST(ClusterValues, TheResidualKeepsWhatTheFramesDidNotCarry) {
  for (const std::size_t count : {1u, 65u, 1000u, 70'001u}) {
    const Grouped grouped(2, 30, {count / 3, count});
    const Said said(grouped.sketch, 1, 0, count);
    const auto gradient = test_values(count, 5);
    const auto residual = test_values(count, 6);
    const auto results = test_values(count, 7);
    const std::size_t begin = count / 2 / 64 * 64;
    const auto average = test_values(std::min<std::size_t>(count - begin, 640), 8);
    std::vector<float> expected(count);
    double expected_squares = 0;
    for (std::size_t i = 0; i < count; ++i) {
      float delivered = said.values[0][i];
      if (i >= begin && i - begin < average.size()) delivered -= 4.0f * (average[i - begin] - results[i]);
      expected[i] = gradient[i] + residual[i] - delivered;
      expected_squares += static_cast<double>(expected[i]) * static_cast<double>(expected[i]);
    }
    for_each_executor([&](Executor& executor, const std::string& name) {
      SCOPED_TRACE(testing::Message() << name << " " << count);
      Workspace workspace;
      const CodedClusters coded = said.coded(workspace, executor.memory())[0];
      Placed placed_average(executor, average);
      const RecodedShard shard{begin, placed_average, 4};
      Placed placed_gradient(executor, gradient);
      Placed placed_residual(executor, residual);
      const double squares = subtract_clusters(executor, coded, shard, Placed(executor, results),
                                               placed_gradient, placed_residual);
      EXPECT_EQ(placed_gradient.read(), results);
      EXPECT_EQ(placed_residual.read(), expected);
      EXPECT_NEAR(squares, expected_squares, 1e-5 * expected_squares);
      Placed again(executor, gradient);
      EXPECT_EQ(subtract_clusters(executor, {}, shard, Placed(executor, results), again, {}), 0);
      EXPECT_EQ(again.read(), results);
    });
  }
}

}  // namespace
}  // namespace thinwire::cluster_sketch_test
