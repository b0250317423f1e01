// Written with the processor's own names: the oldest Highway that the library builds with does not know its
// bfloat16. Pairs of bfloat16 are what is multiplied, so operands are packed as 32-bit words of two: of a row
// those of neighbouring columns, of a panel those of neighbouring rows.

#include "kernels/dense/bf16_products.h"

#include <hwy/targets.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <stdexcept>
#include <vector>

#include "kernels/blocks.h"
#include "kernels/dense/panels.h"

#if defined(__x86_64__) && defined(__GNUC__) && (defined(__clang__) || __GNUC__ >= 10)
#define THINWIRE_BF16_PRODUCTS 1
#include <immintrin.h>
#define THINWIRE_BF16 __attribute__((target("avx512f,avx512bw,avx512bf16")))
#define THINWIRE_BF16_INLINE __attribute__((target("avx512f,avx512bw,avx512bf16"), always_inline)) inline
#endif

namespace thinwire {

#ifdef THINWIRE_BF16_PRODUCTS
namespace {

using Pairs = std::uint32_t;  ///< Two bfloat16, the first one in the lower half.

constexpr std::size_t kLanes = 16;
constexpr std::size_t kRows = 8;     ///< Of a matrix, that are multiplied with a factor at a time.
constexpr std::size_t kHeight = 64;  ///< Rows of a block of panels.
constexpr std::size_t kBand = 2048;  ///< Columns whose packed operands stay in the second-level cache.
constexpr std::size_t kFactors = 4;  ///< Columns of a factor that are multiplied with a panel at a time.

/// What is multiplied: `values`, to which `added` (unless null) is added first.
struct Source {
  float* values;
  const float* added;
  bool checks;
  float limit;
  std::size_t columns;
};

inline __mmask16 lanes_of(std::size_t count) {
  return static_cast<__mmask16>(count >= kLanes ? 0xffffu : (1u << count) - 1);
}

/// Up to 16 elements; `beyond` becomes more than 0 where one is not within the limit. What `ahead` elements
/// further on will be read soon.
THINWIRE_BF16_INLINE __m512 take(const Source& source, std::size_t at, __mmask16 lanes, std::size_t ahead,
                                 __mmask16& beyond) {
  _mm_prefetch(reinterpret_cast<const char*>(source.values + at + ahead), _MM_HINT_T1);
  __m512 p = _mm512_maskz_loadu_ps(lanes, source.values + at);
  if (source.added != nullptr) {
    _mm_prefetch(reinterpret_cast<const char*>(source.added + at + ahead), _MM_HINT_T1);
    p = _mm512_add_ps(p, _mm512_maskz_loadu_ps(lanes, source.added + at));
    _mm512_mask_storeu_ps(source.values + at, lanes, p);
  }
  if (source.checks) {
    beyond |= _mm512_cmp_ps_mask(_mm512_abs_ps(p), _mm512_set1_ps(source.limit), _CMP_NLE_UQ);
  }
  return p;
}

THINWIRE_BF16_INLINE __m512i pairs_of(__m512 first, __m512 second) {
  return reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(second, first));
}

/// Pairs of one row's neighbouring columns, an even number of vectors of them.
THINWIRE_BF16 bool pack_row(const Source& source, std::size_t at, std::size_t count, Pairs* to) {
  __mmask16 beyond = 0;
  const std::size_t ahead = kRows * source.columns;
  for (std::size_t j = 0; j < count; j += 2 * kLanes, to += kLanes) {
    const __m512 first = take(source, at + j, lanes_of(count - j), ahead, beyond);
    const std::size_t rest = count - j > kLanes ? count - j - kLanes : 0;
    const __m512 second =
        rest == 0 ? _mm512_setzero_ps() : take(source, at + j + kLanes, lanes_of(rest), ahead, beyond);
    _mm512_storeu_si512(to, pairs_of(first, second));
  }
  return beyond == 0;
}

/// A factor's rows [first, first + count) as pairs of neighbouring ones: [pair][width], 0 behind the last
/// column.
THINWIRE_BF16 void pack_factor(const float* factor, std::size_t stride, std::size_t rank, std::size_t count,
                               std::size_t width, Pairs* to) {
  const std::size_t pairs = (count + 1) / 2;
  alignas(64) Pairs words[kLanes];
  __mmask16 unused = 0;
  std::fill_n(to, pairs * width, 0u);
  for (std::size_t k = 0; k < rank; ++k) {
    const Source column{const_cast<float*>(factor + k * stride), nullptr, false, 0, 0};
    for (std::size_t j = 0; j < count; j += 2 * kLanes) {
      const std::size_t rest = count - j > kLanes ? count - j - kLanes : 0;
      const __m512 first = take(column, j, lanes_of(count - j), 0, unused);
      const __m512 second =
          rest == 0 ? _mm512_setzero_ps() : take(column, j + kLanes, lanes_of(rest), 0, unused);
      _mm512_store_si512(words, pairs_of(first, second));
      for (std::size_t pair = 0; pair < std::min(kLanes, pairs - j / 2); ++pair) {
        to[(j / 2 + pair) * width + k] = words[pair];
      }
    }
  }
}

/// sums [kRows][kVectors * kLanes] = packed rows times a packed factor.
template <std::size_t kVectors>
THINWIRE_BF16 void multiply_rows(const Pairs* rows, std::size_t stride, const Pairs* factor,
                                 std::size_t width, std::size_t pairs, float* sums) {
  __m512 sum[kRows][kVectors];
#pragma GCC unroll 8
  for (std::size_t r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
    for (std::size_t v = 0; v < kVectors; ++v) sum[r][v] = _mm512_setzero_ps();
  }
  for (std::size_t j = 0; j < pairs; ++j, factor += width) {
    __m512bh q[kVectors];
#pragma GCC unroll 2
    for (std::size_t v = 0; v < kVectors; ++v) {
      q[v] = reinterpret_cast<__m512bh>(_mm512_loadu_si512(factor + v * kLanes));
    }
#pragma GCC unroll 8
    for (std::size_t r = 0; r < kRows; ++r) {
      const auto m = reinterpret_cast<__m512bh>(_mm512_set1_epi32(static_cast<int>(rows[r * stride + j])));
#pragma GCC unroll 2
      for (std::size_t v = 0; v < kVectors; ++v) sum[r][v] = _mm512_dpbf16_ps(sum[r][v], m, q[v]);
    }
  }
#pragma GCC unroll 8
  for (std::size_t r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
    for (std::size_t v = 0; v < kVectors; ++v) {
      _mm512_storeu_ps(sums + (r * kVectors + v) * kLanes, sum[r][v]);
    }
  }
}

/// Up to kRows packed rows times a packed factor, to rows from `left` on; `rows`: of the matrix.
void multiply_packed_rows(const Pairs* packed, std::size_t stride, std::size_t height, const Pairs* factor,
                          std::size_t rank, std::size_t pairs, bool adds, float* left, std::size_t rows) {
  const std::size_t width = (rank + kLanes - 1) / kLanes * kLanes;
  alignas(64) float sums[kRows * 2 * kLanes];
  std::size_t vectors = 0;
  for (std::size_t k = 0; k < rank; k += vectors * kLanes) {
    vectors = rank - k > kLanes ? 2 : 1;
    if (vectors == 2) {
      multiply_rows<2>(packed, stride, factor + k, width, pairs, sums);
    } else {
      multiply_rows<1>(packed, stride, factor + k, width, pairs, sums);
    }
    for (std::size_t c = 0; c < std::min(vectors * kLanes, rank - k); ++c) {
      float* const to = left + (k + c) * rows;
      for (std::size_t r = 0; r < height; ++r) {
        const float sum = sums[r * vectors * kLanes + c];
        to[r] = adds ? to[r] + sum : sum;
      }
    }
  }
}

/// What a thread keeps for packed operands.
Pairs* kept_pairs(std::size_t count) {
  thread_local std::vector<Pairs> room;
  if (room.size() < count) room.resize(count);
  return room.data();
}

/// Rows [begin, end) of left = source right.
bool multiply_right_range(const Source& source, std::size_t rows, std::size_t rank, const float* right,
                          float* left, std::size_t begin, std::size_t end) {
  const std::size_t width = (rank + kLanes - 1) / kLanes * kLanes;
  const std::size_t band = std::min(kBand, source.columns);
  const std::size_t stride = (band + 2 * kLanes - 1) / (2 * kLanes) * kLanes;
  Pairs* const packed = kept_pairs(kRows * stride + stride * width);
  Pairs* const factor = packed + kRows * stride;
  std::fill_n(packed, kRows * stride, 0u);
  bool within = true;
  for (std::size_t first = 0; first < source.columns; first += band) {
    const std::size_t count = std::min(band, source.columns - first);
    pack_factor(right + first, source.columns, rank, count, width, factor);
    for (std::size_t i = begin; i < end; i += kRows) {
      const std::size_t height = std::min(kRows, end - i);
      for (std::size_t r = 0; r < height; ++r) {
        within = pack_row(source, (i + r) * source.columns + first, count, packed + r * stride) && within;
      }
      multiply_packed_rows(packed, stride, height, factor, rank, (count + 1) / 2, first != 0, left + i, rows);
    }
  }
  return within;
}

/// Panels of kPanel columns, [panel][pair of rows][kPanel], of `height` rows and `count` columns.
THINWIRE_BF16 bool pack_panels(const Source& source, std::size_t at, std::size_t height, std::size_t count,
                               Pairs* panels) {
  // Two rows' elements by turns.
  const __m512i by_turns = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23,
                                            7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  const std::size_t pairs = (height + 1) / 2;
  const std::size_t ahead = kHeight / 4 * source.columns;
  __mmask16 beyond = 0;
  for (std::size_t pair = 0; pair < pairs; ++pair) {
    const std::size_t row = at + 2 * pair * source.columns;
    const bool two = 2 * pair + 1 < height;
    for (std::size_t j = 0; j < count; j += kLanes) {
      const __mmask16 lanes = lanes_of(count - j);
      const __m512 first = take(source, row + j, lanes, ahead, beyond);
      const __m512 second =
          two ? take(source, row + source.columns + j, lanes, ahead, beyond) : _mm512_setzero_ps();
      Pairs* const to = panels + (j / kPanel * pairs + pair) * kPanel + j % kPanel;
      _mm512_storeu_si512(to, _mm512_permutexvar_epi16(by_turns, pairs_of(first, second)));
    }
  }
  return beyond == 0;
}

/// sums [kColumns][kPanel] += a panel's rows times the factor's. Rows of `factor` are `width` long.
template <std::size_t kColumns>
THINWIRE_BF16 void multiply_panel(const Pairs* panel, std::size_t pairs, const Pairs* factor,
                                  std::size_t width, float* sums) {
  constexpr std::size_t kVectors = kPanel / kLanes;
  __m512 sum[kColumns][kVectors];
#pragma GCC unroll 4
  for (std::size_t c = 0; c < kColumns; ++c) {
#pragma GCC unroll 4
    for (std::size_t v = 0; v < kVectors; ++v) sum[c][v] = _mm512_loadu_ps(sums + c * kPanel + v * kLanes);
  }
  for (std::size_t i = 0; i < pairs; ++i, panel += kPanel, factor += width) {
    __m512bh m[kVectors];
#pragma GCC unroll 4
    for (std::size_t v = 0; v < kVectors; ++v) {
      m[v] = reinterpret_cast<__m512bh>(_mm512_loadu_si512(panel + v * kLanes));
    }
#pragma GCC unroll 4
    for (std::size_t c = 0; c < kColumns; ++c) {
      const auto by = reinterpret_cast<__m512bh>(_mm512_set1_epi32(static_cast<int>(factor[c])));
#pragma GCC unroll 4
      for (std::size_t v = 0; v < kVectors; ++v) sum[c][v] = _mm512_dpbf16_ps(sum[c][v], m[v], by);
    }
  }
#pragma GCC unroll 4
  for (std::size_t c = 0; c < kColumns; ++c) {
#pragma GCC unroll 4
    for (std::size_t v = 0; v < kVectors; ++v) _mm512_storeu_ps(sums + c * kPanel + v * kLanes, sum[c][v]);
  }
}

/// Columns [begin, begin + count) of right = source^T left, at most kBand.
bool multiply_left_band(const Source& source, std::size_t rows, std::size_t rank, const float* left,
                        float* right, std::size_t begin, std::size_t count) {
  const std::size_t width = (rank + kLanes - 1) / kLanes * kLanes;
  const std::size_t padded = (count + kPanel - 1) / kPanel * kPanel;
  Pairs* const panels = kept_pairs((padded + width) * kHeight / 2);
  Pairs* const factor = panels + padded * kHeight / 2;
  float* const all_sums = kept_room(padded * width);
  // Words behind the last column are multiplied, too.
  std::fill_n(panels, padded * kHeight / 2, 0u);
  std::fill_n(all_sums, padded * width, 0.0f);
  bool within = true;
  for (std::size_t i = 0; i < rows; i += kHeight) {
    const std::size_t height = std::min(kHeight, rows - i);
    const std::size_t pairs = (height + 1) / 2;
    pack_factor(left + i, rows, rank, height, width, factor);
    within = pack_panels(source, i * source.columns + begin, height, count, panels) && within;
    for (std::size_t j = 0; j < padded; j += kPanel) {
      for (std::size_t k = 0; k < rank; k += kFactors) {
        multiply_panel<kFactors>(panels + j * pairs, pairs, factor + k, width,
                                 all_sums + j * width + k * kPanel);
      }
    }
  }
  for (std::size_t j = 0; j < count; j += kPanel) {
    for (std::size_t k = 0; k < rank; ++k) {
      std::copy_n(all_sums + j * width + k * kPanel, std::min(kPanel, count - j),
                  right + k * source.columns + begin + j);
    }
  }
  return within;
}

Source source_of(MatrixShape shape, Span<float> gradient, Span<const float> residual, float limit) {
  return {gradient.data(), data_at(residual), !std::isinf(limit), limit, shape.columns};
}

}  // namespace

