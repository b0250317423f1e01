#include "kernels/quantize.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "kernels/test_targets.h"
#include "kernels/test_vectors.h"

namespace thinwire {
namespace {

constexpr std::size_t kChunk = 1280;

std::vector<QuantizationLevels> all_levels() {
  std::vector<QuantizationLevels> all;
  for (std::size_t bits = QuantizationLevels::kLeastBits; bits <= QuantizationLevels::kMostBits; ++bits) {
    all.push_back(QuantizationLevels::uniform(bits));
    all.push_back(QuantizationLevels::halving(bits));
  }
  return all;
}

/// The definition in quantize.h, in double where the kernel has 16 bits and a rare second look.
unsigned scalar_code(const QuantizationLevels& levels, const RandomStream& stream, std::size_t element,
                     float p, float norm) {
  const float inverse = norm < std::numeric_limits<float>::min() ? 0.0f : 1.0f / norm;
  unsigned j = 0;
  float y = 0;
  if (levels.equal_steps) {
    const float scale = levels.last() * 65536.0f;
    y = std::min(std::fabs(p) * inverse * scale, scale);
  } else {
    const float a = std::min(std::fabs(p) * inverse, 1.0f);
    for (unsigned k = 1; k < levels.count() && levels.values[k] <= a; ++k) j = k;
    const float slope = j + 1 == levels.count()
                            ? 0.0f
                            : std::min(65536.0f / (levels.values[j + 1] - levels.values[j]), 0x1p126f);
    y = std::min((a - levels.values[j]) * slope, 65536.0f);
  }
  const std::size_t i = element % 128;
  const auto block = static_cast<std::uint32_t>(element / 128 * 16 + i % 16);
  const std::uint32_t word = stream.block(block, 0)[i % 64 / 16];
  const double coarse = i < 64 ? word & 0xFFFF : word >> 16;
  const std::uint32_t fine = stream.block(block, static_cast<std::uint32_t>(1 + i / 64))[i % 64 / 16] >> 8;
  const double u = coarse + static_cast<double>(fine) * 0x1p-24;
  const auto index = j + static_cast<unsigned>(std::floor((static_cast<double>(y) + u) / 65536));
  return index << 1 | (std::signbit(p) ? 1u : 0u);
}

float scalar_value(const QuantizationLevels& levels, unsigned code, float norm) {
  const unsigned index = code >> 1;
  const float magnitude = levels.equal_steps
                              ? std::min(static_cast<float>(index) * (norm / levels.last()), norm)
                              : levels.values[index] * norm;
  return (code & 1) != 0 ? -magnitude : magnitude;
}

unsigned code_at(Span<const std::uint64_t> codes, std::size_t bits, std::size_t i) {
  unsigned code = 0;
  for (std::size_t k = 0; k < bits; ++k) {
    code |= static_cast<unsigned>((codes[i / 64 * bits + k] >> (i % 64)) & 1) << k;
  }
  return code;
}

std::vector<std::uint64_t> room(std::size_t count, std::size_t bits) {
  return std::vector<std::uint64_t>((count + 63) / 64 * bits);
}

TEST(Quantize, ChunksAgreeWithTheirDefinition) {
  const RandomStream stream = random_stream(3, 1, 4, RandomPurpose::rounding, 1);
  for_each_target([&](const std::string& target) {
    for (const auto& levels : all_levels()) {
      for (const std::size_t count : kTestSizes) {
        if (count > 5000 && levels.bits != 3) continue;
        for (const bool with_residual : {false, true}) {
          SCOPED_TRACE(testing::Message() << target << ", " << levels.bits << " bits, " << count);
          const auto executor = make_cpu_executor(count % 2 == 0 ? 1 : 3);
          const auto gradient = test_values(count, 1);
          const auto residual = with_residual ? test_values(count, 2) : std::vector<float>();
          std::vector<float> norms(chunk_count(count, kChunk));
          auto codes = room(count, levels.bits);
          ASSERT_TRUE(quantize_chunks(*executor, stream, levels, QuantizationNorm::largest, kChunk, gradient,
                                      residual, norms, codes));
          for (std::size_t i = 0; i < codes.size() / levels.bits * 64; ++i) {
            const float p = i >= count ? 0.0f : with_residual ? gradient[i] + residual[i] : gradient[i];
            ASSERT_EQ(code_at(codes, levels.bits, i), scalar_code(levels, stream, i, p, norms[i / kChunk]))
                << i;
          }
          for (std::size_t c = 0; c < norms.size(); ++c) {
            float largest = 0;
            for (std::size_t i = c * kChunk; i < std::min(count, (c + 1) * kChunk); ++i) {
              largest = std::max(largest, std::fabs(with_residual ? gradient[i] + residual[i] : gradient[i]));
            }
            ASSERT_EQ(norms[c], largest < std::numeric_limits<float>::min() ? 0.0f : largest);
          }
          std::vector<float> values(count, 1.0f);
          std::vector<float> sums(count, 1.0f);
          const QuantizationScales scales{.chunk = kChunk};
          dequantize(levels, scales, norms, codes, 0, false, values);
          dequantize(levels, scales, norms, codes, 0, true, sums);
          for (std::size_t i = 0; i < count; ++i) {
            const float value = scalar_value(levels, code_at(codes, levels.bits, i), norms[i / kChunk]);
            ASSERT_EQ(values[i], value) << i;
            ASSERT_EQ(sums[i], 1.0f + value) << i;
            ASSERT_LE(std::fabs(value), norms[i / kChunk]);
          }
          for (const std::size_t first : {64u, 1216u, 1280u, 4032u}) {
            for (const std::size_t length : {1u, 64u, 100u, 2048u}) {
              if (first + length > count) continue;
              std::vector<float> part(length);
              dequantize(levels, scales, norms, codes, first, false, part);
              for (std::size_t i = 0; i < length; ++i) ASSERT_EQ(part[i], values[first + i]);
            }
          }
        }
      }
    }
  });
}

TEST(Quantize, RangesAgreeWithTheirDefinition) {
  const RandomStream stream = random_stream(3, 1, 4, RandomPurpose::rounding, 1);
  for_each_target([&](const std::string& target) {
    for (const auto& levels : {QuantizationLevels::uniform(2), QuantizationLevels::halving(4)}) {
      for (const auto& ends :
           std::vector<std::vector<std::size_t>>{{5000},
                                                 {1, 2, 3, 5000},
                                                 {128, 256, 5000},
                                                 {0, 0, 100, 100, 190, 1000, 1003, 4999, 5000, 5000}}) {
        const auto executor = make_cpu_executor(1);
        const auto gradient = test_values(5000, 1);
        const auto residual = test_values(5000, 2);
        std::vector<float> norms(ends.size());
        for (std::size_t c = 0; c < norms.size(); ++c) norms[c] = 0.25f * static_cast<float>(c);
        auto codes = room(5000, levels.bits);
        quantize_ranges(*executor, stream, levels, ends, norms, gradient, residual, codes);
        std::vector<float> values(5000);
        dequantize(levels, {.ends = ends}, norms, codes, 0, false, values);
        std::size_t range = 0;
        for (std::size_t i = 0; i < 5000; ++i) {
          while (i >= ends[range]) ++range;
          const float p = gradient[i] + residual[i];
          ASSERT_EQ(code_at(codes, levels.bits, i), scalar_code(levels, stream, i, p, norms[range]))
              << target << " " << i;
          ASSERT_EQ(values[i], scalar_value(levels, code_at(codes, levels.bits, i), norms[range]));
        }
        for (std::size_t first = 0; first + 64 <= 5000; first += 64) {
          std::vector<float> part(std::min<std::size_t>(1000, 5000 - first));
          dequantize(levels, {.ends = ends}, norms, codes, first, false, part);
          for (std::size_t i = 0; i < part.size(); ++i) ASSERT_EQ(part[i], values[first + i]) << first;
        }
      }
    }
  });
}

TEST(Quantize, L2NormsAreNormsAndBoundTheValues) {
  const RandomStream stream = random_stream(3, 1, 4, RandomPurpose::rounding, 1);
  for_each_target([&](const std::string& target) {
    const auto levels = QuantizationLevels::halving(4);
    for (const std::size_t count : kTestSizes) {
      const auto executor = make_cpu_executor(1);
      const auto gradient = test_values(count, 1);
      std::vector<float> norms(chunk_count(count, kChunk));
      auto codes = room(count, levels.bits);
      ASSERT_TRUE(quantize_chunks(*executor, stream, levels, QuantizationNorm::l2, kChunk, gradient, {},
                                  norms, codes));
      for (std::size_t c = 0; c < norms.size(); ++c) {
        double squares = 0;
        for (std::size_t i = c * kChunk; i < std::min(count, (c + 1) * kChunk); ++i) {
          squares += static_cast<double>(gradient[i]) * static_cast<double>(gradient[i]);
        }
        ASSERT_NEAR(static_cast<double>(norms[c]), std::sqrt(squares), 1e-6 * std::sqrt(squares) + 1e-37)
            << target;
      }
      for (std::size_t i = 0; i < count; ++i) {
        ASSERT_EQ(code_at(codes, levels.bits, i),
                  scalar_code(levels, stream, i, gradient[i], norms[i / kChunk]));
      }
    }
  });
}

TEST(Quantize, ValuesThatAreNotFiniteAreSeenWhereverTheyStand) {
  const RandomStream stream = random_stream(1, 1, 1, RandomPurpose::rounding);
  const auto levels = QuantizationLevels::uniform(3);
  for_each_target([&](const std::string& target) {
    const auto executor = make_cpu_executor(1);
    for (const float bad :
         {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
          std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::quiet_NaN()}) {
      for (const std::size_t place : {0u, 5u, 31u, 1279u, 1280u, 2999u}) {
        for (const auto norm : {QuantizationNorm::largest, QuantizationNorm::l2}) {
          auto gradient = test_values(3000, 1);
          gradient[place] = bad;
          std::vector<float> norms(3);
          auto codes = room(3000, 3);
          EXPECT_FALSE(quantize_chunks(*executor, stream, levels, norm, kChunk, gradient, {}, norms, codes))
              << target << " " << place << " " << bad;
          EXPECT_FALSE(std::isfinite(largest_magnitude(*executor, gradient, {})));
        }
      }
    }
  });
}

// Values around the least normal float count as 0 or are delivered exactly; norms near the largest float
// work.
TEST(Quantize, ExtremeScales) {
  const RandomStream stream = random_stream(1, 1, 1, RandomPurpose::rounding);
  const auto levels = QuantizationLevels::uniform(2);
  const auto executor = make_cpu_executor(1);
  for (const float value : {1e-45f, -1e-39f, 1.2e-38f, -1e-30f, 1e30f, -3.4e38f}) {
    const std::vector<float> gradient(200, value);
    std::vector<float> norms(1), decoded(200);
    auto codes = room(200, 2);
    ASSERT_TRUE(quantize_chunks(*executor, stream, levels, QuantizationNorm::largest, kChunk, gradient, {},
                                norms, codes));
    dequantize(levels, {.chunk = kChunk}, norms, codes, 0, false, decoded);
    // 1 / 3.4e38 is denormal and has fewer digits: one draw in 2^20 may go the other way.
    for (const float q : decoded) {
      EXPECT_EQ(q, std::fabs(value) < std::numeric_limits<float>::min() ? 0.0f : value);
    }
  }
}

// z-test at 5 sigma with a fixed seed: E[Q(p)] = p, for magnitudes between all levels, some of them far
// below 2^-16 of a step, where 16 random bits alone would always round down.
TEST(Quantize, RoundingIsUnbiased) {
  const auto executor = make_cpu_executor(1);
  constexpr std::size_t kCopies = 1 << 14;
  constexpr int kDraws = 64;
  for (const auto& levels :
       {QuantizationLevels::uniform(2), QuantizationLevels::uniform(4), QuantizationLevels::halving(3),
        QuantizationLevels::halving(5), QuantizationLevels::halving(7), QuantizationLevels::uniform(8)}) {
    for (const float p : {1e-6f, 3e-4f, -0.01f, 0.1f, -0.24f, 0.37f, 0.5f, -0.77f, 0.999f}) {
      std::vector<float> gradient(kCopies, p);
      gradient[0] = 1.0f;
      double sum = 0, squares = 0;
      for (int draw = 0; draw < kDraws; ++draw) {
        std::vector<float> norms(1), decoded(kCopies);
        auto codes = room(kCopies, levels.bits);
        const auto stream = random_stream(11, static_cast<std::uint64_t>(draw), 0, RandomPurpose::rounding);
        quantize_chunks(*executor, stream, levels, QuantizationNorm::largest, kCopies, gradient, {}, norms,
                        codes);
        dequantize(levels, {.chunk = kCopies}, norms, codes, 0, false, decoded);
        for (std::size_t i = 1; i < kCopies; ++i) {
          const double error = static_cast<double>(decoded[i]) - static_cast<double>(p);
          sum += error;
          squares += error * error;
        }
      }
      const double n = static_cast<double>(kCopies - 1) * kDraws;
      // The variance by definition: (high - p) (p - low).
      const auto used = levels.used();
      const double a = std::fabs(static_cast<double>(p));
      std::size_t j = 0;
      while (static_cast<double>(used[j + 1]) <= a) ++j;
      const double variance = (static_cast<double>(used[j + 1]) - a) * (a - static_cast<double>(used[j]));
      EXPECT_LT(std::fabs(sum), 5 * std::sqrt(n * variance) + 1e-6 * n * a) << levels.bits << " " << p;
      EXPECT_NEAR(squares / n, variance, 0.1 * variance + 20 / n) << levels.bits << " " << p;
    }
  }
}

TEST(Quantize, EveryElementDrawsForItself) {
  const auto executor = make_cpu_executor(1);
  const auto levels = QuantizationLevels::uniform(2);
  std::vector<float> gradient(4096, 0.5f);
  gradient[0] = 1.0f;
  std::vector<float> norms(1);
  std::vector<std::uint64_t> codes[2] = {room(4096, 2), room(4096, 2)};
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    quantize_chunks(*executor, random_stream(1, 1, 1, RandomPurpose::rounding, rank), levels,
                    QuantizationNorm::largest, 4096, gradient, {}, norms, codes[rank]);
  }
  // Agreement between words, and between ranks, is that of fair coins: 32 of 64, within 6 sigma.
  for (std::size_t a = 0; a < 64; ++a) {
    for (std::size_t b = 0; b < a; ++b) {
      EXPECT_NEAR(std::popcount(codes[0][2 * a + 1] ^ codes[0][2 * b + 1]), 32, 24);
    }
    EXPECT_NEAR(std::popcount(codes[0][2 * a + 1] ^ codes[1][2 * a + 1]), 32, 24);
  }
}

TEST(QuantizationLevels, RefuseWhatCannotBe) {
  EXPECT_THROW(QuantizationLevels::uniform(0), std::invalid_argument);
  EXPECT_THROW(QuantizationLevels::uniform(1), std::invalid_argument);
  EXPECT_THROW(QuantizationLevels::uniform(9), std::invalid_argument);
  EXPECT_THROW(QuantizationLevels::halving(1), std::invalid_argument);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const auto& values : std::vector<std::vector<float>>{{},
                                                            {0},
                                                            {0, 0.5f, 1},
                                                            {0, 0.5f},
                                                            {0.1f, 1},
                                                            {0, 0.5f, 0.5f, 1},
                                                            {0, 0.6f, 0.5f, 1},
                                                            {0, nan, 0.5f, 1},
                                                            {0, 0.5f, nan, 1},
                                                            {0, 0.5f, 2, 1},
                                                            {0, 0.5f, 0.6f, nan}}) {
    EXPECT_THROW(QuantizationLevels::given(values), std::invalid_argument);
  }
  const std::vector<float> right = {0, 0.25f, 0.5f, 1};
  EXPECT_EQ(QuantizationLevels::given(right).bits, 3u);
}

}  // namespace
}  // namespace thinwire
