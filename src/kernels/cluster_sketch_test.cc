#include "kernels/cluster_sketch.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "kernels/test_targets.h"
#include "kernels/test_vectors.h"
#include "wire/coded_payload.h"

namespace thinwire {
namespace {

/// A sketch and the groups that it views.
struct Grouped {
  ClusterSketch sketch;
  std::vector<ClusterGroup> groups;

  /// Groups end at `ends`; cluster c of group g has `smallest` + 11 c + g buckets.
  Grouped(std::size_t bits, std::uint32_t smallest, const std::vector<std::size_t>& ends) {
    sketch.bits = bits;
    sketch.stream = random_stream(5, 6, 7, RandomPurpose::sketch);
    std::size_t buckets = 0;
    for (std::size_t g = 0; g < ends.size(); ++g) {
      ClusterGroup group;
      group.end = ends[g];
      group.first_bucket = buckets;
      PerCluster<float> centres{};
      for (std::size_t c = 0; c < sketch.clusters(); ++c) {
        centres[c] = (c % 2 == 0 ? 0.3f : -0.25f) * static_cast<float>(c / 2 + 1 + g);
        group.sizes[c] = smallest + 11 * static_cast<std::uint32_t>(c) + static_cast<std::uint32_t>(g);
        buckets += group.sizes[c];
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

std::size_t bucket_of(const ClusterSketch& sketch, std::size_t element, std::size_t code) {
  const ClusterGroup& group = group_of(sketch, element);
  const std::size_t run = element / 64;
  const std::uint64_t x = sketch.stream.block(static_cast<std::uint32_t>(run / 4), 0)[run % 4];
  std::size_t begin = group.first_bucket;
  for (std::size_t c = 0; c < code; ++c) begin += group.sizes[c];
  return begin + ((x * group.sizes[code] >> 32) + element % 64) % group.sizes[code];
}

struct Encoded {
  std::vector<std::uint64_t> codes;
  std::vector<float> means;
  bool finite = false;
};

Encoded encode(const ClusterSketch& sketch, Span<const float> gradient, Span<const float> residual,
               int threads = 1, std::size_t first = 0) {
  const auto executor = make_cpu_executor(threads);
  Workspace workspace;
  Encoded result;
  result.codes.assign(code_words(gradient.size(), sketch.bits), 0);
  result.means.assign(sketch.buckets(), -1.0f);
  result.finite =
      encode_clusters(*executor, workspace, sketch, first, gradient, residual, result.codes, result.means);
  return result;
}

/// The means as decode_clusters takes them, until the next call.
Span<const float> laid_out(const Encoded& encoded, const ClusterSketch& sketch) {
  static Workspace workspace;
  workspace.reset();
  return lay_out_means(workspace, sketch, encoded.means);
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

TEST(ClusterSketch, CodesBucketsAndMeansAreTheScalarOnes) {
  for (std::size_t bits = 1; bits <= kMostClusterBits; ++bits) {
    for (const std::uint32_t smallest : {1u, 40u, 500u}) {
      for (const std::size_t n : kTestSizes) {
        for (const auto& ends : groupings(n)) {
          const bool with_residual = (bits + n) % 2 == 0;
          const Grouped grouped(bits, smallest, ends);
          const ClusterSketch& sketch = grouped.sketch;
          const auto gradient = test_values(n, 1);
          const auto residual = with_residual ? test_values(n, 2) : std::vector<float>{};
          std::vector<double> sums(sketch.buckets()), counts(sketch.buckets());
          std::vector<std::size_t> codes(n), buckets(n);
          for (std::size_t i = 0; i < n; ++i) {
            const float p = with_residual ? gradient[i] + residual[i] : gradient[i];
            codes[i] = code_of(sketch, i, p);
            buckets[i] = bucket_of(sketch, i, codes[i]);
            sums[buckets[i]] += static_cast<double>(p);
            counts[buckets[i]] += 1;
          }
          for_each_target([&](const std::string& target) {
            SCOPED_TRACE(testing::Message() << target << ", " << bits << " bits, " << n << " elements in "
                                            << ends.size() << " groups, at least " << smallest << " buckets");
            const Encoded encoded = encode(sketch, gradient, residual);
            ASSERT_TRUE(encoded.finite);
            for (std::size_t i = 0; i < n; ++i) ASSERT_EQ(coded(encoded, bits, i), codes[i]) << i;
            for (std::size_t b = 0; b < sums.size(); ++b) {
              const double mean = counts[b] > 0 ? sums[b] / counts[b] : 0;
              ASSERT_NEAR(static_cast<double>(encoded.means[b]), mean, 1e-5 * (1 + counts[b] / 1000)) << b;
            }
            std::vector<float> values(n, 1.0f);
            decode_clusters(sketch, laid_out(encoded, sketch), encoded.codes, 0, false, values);
            for (std::size_t i = 0; i < n; ++i) ASSERT_EQ(values[i], encoded.means[buckets[i]]) << i;
            if (n <= 128) return;
            // From the middle on, added to what is there.
            const std::size_t first = 128;
            const auto words = Span<const std::uint64_t>(encoded.codes);
            const std::size_t word = first / 64 * bits;
            std::vector<float> rest(n - first, 2.0f);
            decode_clusters(sketch, laid_out(encoded, sketch), words.subspan(word, words.size() - word),
                            first, true, rest);
            for (std::size_t i = first; i < n; ++i) {
              ASSERT_EQ(rest[i - first], 2.0f + encoded.means[buckets[i]]) << i;
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
  const Encoded encoded = encode(grouped.sketch, p, {}, 1, kFirst);
  std::vector<float> values(p.size());
  decode_clusters(grouped.sketch, laid_out(encoded, grouped.sketch), encoded.codes, kFirst, false, values);
  for (std::size_t i = 0; i < p.size(); ++i) {
    const std::size_t code = code_of(grouped.sketch, kFirst + i, p[i]);
    ASSERT_EQ(coded(encoded, 2, i), code);
    ASSERT_EQ(values[i], encoded.means[bucket_of(grouped.sketch, kFirst + i, code)]);
  }
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

TEST(ClusterSketch, BucketMeansAreAnOrthogonalProjection) {
  for (std::size_t bits = 1; bits <= kMostClusterBits; ++bits) {
    const Grouped grouped(bits, 50, {10'001, 40'000});
    const ClusterSketch& sketch = grouped.sketch;
    const auto p = test_values(40'000, 4);
    const Encoded encoded = encode(sketch, p, {});
    std::vector<float> q(p.size());
    decode_clusters(sketch, laid_out(encoded, sketch), encoded.codes, 0, false, q);
    double error = 0, before = 0, after = 0;
    for (std::size_t i = 0; i < p.size(); ++i) {
      error += std::pow(static_cast<double>(q[i]) - static_cast<double>(p[i]), 2);
      before += std::pow(static_cast<double>(p[i]), 2);
      after += std::pow(static_cast<double>(q[i]), 2);
    }
    EXPECT_NEAR(error, before - after, 1e-5 * before);
    // With the same assignment, Q(Q(p)) = Q(p).
    std::vector<double> sums(sketch.buckets()), counts(sketch.buckets());
    for (std::size_t i = 0; i < p.size(); ++i) {
      const std::size_t bucket = bucket_of(sketch, i, coded(encoded, bits, i));
      sums[bucket] += static_cast<double>(q[i]);
      counts[bucket] += 1;
    }
    for (std::size_t i = 0; i < p.size(); ++i) {
      const std::size_t bucket = bucket_of(sketch, i, coded(encoded, bits, i));
      ASSERT_NEAR(static_cast<double>(q[i]), sums[bucket] / counts[bucket], 1e-6);
    }
    // At least one member of each bucket's worth of the norm survives: the operator contracts.
    const double largest = *std::max_element(counts.begin(), counts.end());
    EXPECT_LE(error, (1 - 1 / largest) * before * (1 + 1e-6));
  }
}

TEST(ClusterSketch, ABucketForEveryMemberLosesNothing) {
  const Grouped grouped(2, 64, {64});
  const ClusterSketch& sketch = grouped.sketch;
  const auto p = test_values(64, 8);  // one run: its members are spread over 64 buckets or more
  const Encoded encoded = encode(sketch, p, {});
  std::vector<float> q(p.size());
  decode_clusters(sketch, laid_out(encoded, sketch), encoded.codes, 0, false, q);
  for (std::size_t i = 0; i < p.size(); ++i) EXPECT_EQ(q[i], p[i]) << i;
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
    std::vector<float> q(kElements);
    decode_clusters(sketch, laid_out(encoded, sketch), encoded.codes, 0, false, q);
    double error = 0;
    std::vector<double> sums(sketch.buckets()), counts(sketch.buckets());
    std::vector<std::size_t> buckets(kElements);
    for (std::size_t i = 0; i < kElements; ++i) {
      const double value = static_cast<double>(p[i]);
      error += std::pow(static_cast<double>(q[i]) - value, 2);
      const std::size_t code = code_of(sketch, i, p[i]);
      const auto& sizes = grouped.groups[0].sizes;
      std::size_t begin = 0;
      for (std::size_t c = 0; c < code; ++c) begin += sizes[c];
      buckets[i] = begin + random() % sizes[code];
      sums[buckets[i]] += value;
      counts[buckets[i]] += 1;
    }
    for (std::size_t i = 0; i < kElements; ++i) {
      single += std::pow(sums[buckets[i]] / counts[buckets[i]] - static_cast<double>(p[i]), 2);
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
      for_each_target([&](const std::string& target) {
        EXPECT_FALSE(encode(sketch, gradient, {}).finite) << target << " " << bad << " at " << place;
      });
    }
  }
}

}  // namespace
}  // namespace thinwire