/// Where a build leaves AVX-512 out, as those for sanitizers and devices do, bfloat16 is left out with it.
bool has_bf16_products(const Executor& executor) {
  static const bool known =
      __builtin_cpu_supports("avx512bf16") != 0 && __builtin_cpu_supports("avx512bw") != 0;
  return known && executor.memory() == Memory::host &&
         (hwy::SupportedTargets() & HWY_TARGETS & (HWY_AVX3 | HWY_AVX3_DL)) != 0;
}

bool add_and_multiply_right(Executor& executor, MatrixShape shape, std::size_t rank, Span<float> gradient,
                            Span<const float> residual, float limit, Span<const float> right,
                            Span<float> left) {
  const Source source = source_of(shape, gradient, residual, limit);
  return all_of_ranges(executor, shape.rows, kRowBlock, [&](std::size_t begin, std::size_t end) {
    return multiply_right_range(source, shape.rows, rank, right.data(), left.data(), begin, end);
  });
}

bool add_and_multiply_left(Executor& executor, MatrixShape shape, std::size_t rank, Span<float> gradient,
                           Span<const float> residual, float limit, Span<const float> left,
                           Span<float> right) {
  const Source source = source_of(shape, gradient, residual, limit);
  return all_of_ranges(executor, shape.columns, kColumnBlock, [&](std::size_t begin, std::size_t end) {
    bool within = true;
    for (std::size_t j = begin; j < end; j += kBand) {
      within = multiply_left_band(source, shape.rows, rank, left.data(), right.data(), j,
                                  std::min(kBand, end - j)) &&
               within;
    }
    return within;
  });
}

#else

bool has_bf16_products(const Executor&) {
  return false;
}

bool add_and_multiply_right(Executor&, MatrixShape, std::size_t, Span<float>, Span<const float>, float,
                            Span<const float>, Span<float>) {
  throw std::logic_error("products of bfloat16 on a processor without: ask has_bf16_products()");
}

bool add_and_multiply_left(Executor&, MatrixShape, std::size_t, Span<float>, Span<const float>, float,
                           Span<const float>, Span<float>) {
  throw std::logic_error("products of bfloat16 on a processor without: ask has_bf16_products()");
}

#endif

}  // namespace thinwire
