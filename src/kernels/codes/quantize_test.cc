#include "kernels/codes/quantize.h"
#include "kernels/codes/dequantize.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "kernels/test_executors.h"
#include "kernels/test_vectors.h"

namespace thinwire::quantize_test {
namespace {

constexpr std::size_t kChunk = 1280;

/// Powers of 3/4, without 0.
QuantizationLevels without_zero(std::size_t bits) {
  std::vector<float> values(std::size_t{1} << (bits - 1));
  for (std::size_t j = 0; j < values.size(); ++j) {
    values[j] = std::pow(0.75f, static_cast<float>(values.size() - 1 - j));
  }
  return QuantizationLevels::given(values);
}

std::vector<QuantizationLevels> all_levels() {
  std::vector<QuantizationLevels> all;
  for (std::size_t bits = QuantizationLevels::kLeastBits; bits <= QuantizationLevels::kMostBits; ++bits) {
    all.push_back(QuantizationLevels::uniform(bits));
    all.push_back(QuantizationLevels::halving(bits));
    all.push_back(without_zero(bits));
  }
  const std::size_t random = all.size();
  for (std::size_t i = 0; i < random; ++i) {
    if (all[i].bits > 4) continue;
    all.push_back(all[i]);
    all.back().nearest = true;
  }
  return all;
}

/// The definition in quantize.h, in double where the kernel has 16 bits and a rare second look.
unsigned scalar_code(const QuantizationLevels& levels, const RandomStream& stream, std::size_t element,
                     float p, float norm) {
  const float inverse = norm < std::numeric_limits<float>::min() ? 0.0f : 1.0f / norm;
  unsigned j = 0;
  float y = 0;
  bool crosses = false;
  if (levels.equal_steps) {
    const float scale = levels.last() * 65536.0f;
    y = std::min(std::fabs(p) * inverse * scale, scale);
  } else {
    const float a = std::min(std::fabs(p) * inverse, 1.0f);
    crosses = a < levels.values[0];
    for (unsigned k = 1; k < levels.count() && levels.values[k] <= a; ++k) j = k;
    const float slope = j + 1 == levels.count()
                            ? 0.0f
                            : std::min(65536.0f / (levels.values[j + 1] - levels.values[j]), 0x1p126f);
    y = crosses ? (a + levels.values[0]) * (32768.0f / levels.values[0])
                : std::min((a - levels.values[j]) * slope, 65536.0f);
  }
  const std::size_t i = element % 128;
  const auto block = static_cast<std::uint32_t>(element / 128 * 16 + i % 16);
  const std::uint32_t word = stream.block(block, 0)[i % 64 / 16];
  const double coarse = i < 64 ? word & 0xFFFF : word >> 16;
  const std::uint32_t fine = stream.block(block, static_cast<std::uint32_t>(1 + i / 64))[i % 64 / 16] >> 8;
  const double u = coarse + static_cast<double>(fine) * 0x1p-24;
  const double sum =
      levels.nearest ? std::nearbyint(static_cast<double>(y)) + 32768 : static_cast<double>(y) + u;
  const auto up = static_cast<unsigned>(std::floor(sum / 65536));
  const unsigned sign = std::signbit(p) ? 1u : 0u;
  return crosses ? (up != 0 ? sign : 1 - sign) : (j + up) << 1 | sign;
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
  for_each_executor([&](Executor& executor, const std::string& target) {
    for (const auto& levels : all_levels()) {
      for (const std::size_t count : kTestSizes) {
        if (count > 5000 && levels.bits != 3) continue;
        // The emulation of a device is slow.
        if (count > 5000 && executor.memory() == Memory::cuda && levels.has_zero()) continue;
        for (const bool with_residual : {false, true}) {
          if (count > 5000 && !with_residual) continue;
          SCOPED_TRACE(testing::Message() << target << ", " << levels.bits << " bits, " << count);
          const auto gradient = test_values(count, 1);
          const auto residual = with_residual ? test_values(count, 2) : std::vector<float>();
          std::vector<float> norms(chunk_count(count, kChunk));
          auto codes = room(count, levels.bits);
          ASSERT_TRUE(quantize_chunks(executor, stream, levels, QuantizationNorm::largest, kChunk,
                                      Placed(executor, gradient), Placed(executor, residual), norms, codes));
          for (std::size_t i = 0; i < count; ++i) {
            const float p = with_residual ? gradient[i] + residual[i] : gradient[i];
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
          Placed placed_values(executor, std::vector<float>(count, 1.0f));
          Placed placed_sums(executor, std::vector<float>(count, 1.0f));
          const QuantizationScales scales{.chunk = kChunk};
          dequantize(executor, levels, scales, norms, codes, 0, false, placed_values);
          dequantize(executor, levels, scales, norms, codes, 0, true, placed_sums);
          const auto values = placed_values.read();
          const auto sums = placed_sums.read();
          for (std::size_t i = 0; i < count; ++i) {
            const float value = scalar_value(levels, code_at(codes, levels.bits, i), norms[i / kChunk]);
            ASSERT_EQ(values[i], value) << i;
            ASSERT_EQ(sums[i], 1.0f + value) << i;
            ASSERT_LE(std::fabs(value), norms[i / kChunk]);
          }
          for (const std::size_t first : {64u, 1216u, 1280u, 4032u}) {
            for (const std::size_t length : {1u, 64u, 100u, 2048u}) {
              if (first + length > count) continue;
              Placed placed_part(executor, std::vector<float>(length));
              dequantize(executor, levels, scales, norms, codes, first, false, placed_part);
              const auto part = placed_part.read();
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
  for_each_executor([&](Executor& executor, const std::string& target) {
    for (const auto& levels :
         {QuantizationLevels::uniform(2), QuantizationLevels::halving(4), without_zero(3)}) {
      for (const auto& ends :
           std::vector<std::vector<std::size_t>>{{5000},
                                                 {1, 2, 3, 5000},
                                                 {128, 256, 5000},
                                                 {0, 0, 100, 100, 190, 1000, 1003, 4999, 5000, 5000}}) {
        const auto gradient = test_values(5000, 1);
        const auto residual = test_values(5000, 2);
        std::vector<float> norms(ends.size());
        for (std::size_t c = 0; c < norms.size(); ++c) norms[c] = 0.25f * static_cast<float>(c);
        auto codes = room(5000, levels.bits);
        quantize_ranges(executor, stream, levels, ends, norms, Placed(executor, gradient),
                        Placed(executor, residual), codes);
        Placed placed_values(executor, std::vector<float>(5000));
        dequantize(executor, levels, {.ends = ends}, norms, codes, 0, false, placed_values);
        const auto values = placed_values.read();
        std::size_t range = 0;
        for (std::size_t i = 0; i < 5000; ++i) {
          while (i >= ends[range]) ++range;
          const float p = gradient[i] + residual[i];
          ASSERT_EQ(code_at(codes, levels.bits, i), scalar_code(levels, stream, i, p, norms[range]))
              << target << " " << i;
          ASSERT_EQ(values[i], scalar_value(levels, code_at(codes, levels.bits, i), norms[range]));
        }
        for (std::size_t first = 0; first + 64 <= 5000; first += 192) {
          Placed placed_part(executor, std::vector<float>(std::min<std::size_t>(1000, 5000 - first)));
          dequantize(executor, levels, {.ends = ends}, norms, codes, first, false, placed_part);
          const auto part = placed_part.read();
          for (std::size_t i = 0; i < part.size(); ++i) ASSERT_EQ(part[i], values[first + i]) << first;
        }
      }
    }
  });
}

/// From chunks that many share a block to such as many blocks share.
TEST(Quantize, ChunksOfAnySize) {
  const RandomStream stream = random_stream(3, 1, 4, RandomPurpose::rounding, 1);
  const auto gradient = test_values(25'003, 1);
  for (const auto& levels : {QuantizationLevels::uniform(2), QuantizationLevels::halving(4)}) {
    for (const std::size_t chunk : {128u, 384u, 8192u, 10'240u, 10'368u, 1u << 20}) {
      std::vector<float> norms(chunk_count(gradient.size(), chunk));
      auto codes = room(gradient.size(), levels.bits);
      for_each_executor([&](Executor& executor, const std::string& target) {
        std::fill(codes.begin(), codes.end(), ~std::uint64_t{0});
        ASSERT_TRUE(quantize_chunks(executor, stream, levels, QuantizationNorm::largest, chunk,
                                    Placed(executor, gradient), {}, norms, codes));
        for (std::size_t i = 0; i < gradient.size(); ++i) {
          ASSERT_EQ(code_at(codes, levels.bits, i),
                    scalar_code(levels, stream, i, gradient[i], norms[i / chunk]))
              << target << " " << chunk << " " << i;
        }
        for (std::size_t c = 0; c < norms.size(); ++c) {
          float largest = 0;
          for (std::size_t i = c * chunk; i < std::min(gradient.size(), (c + 1) * chunk); ++i) {
            largest = std::max(largest, std::fabs(gradient[i]));
          }
          ASSERT_EQ(norms[c], largest) << target << " " << chunk;
        }
      });
    }
  }
}

TEST(Quantize, L2NormsAreNormsAndBoundTheValues) {
  const RandomStream stream = random_stream(3, 1, 4, RandomPurpose::rounding, 1);
  for_each_executor([&](Executor& executor, const std::string& target) {
    const auto levels = QuantizationLevels::halving(4);
    for (const std::size_t chunk : {kChunk, std::size_t{12'800}}) {
      for (const std::size_t count : kTestSizes) {
        const auto gradient = test_values(count, 1);
        std::vector<float> norms(chunk_count(count, chunk));
        auto codes = room(count, levels.bits);
        ASSERT_TRUE(quantize_chunks(executor, stream, levels, QuantizationNorm::l2, chunk,
                                    Placed(executor, gradient), {}, norms, codes));
        for (std::size_t c = 0; c < norms.size(); ++c) {
          double squares = 0;
          for (std::size_t i = c * chunk; i < std::min(count, (c + 1) * chunk); ++i) {
            squares += static_cast<double>(gradient[i]) * static_cast<double>(gradient[i]);
          }
          ASSERT_NEAR(static_cast<double>(norms[c]), std::sqrt(squares), 1e-6 * std::sqrt(squares) + 1e-37)
              << target;
        }
        for (std::size_t i = 0; i < count; ++i) {
          ASSERT_EQ(code_at(codes, levels.bits, i),
                    scalar_code(levels, stream, i, gradient[i], norms[i / chunk]))
              << target;
        }
      }
    }
  });
}

TEST(Quantize, ValuesThatAreNotFiniteAreSeenWhereverTheyStand) {
  const RandomStream stream = random_stream(1, 1, 1, RandomPurpose::rounding);
  const auto levels = QuantizationLevels::uniform(3);
  for_each_executor([&](Executor& executor, const std::string& target) {
    for (const float bad :
         {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
          std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::quiet_NaN()}) {
      for (const std::size_t place : {0u, 5u, 31u, 1279u, 1280u, 2999u}) {
        for (const auto norm : {QuantizationNorm::largest, QuantizationNorm::l2}) {
          auto values = test_values(3000, 1);
          values[place] = bad;
          Placed gradient(executor, values);
          std::vector<float> norms(3);
          auto codes = room(3000, 3);
          for (const std::size_t chunk : {kChunk, std::size_t{1} << 20}) {
            EXPECT_FALSE(quantize_chunks(executor, stream, levels, norm, chunk, gradient, {},
                                         Span<float>(norms).first(chunk_count(3000, chunk)), codes))
                << target << " " << place << " " << bad;
          }
          EXPECT_FALSE(std::isfinite(largest_magnitude(executor, gradient, {}))) << target;
        }
      }
    }
  });
}

TEST(Quantize, RangesAreMeasured) {
  const std::vector<std::size_t> ends = {0, 7, 7, 100, 20'100, 90'000, 90'003};
  const auto g = test_values(ends.back(), 1);
  const auto r = test_values(ends.back(), 2);
  for_each_executor([&](Executor& executor, const std::string& name) {
    std::vector<float> largest(ends.size(), -1.0f), alone(ends.size(), -1.0f);
    std::vector<double> squares(ends.size(), -1.0);
    Placed gradient(executor, g);
    Placed residual(executor, r);
    measure_ranges(executor, ends, gradient, residual, largest, squares);
    measure_ranges(executor, ends, gradient, residual, alone, {});
    EXPECT_EQ(alone, largest) << name;
    std::size_t i = 0;
    for (std::size_t range = 0; range < ends.size(); ++range) {
      float most = 0;
      double sum = 0;
      for (; i < ends[range]; ++i) {
        const float p = g[i] + r[i];
        most = std::max(most, std::fabs(p));
        sum += static_cast<double>(p) * static_cast<double>(p);
      }
      EXPECT_EQ(largest[range], most) << name << " " << range;
      EXPECT_NEAR(squares[range], sum, 1e-5 * sum) << name << " " << range;
    }
    EXPECT_EQ(largest_magnitude(executor, gradient, residual),
              *std::max_element(largest.begin(), largest.end()));
  });
}

TEST(Quantize, AverageAddsVectorsInTheirOrder) {
  const auto host = make_cpu_executor(1);
  const std::vector<std::size_t> ends = {3, 64, 1100, 4000, 4097};
  constexpr std::size_t kCount = 4097;
  constexpr std::size_t kSelf = 1;
  const auto g = test_values(kCount, 10);
  const auto r = test_values(kCount, 11);
  for (const auto& levels :
       {QuantizationLevels::uniform(2), without_zero(5), QuantizationLevels::halving(8)}) {
    for (const bool in_ranges : {false, true}) {
      const QuantizationScales scales =
          in_ranges ? QuantizationScales{.ends = ends} : QuantizationScales{.chunk = kChunk};
      const std::size_t ranges = in_ranges ? ends.size() : chunk_count(kCount, kChunk);
      std::vector<std::vector<float>> norms;
      std::vector<std::vector<std::uint64_t>> codes;
      std::vector<QuantizedVector> vectors;
      std::vector<float> sums(kCount), own(kCount), values(kCount);
      for (std::size_t rank = 0; rank < 3; ++rank) {
        norms.emplace_back(ranges);
        for (std::size_t c = 0; c < ranges; ++c) {
          norms.back()[c] = 0.3f * static_cast<float>(c + rank * rank);
        }
        std::mt19937_64 random(rank);
        codes.push_back(room(kCount, levels.bits));
        for (auto& word : codes.back()) word = random();
        dequantize(*host, levels, scales, norms.back(), codes.back(), 0, false, values);
        for (std::size_t i = 0; i < kCount; ++i) sums[i] = rank == 0 ? values[i] : sums[i] + values[i];
        if (rank == kSelf) own = values;
      }
      for (std::size_t rank = 0; rank < 3; ++rank) vectors.push_back({norms[rank], codes[rank]});
      std::vector<float> left(kCount);
      double squares = 0;
      for (std::size_t i = 0; i < kCount; ++i) {
        sums[i] *= 1.0f / 3.0f;
        left[i] = g[i] + r[i] - own[i];
        squares += static_cast<double>(left[i]) * static_cast<double>(left[i]);
      }
      for_each_executor([&](Executor& executor, const std::string& name) {
        Placed gradient(executor, g);
        Placed residual(executor, r);
        Placed without(executor, g);
        const double returned =
            average_dequantized(executor, levels, scales, vectors, kSelf, gradient, residual);
        EXPECT_EQ(average_dequantized(executor, levels, scales, vectors, kSelf, without, {}), 0) << name;
        EXPECT_EQ(gradient.read(), sums) << name;
        EXPECT_EQ(without.read(), sums) << name;
        EXPECT_EQ(residual.read(), left) << name;
        EXPECT_NEAR(returned, squares, 1e-5 * squares) << name;
      });
    }
  }
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
    dequantize(*executor, levels, {.chunk = kChunk}, norms, codes, 0, false, decoded);
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
        QuantizationLevels::halving(5), QuantizationLevels::halving(7), QuantizationLevels::uniform(8),
        without_zero(2), without_zero(3), without_zero(5), without_zero(7)}) {
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
        dequantize(*executor, levels, {.chunk = kCopies}, norms, codes, 0, false, decoded);
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
      const auto low = static_cast<double>(used[j]);
      const double variance =
          a < low ? low * low - a * a : (static_cast<double>(used[j + 1]) - a) * (a - low);
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
                                                            {-0.1f, 1},
                                                            {1, 1},
                                                            {nan, 1},
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
}  // namespace thinwire::quantize_test
