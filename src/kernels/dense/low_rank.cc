#include "kernels/dense/low_rank.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <vector>

#include "kernels/blocks.h"
#include "kernels/device/on_device.h"

#include <hwy/cache_control.h>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/dense/low_rank.cc"
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>

#include "kernels/bits-inl.h"

#ifndef THINWIRE_KERNELS_LOW_RANK_ONCE
#define THINWIRE_KERNELS_LOW_RANK_ONCE
namespace thinwire {

/// Columns of a panel of the right factor: the cache's first level holds one of rank 64.
constexpr std::size_t kPanel = 64;
/// Floats of a band's panels: two of them fit the second level.
constexpr std::size_t kBandFloats = 1 << 16;

/// Whole panels of a band.
inline std::size_t band_columns(std::size_t rank) {
  return std::max<std::size_t>(1, kBandFloats / (kPanel * rank)) * kPanel;
}

/// Rows that are multiplied with a panel at a time.
constexpr std::size_t kPanelRows = 32;
constexpr std::size_t kLine = 16;  ///< Floats of a line of the cache.
constexpr std::size_t kAhead = 2;  ///< Panels.

/// Rows and columns that one task works on: 4 KB of a row, so that memory is read in long runs while the
/// factors stay in the first-level cache.
constexpr std::size_t kColumnBlock = 1024;
constexpr std::size_t kRowBlock = 16;

/// Of a dot product.
constexpr std::size_t kPartialSums = 8;

/// What a thread keeps from call to call, at least `floats`.
inline float* kept_room(std::size_t floats) {
  thread_local std::vector<float> room;
  if (room.size() < floats) room.resize(floats);
  return room.data();
}

/// Where a block's part of two factors lies; strides from one of their columns to the next.
struct FactorsOfBlock {
  const float* left;
  std::size_t left_stride;
  const float* right;
  std::size_t right_stride;
};

}  // namespace thinwire
#endif

HWY_BEFORE_NAMESPACE();
namespace thinwire::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using FloatTag = HWY_CAPPED(float, 16);

/// Columns whose products are summed in float before they go into a double; their part of `right` stays in
/// the first-level cache for ranks up to 4.
constexpr std::size_t kRun = 2048;

/// Dot products of one row with one column of right, over `count` elements.
HWY_INLINE double Dot(const float* HWY_RESTRICT row, const float* HWY_RESTRICT column, std::size_t count) {
  const FloatTag d;
  const std::size_t lanes = hn::Lanes(d);
  auto sum = hn::Zero(d);
  std::size_t j = 0;
  for (; j + lanes <= count; j += lanes) {
    sum = hn::MulAdd(hn::LoadU(d, row + j), hn::LoadU(d, column + j), sum);
  }
  auto total = static_cast<double>(hn::GetLane(hn::SumOfLanes(d, sum)));
  for (; j < count; ++j) total += static_cast<double>(row[j]) * static_cast<double>(column[j]);
  return total;
}

/// Sixteen sums need more registers than some instruction sets have.
constexpr bool kManyRegisters = HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL || HWY_ARCH_ARM_A64;

constexpr std::size_t kRowsAtOnce = kManyRegisters ? 8 : 4;

/// Sums of one row's products with four columns.
template <class V>
struct DotsOfRow {
  V s0, s1, s2, s3;

  HWY_INLINE void Add(V m, V q0, V q1, V q2, V q3) {
    s0 = hn::MulAdd(m, q0, s0);
    s1 = hn::MulAdd(m, q1, s1);
    s2 = hn::MulAdd(m, q2, s2);
    s3 = hn::MulAdd(m, q3, s3);
  }
};

/// kRows (2 or 4) rows with four columns of right at once: eight sums for six loads, sixteen for eight. sums:
/// [row][column].
template <int kRows>
HWY_INLINE void DotsBy4(const float* HWY_RESTRICT row, std::size_t row_stride,
                        const float* HWY_RESTRICT right, std::size_t stride, std::size_t count,
                        double* HWY_RESTRICT sums) {
  const FloatTag d;
  const std::size_t lanes = hn::Lanes(d);
  const float* HWY_RESTRICT row1 = row + row_stride;
  const float* HWY_RESTRICT row2 = row1 + row_stride;
  const float* HWY_RESTRICT row3 = row2 + row_stride;
  const float* HWY_RESTRICT right1 = right + stride;
  const float* HWY_RESTRICT right2 = right1 + stride;
  const float* HWY_RESTRICT right3 = right2 + stride;
  const auto zero = hn::Zero(d);
  DotsOfRow<hn::Vec<FloatTag>> dots{zero, zero, zero, zero};
  auto dots1 = dots, dots2 = dots, dots3 = dots;
  std::size_t j = 0;
  for (; j + lanes <= count; j += lanes) {
    const auto q0 = hn::LoadU(d, right + j);
    const auto q1 = hn::LoadU(d, right1 + j);
    const auto q2 = hn::LoadU(d, right2 + j);
    const auto q3 = hn::LoadU(d, right3 + j);
    dots.Add(hn::LoadU(d, row + j), q0, q1, q2, q3);
    dots1.Add(hn::LoadU(d, row1 + j), q0, q1, q2, q3);
    if constexpr (kRows == 4) {
      dots2.Add(hn::LoadU(d, row2 + j), q0, q1, q2, q3);
      dots3.Add(hn::LoadU(d, row3 + j), q0, q1, q2, q3);
    }
  }
  const auto add = [&](std::size_t at, auto sum, const float* values, const float* column) HWY_ATTR {
    auto total = static_cast<double>(hn::GetLane(hn::SumOfLanes(d, sum)));
    for (std::size_t k = j; k < count; ++k) {
      total += static_cast<double>(values[k]) * static_cast<double>(column[k]);
    }
    sums[at] += total;
  };
  const auto add_row = [&](std::size_t at, const auto& of_row, const float* values) HWY_ATTR {
    add(at, of_row.s0, values, right);
    add(at + 1, of_row.s1, values, right1);
    add(at + 2, of_row.s2, values, right2);
    add(at + 3, of_row.s3, values, right3);
  };
  add_row(0, dots, row);
  add_row(4, dots1, row1);
  if constexpr (kRows == 4) {
    add_row(8, dots2, row2);
    add_row(12, dots3, row3);
  }
}

/// Four rows with one column: four sums for five loads.
HWY_INLINE void Dots4x1(const float* HWY_RESTRICT row, std::size_t row_stride,
                        const float* HWY_RESTRICT column, std::size_t count, double* HWY_RESTRICT sums) {
  const FloatTag d;
  const std::size_t lanes = hn::Lanes(d);
  const float* HWY_RESTRICT row1 = row + row_stride;
  const float* HWY_RESTRICT row2 = row1 + row_stride;
  const float* HWY_RESTRICT row3 = row2 + row_stride;
  auto s0 = hn::Zero(d);
  auto s1 = s0, s2 = s0, s3 = s0;
  std::size_t j = 0;
  for (; j + lanes <= count; j += lanes) {
    const auto q = hn::LoadU(d, column + j);
    s0 = hn::MulAdd(hn::LoadU(d, row + j), q, s0);
    s1 = hn::MulAdd(hn::LoadU(d, row1 + j), q, s1);
    s2 = hn::MulAdd(hn::LoadU(d, row2 + j), q, s2);
    s3 = hn::MulAdd(hn::LoadU(d, row3 + j), q, s3);
  }
  const auto add = [&](std::size_t at, auto sum, const float* values) HWY_ATTR {
    auto total = static_cast<double>(hn::GetLane(hn::SumOfLanes(d, sum)));
    for (std::size_t k = j; k < count; ++k) {
      total += static_cast<double>(values[k]) * static_cast<double>(column[k]);
    }
    sums[at] += total;
  };
  add(0, s0, row);
  add(1, s1, row1);
  add(2, s2, row2);
  add(3, s3, row3);
}

/// As MultiplyRightWide with vectors along the rows of the matrix; begin is a multiple of 4.
void MultiplyRightNarrow(const float* HWY_RESTRICT matrix, std::size_t rows, std::size_t columns,
                         std::size_t rank, const float* HWY_RESTRICT right, float* HWY_RESTRICT left,
                         std::size_t begin, std::size_t end) {
  for (std::size_t i = begin; i < end; i += 4) {
    const std::size_t height = std::min<std::size_t>(4, end - i);
    const float* first = matrix + i * columns;
    std::size_t k = 0;
    for (; k + 4 <= rank && height == 4; k += 4) {
      double sums[16] = {};  // [row][column]
      for (std::size_t j = 0; j < columns; j += kRun) {
        const std::size_t count = std::min(kRun, columns - j);
        const float* columns_of_right = right + k * columns + j;
        if constexpr (kManyRegisters) {
          DotsBy4<4>(first + j, columns, columns_of_right, columns, count, sums);
        } else {
          DotsBy4<2>(first + j, columns, columns_of_right, columns, count, sums);
          DotsBy4<2>(first + 2 * columns + j, columns, columns_of_right, columns, count, sums + 8);
        }
      }
      for (std::size_t r = 0; r < 4; ++r) {
        for (std::size_t c = 0; c < 4; ++c)
          left[(k + c) * rows + i + r] = static_cast<float>(sums[4 * r + c]);
      }
    }
    for (; k < rank; ++k) {
      double sums[4] = {};
      for (std::size_t j = 0; j < columns; j += kRun) {
        const std::size_t count = std::min(kRun, columns - j);
        if (height == 4) {
          Dots4x1(first + j, columns, right + k * columns + j, count, sums);
          continue;
        }
        for (std::size_t r = 0; r < height; ++r) {
          sums[r] += Dot(first + r * columns + j, right + k * columns + j, count);
        }
      }
      for (std::size_t r = 0; r < height; ++r) left[k * rows + i + r] = static_cast<float>(sums[r]);
    }
  }
}

/// sums [kRows][kVectors vectors] += rows of the matrix times right, over `count` columns. Rows of right are
/// `width` long.
template <std::size_t kVectors>
HWY_INLINE void AddRowsTimes(const float* const* HWY_RESTRICT rows, const float* HWY_RESTRICT right,
                             std::size_t width, std::size_t count, float* HWY_RESTRICT sums) {
  const FloatTag d;
  const std::size_t lanes = hn::Lanes(d);
  const auto zero = hn::Zero(d);
  auto a0 = zero, b0 = zero, c0 = zero, e0 = zero, f0 = zero, g0 = zero, h0 = zero, k0 = zero;
  auto a1 = zero, b1 = zero, c1 = zero, e1 = zero, f1 = zero, g1 = zero, h1 = zero, k1 = zero;
  for (std::size_t j = 0; j < count; ++j, right += width) {
    const auto q0 = hn::LoadU(d, right);
    const auto q1 = kVectors == 2 ? hn::LoadU(d, right + lanes) : q0;
    const auto add = [&](std::size_t row, auto& s0, auto& s1) HWY_ATTR {
      const auto m = hn::Set(d, rows[row][j]);
      s0 = hn::MulAdd(m, q0, s0);
      if constexpr (kVectors == 2) s1 = hn::MulAdd(m, q1, s1);
    };
    add(0, a0, a1);
    add(1, b0, b1);
    add(2, c0, c1);
    add(3, e0, e1);
    if constexpr (kRowsAtOnce == 8) {
      add(4, f0, f1);
      add(5, g0, g1);
      add(6, h0, h1);
      add(7, k0, k1);
    }
  }
  const auto store = [&](std::size_t row, auto s0, auto s1) HWY_ATTR {
    float* const to = sums + row * kVectors * lanes;
    hn::StoreU(s0, d, to);
    if constexpr (kVectors == 2) hn::StoreU(s1, d, to + lanes);
  };
  store(0, a0, a1);
  store(1, b0, b1);
  store(2, c0, c1);
  store(3, e0, e1);
  if constexpr (kRowsAtOnce == 8) {
    store(4, f0, f1);
    store(5, g0, g1);
    store(6, h0, h1);
    store(7, k0, k1);
  }
}

/// Whether the factors have enough columns to fill vectors, and the matrix enough rows to pay for another
/// order of the factor.
HWY_INLINE bool IsWide(std::size_t rows, std::size_t rank) {
  return 2 * rank > hn::Lanes(FloatTag()) && rows >= 128;
}

/// Rows [begin, end) of left = matrix right with vectors along the columns of the factors: no sum across a
/// vector's lanes. Bands of right are transposed into `room` of kBandFloats.
void MultiplyRightWide(const float* HWY_RESTRICT matrix, std::size_t rows, std::size_t columns,
                       std::size_t rank, const float* HWY_RESTRICT right, float* HWY_RESTRICT left,
                       std::size_t begin, std::size_t end, float* HWY_RESTRICT room) {
  const std::size_t lanes = hn::Lanes(FloatTag());
  const std::size_t width = (rank + lanes - 1) / lanes * lanes;
  const std::size_t band = std::max<std::size_t>(1, kBandFloats / width);
  float sums[kRowsAtOnce * 2 * 16];
  const float* row[kRowsAtOnce];
  std::fill_n(room, width * std::min(band, columns), 0.0f);
  for (std::size_t first = 0; first < columns; first += band) {
    const std::size_t count = std::min(band, columns - first);
    for (std::size_t j = 0; j < count; j += lanes) {
      for (std::size_t k = 0; k < rank; ++k) {
        const float* HWY_RESTRICT column = right + k * columns + first;
        for (std::size_t at = j; at < std::min(j + lanes, count); ++at) room[at * width + k] = column[at];
      }
    }
    for (std::size_t i = begin; i < end; i += kRowsAtOnce) {
      // Rows behind the last one are that one again.
      for (std::size_t r = 0; r < kRowsAtOnce; ++r)
        row[r] = matrix + std::min(i + r, end - 1) * columns + first;
      std::size_t vectors = 0;
      for (std::size_t k = 0; k < rank; k += vectors * lanes) {
        vectors = rank - k > lanes ? 2 : 1;
        if (vectors == 2) {
          AddRowsTimes<2>(row, room + k, width, count, sums);
        } else {
          AddRowsTimes<1>(row, room + k, width, count, sums);
        }
        for (std::size_t c = 0; c < std::min(vectors * lanes, rank - k); ++c) {
          float* const to = left + (k + c) * rows + i;
          for (std::size_t r = 0; r < std::min(kRowsAtOnce, end - i); ++r) {
            const float sum = sums[r * vectors * lanes + c];
            to[r] = first == 0 ? sum : to[r] + sum;
          }
        }
      }
    }
  }
}

/// Rows [begin, end) of left = matrix right; begin is a multiple of kRowBlock.
void MultiplyRight(const float* HWY_RESTRICT matrix, std::size_t rows, std::size_t columns, std::size_t rank,
                   const float* HWY_RESTRICT right, float* HWY_RESTRICT left, std::size_t begin,
                   std::size_t end) {
  if (!IsWide(rows, rank)) return MultiplyRightNarrow(matrix, rows, columns, rank, right, left, begin, end);
  const std::size_t lanes = hn::Lanes(FloatTag());
  float* const room = kept_room(std::min(std::max(kBandFloats, rank + lanes), (rank + lanes) * columns));
  MultiplyRightWide(matrix, rows, columns, rank, right, left, begin, end, room);
}

/// right[j] += sum over four rows of left[r] * row[r][j], for kColumns (1, 2 or 4) columns of the factors.
template <int kColumns>
HWY_INLINE void AddFourRows(const float* HWY_RESTRICT row, std::size_t row_stride,
                            const float* HWY_RESTRICT left, std::size_t left_stride,
                            float* HWY_RESTRICT right, std::size_t right_stride, std::size_t count) {
  const FloatTag d;
  const std::size_t lanes = hn::Lanes(d);
  const float* HWY_RESTRICT row1 = row + row_stride;
  const float* HWY_RESTRICT row2 = row1 + row_stride;
  const float* HWY_RESTRICT row3 = row2 + row_stride;
  // Strides of columns that are not there are not used: these factors are read, and multiply nothing.
  const float* HWY_RESTRICT b = kColumns >= 2 ? left + left_stride : left;
  const float* HWY_RESTRICT c = kColumns == 4 ? b + left_stride : left;
  const float* HWY_RESTRICT e = kColumns == 4 ? c + left_stride : left;
  const auto a0 = hn::Set(d, left[0]), a1 = hn::Set(d, left[1]), a2 = hn::Set(d, left[2]);
  const auto b0 = hn::Set(d, b[0]), b1 = hn::Set(d, b[1]), b2 = hn::Set(d, b[2]), b3 = hn::Set(d, b[3]);
  const auto c0 = hn::Set(d, c[0]), c1 = hn::Set(d, c[1]), c2 = hn::Set(d, c[2]), c3 = hn::Set(d, c[3]);
  const auto e0 = hn::Set(d, e[0]), e1 = hn::Set(d, e[1]), e2 = hn::Set(d, e[2]), e3 = hn::Set(d, e[3]);
  const auto a3 = hn::Set(d, left[3]);
  std::size_t j = 0;
  for (; j + lanes <= count; j += lanes) {
    const auto m0 = hn::LoadU(d, row + j);
    const auto m1 = hn::LoadU(d, row1 + j);
    const auto m2 = hn::LoadU(d, row2 + j);
    const auto m3 = hn::LoadU(d, row3 + j);
    const auto add = [&](float* to, auto f0, auto f1, auto f2, auto f3) HWY_ATTR {
      const auto sum = hn::MulAdd(m1, f1, hn::MulAdd(m0, f0, hn::LoadU(d, to)));
      hn::StoreU(hn::MulAdd(m3, f3, hn::MulAdd(m2, f2, sum)), d, to);
    };
    add(right + j, a0, a1, a2, a3);
    if constexpr (kColumns >= 2) add(right + right_stride + j, b0, b1, b2, b3);
    if constexpr (kColumns == 4) {
      add(right + 2 * right_stride + j, c0, c1, c2, c3);
      add(right + 3 * right_stride + j, e0, e1, e2, e3);
    }
  }
  for (; j < count; ++j) {
    for (std::size_t k = 0; k < kColumns; ++k) {
      const float* factors = left + k * left_stride;
      right[k * right_stride + j] +=
          row[j] * factors[0] + row1[j] * factors[1] + row2[j] * factors[2] + row3[j] * factors[3];
    }
  }
}

HWY_INLINE void AddOneRow(const float* HWY_RESTRICT row, float factor, float* HWY_RESTRICT right,
                          std::size_t count) {
  const FloatTag d;
  const std::size_t lanes = hn::Lanes(d);
  const auto by = hn::Set(d, factor);
  std::size_t j = 0;
  for (; j + lanes <= count; j += lanes) {
    hn::StoreU(hn::MulAdd(hn::LoadU(d, row + j), by, hn::LoadU(d, right + j)), d, right + j);
  }
  for (; j < count; ++j) right[j] += row[j] * factor;
}

/// As MultiplyLeft for few columns of factors.
void MultiplyLeftNarrow(const float* HWY_RESTRICT matrix, std::size_t rows, std::size_t columns,
                        std::size_t rank, const float* HWY_RESTRICT left, float* HWY_RESTRICT right,
                        std::size_t begin, std::size_t count) {
  for (std::size_t k = 0; k < rank; ++k) std::fill_n(right + k * columns + begin, count, 0.0f);
  std::size_t i = 0;
  for (; i + 4 <= rows; i += 4) {
    const float* row = matrix + i * columns + begin;
    std::size_t k = 0;
    for (; kManyRegisters && k + 4 <= rank; k += 4) {
      AddFourRows<4>(row, columns, left + k * rows + i, rows, right + k * columns + begin, columns, count);
    }
    for (; k + 2 <= rank; k += 2) {
      AddFourRows<2>(row, columns, left + k * rows + i, rows, right + k * columns + begin, columns, count);
    }
    if (k < rank) {
      AddFourRows<1>(row, columns, left + k * rows + i, rows, right + k * columns + begin, columns, count);
    }
  }
  for (; i < rows; ++i) {
    for (std::size_t k = 0; k < rank; ++k) {
      AddOneRow(matrix + i * columns + begin, left[k * rows + i], right + k * columns + begin, count);
    }
  }
}

/// sums[c] += sum over `rows` of left[i][c] * panel[i], for kColumns columns of the factors and four vectors
/// of a panel. Rows of panel and sums are kPanel long, those of left `rank`.
template <int kColumns>
HWY_INLINE void AddPanelTimes(const float* HWY_RESTRICT panel, std::size_t rows,
                              const float* HWY_RESTRICT left, std::size_t rank, float* HWY_RESTRICT sums) {
  const FloatTag d;
  const std::size_t lanes = hn::Lanes(d);
  using V = hn::Vec<FloatTag>;
  const auto load = [&](std::size_t c, std::size_t v)
                        HWY_ATTR { return hn::LoadU(d, sums + (c < kColumns ? c : 0) * kPanel + v * lanes); };
  V a0 = load(0, 0), a1 = load(0, 1), a2 = load(0, 2), a3 = load(0, 3);
  V b0 = load(1, 0), b1 = load(1, 1), b2 = load(1, 2), b3 = load(1, 3);
  V c0 = load(2, 0), c1 = load(2, 1), c2 = load(2, 2), c3 = load(2, 3);
  V e0 = load(3, 0), e1 = load(3, 1), e2 = load(3, 2), e3 = load(3, 3);
  for (std::size_t i = 0; i < rows; ++i, panel += kPanel, left += rank) {
    const V m0 = hn::LoadU(d, panel), m1 = hn::LoadU(d, panel + lanes);
    const V m2 = hn::LoadU(d, panel + 2 * lanes), m3 = hn::LoadU(d, panel + 3 * lanes);
    const auto add = [&](std::size_t c, V& s0, V& s1, V& s2, V& s3) HWY_ATTR {
      const V by = hn::Set(d, left[c]);
      s0 = hn::MulAdd(m0, by, s0);
      s1 = hn::MulAdd(m1, by, s1);
      s2 = hn::MulAdd(m2, by, s2);
      s3 = hn::MulAdd(m3, by, s3);
    };
    add(0, a0, a1, a2, a3);
    if constexpr (kColumns >= 2) add(1, b0, b1, b2, b3);
    if constexpr (kColumns == 4) {
      add(2, c0, c1, c2, c3);
      add(3, e0, e1, e2, e3);
    }
  }
  const auto store = [&](std::size_t c, V s0, V s1, V s2, V s3) HWY_ATTR {
    float* const to = sums + c * kPanel;
    hn::StoreU(s0, d, to);
    hn::StoreU(s1, d, to + lanes);
    hn::StoreU(s2, d, to + 2 * lanes);
    hn::StoreU(s3, d, to + 3 * lanes);
  };
  store(0, a0, a1, a2, a3);
  if constexpr (kColumns >= 2) store(1, b0, b1, b2, b3);
  if constexpr (kColumns == 4) {
    store(2, c0, c1, c2, c3);
    store(3, e0, e1, e2, e3);
  }
}

/// As MultiplyLeft, a few rows at a time: their panels stay in the first-level cache for all columns of the
/// factors, the sums of a band of columns in the second. room: 2 * kBandFloats.
void MultiplyLeftWide(const float* HWY_RESTRICT matrix, std::size_t rows, std::size_t columns,
                      std::size_t rank, const float* HWY_RESTRICT left, float* HWY_RESTRICT right,
                      std::size_t begin, std::size_t count, float* HWY_RESTRICT room) {
  constexpr int kColumns = kManyRegisters ? 4 : 2;
  const std::size_t step = 4 * hn::Lanes(FloatTag());
  HWY_ALIGN float panel[kPanelRows * kPanel] = {};
  float* const factors = room;
  float* const all_sums = room + kPanelRows * rank;
  std::fill_n(all_sums, (count + kPanel - 1) / kPanel * kPanel * rank, 0.0f);
  for (std::size_t i = 0; i < rows; i += kPanelRows) {
    const std::size_t height = std::min(kPanelRows, rows - i);
    for (std::size_t k = 0; k < rank; ++k) {
      for (std::size_t r = 0; r < height; ++r) factors[r * rank + k] = left[k * rows + i + r];
    }
    float* sums = all_sums;
    for (std::size_t j = 0; j < count; j += kPanel, sums += kPanel * rank) {
      const std::size_t width = std::min(kPanel, count - j);
      for (std::size_t r = 0; r < height; ++r) {
        const float* const from = matrix + (i + r) * columns + begin + j;
        std::copy_n(from, width, panel + r * kPanel);
        // Many short runs are more than the processor foresees.
        for (std::size_t line = 0; line < kPanel; line += kLine) hwy::Prefetch(from + kAhead * kPanel + line);
      }
      for (std::size_t at = 0; at < width; at += step) {
        std::size_t k = 0;
        for (; k + kColumns <= rank; k += kColumns) {
          AddPanelTimes<kColumns>(panel + at, height, factors + k, rank, sums + k * kPanel + at);
        }
        for (; k < rank; ++k) AddPanelTimes<1>(panel + at, height, factors + k, rank, sums + k * kPanel + at);
      }
    }
  }
  const float* sums = all_sums;
  for (std::size_t j = 0; j < count; j += kPanel) {
    for (std::size_t k = 0; k < rank; ++k, sums += kPanel) {
      std::copy_n(sums, std::min(kPanel, count - j), right + k * columns + begin + j);
    }
  }
}

/// Columns [begin, end) of right = matrix^T left; begin is a multiple of kColumnBlock.
void MultiplyLeft(const float* HWY_RESTRICT matrix, std::size_t rows, std::size_t columns, std::size_t rank,
                  const float* HWY_RESTRICT left, float* HWY_RESTRICT right, std::size_t begin,
                  std::size_t end) {
  const bool wide = IsWide(rows, rank);
  const std::size_t band = wide ? band_columns(rank) : kColumnBlock;
  float* const room = kept_room(wide ? rank * (kPanelRows + std::min(band, columns + kPanel)) : 0);
  for (std::size_t j = begin; j < end; j += band) {
    const std::size_t count = std::min(band, end - j);
    if (wide) {
      MultiplyLeftWide(matrix, rows, columns, rank, left, right, j, count, room);
    } else {
      MultiplyLeftNarrow(matrix, rows, columns, rank, left, right, j, count);
    }
  }
}

/// take(row, v0, v1, v2, v3) for kRows rows: four vectors of left right^T, added in the order of k.
/// Multiplication and addition are rounded one by one where bits must be the same on every machine: a fused
/// operation would give other ones where a machine lacks it. Rows of left are `rank` long, those of right
/// kPanel.
template <int kRows, bool kSameBits, class Take>
HWY_INLINE void ProductTile(std::size_t rank, const float* HWY_RESTRICT left, const float* HWY_RESTRICT right,
                            Take&& take) {
  const FloatTag d;
  const std::size_t lanes = hn::Lanes(d);
  using V = hn::Vec<FloatTag>;
  V q0 = hn::LoadU(d, right), q1 = hn::LoadU(d, right + lanes);
  V q2 = hn::LoadU(d, right + 2 * lanes), q3 = hn::LoadU(d, right + 3 * lanes);
  const auto factor = [&](std::size_t row, std::size_t k)
                          HWY_ATTR { return hn::Set(d, left[row * rank + k]); };
  V f = factor(0, 0);
  V a0 = hn::Mul(f, q0), a1 = hn::Mul(f, q1), a2 = hn::Mul(f, q2), a3 = hn::Mul(f, q3);
  f = factor(1, 0);
  V b0 = hn::Mul(f, q0), b1 = hn::Mul(f, q1), b2 = hn::Mul(f, q2), b3 = hn::Mul(f, q3);
  V c0 = q0, c1 = q1, c2 = q2, c3 = q3, e0 = q0, e1 = q1, e2 = q2, e3 = q3;
  if constexpr (kRows == 4) {
    f = factor(2, 0);
    c0 = hn::Mul(f, q0), c1 = hn::Mul(f, q1), c2 = hn::Mul(f, q2), c3 = hn::Mul(f, q3);
    f = factor(3, 0);
    e0 = hn::Mul(f, q0), e1 = hn::Mul(f, q1), e2 = hn::Mul(f, q2), e3 = hn::Mul(f, q3);
  }
  for (std::size_t k = 1; k < rank; ++k) {
    right += kPanel;
    q0 = hn::LoadU(d, right), q1 = hn::LoadU(d, right + lanes);
    q2 = hn::LoadU(d, right + 2 * lanes), q3 = hn::LoadU(d, right + 3 * lanes);
    const auto add_row = [&](std::size_t row, V& v0, V& v1, V& v2, V& v3) HWY_ATTR {
      const auto by = factor(row, k);
      v0 = kSameBits ? hn::Add(v0, hn::Mul(by, q0)) : hn::MulAdd(by, q0, v0);
      v1 = kSameBits ? hn::Add(v1, hn::Mul(by, q1)) : hn::MulAdd(by, q1, v1);
      v2 = kSameBits ? hn::Add(v2, hn::Mul(by, q2)) : hn::MulAdd(by, q2, v2);
      v3 = kSameBits ? hn::Add(v3, hn::Mul(by, q3)) : hn::MulAdd(by, q3, v3);
    };
    add_row(0, a0, a1, a2, a3);
    add_row(1, b0, b1, b2, b3);
    if constexpr (kRows == 4) {
      add_row(2, c0, c1, c2, c3);
      add_row(3, e0, e1, e2, e3);
    }
  }
  take(0, a0, a1, a2, a3);
  take(1, b0, b1, b2, b3);
  if constexpr (kRows == 4) {
    take(2, c0, c1, c2, c3);
    take(3, e0, e1, e2, e3);
  }
}

/// Where results of ProductTile go: with m the product, residual = gradient - m where there is one, and
/// gradient = m if `mean`. Rows lie `columns` apart; of the tile `rows` and `width` columns are the matrix's.
struct Target {
  float* gradient;
  float* residual;
  bool large;  // the residual, see ResidualSpan
  bool mean;
  std::size_t columns;
  std::size_t rows;
  std::size_t width;

  template <class V>
  HWY_INLINE void Take(std::size_t row, V v0, V v1, V v2, V v3) const {
    if (row >= rows) return;
    const FloatTag d;
    const std::size_t lanes = hn::Lanes(d);
    const std::size_t at = row * columns;
    if (width < 4 * lanes) {
      float m[4 * 16];
      hn::StoreU(v0, d, m);
      hn::StoreU(v1, d, m + lanes);
      hn::StoreU(v2, d, m + 2 * lanes);
      hn::StoreU(v3, d, m + 3 * lanes);
      for (std::size_t j = 0; j < width; ++j) {
        if (residual != nullptr) residual[at + j] = gradient[at + j] - m[j];
        if (mean) gradient[at + j] = m[j];
      }
      return;
    }
    const bool past_caches = goes_past_caches(d, large, residual + at);
    const auto vector = [&](std::size_t j, V m) HWY_ATTR {
      if (residual != nullptr) {
        store_residual(hn::Sub(hn::LoadU(d, gradient + j), m), d, residual + j, past_caches);
      }
      if (mean) hn::StoreU(m, d, gradient + j);
    };
    vector(at, v0);
    vector(at + lanes, v1);
    vector(at + 2 * lanes, v2);
    vector(at + 3 * lanes, v3);
  }
};

/// Columns of a right factor, cut into panels: [panel][k][kPanel], 0 behind the last column.
void PackPanels(std::size_t rank, const float* HWY_RESTRICT right, std::size_t stride, std::size_t width,
                float* HWY_RESTRICT panels) {
  for (std::size_t j = 0; j < width; j += kPanel) {
    const std::size_t count = std::min(kPanel, width - j);
    for (std::size_t k = 0; k < rank; ++k, panels += kPanel) {
      std::copy_n(right + k * stride + j, count, panels);
      std::fill(panels + count, panels + kPanel, 0.0f);
    }
  }
}

/// Rows of a left factor as ProductTile reads them; 0 behind the last of them.
template <std::size_t kRows>
HWY_INLINE void PackRows(std::size_t rank, const float* HWY_RESTRICT left, std::size_t stride,
                         std::size_t rows, float* HWY_RESTRICT packed) {
  for (std::size_t k = 0; k < rank; ++k) {
    for (std::size_t i = 0; i < kRows; ++i) packed[i * rank + k] = i < rows ? left[k * stride + i] : 0.0f;
  }
}

/// A band of apply_products: `height` rows, `width` columns. gradient and residual: its first row, `columns`
/// from one to the next. room: for packed factors. Rows are walked from end to end, so that memory is read
/// and written in long runs; the panels, which every tile of rows reads anew, stay in the second-level cache.
void ApplyToBand(std::size_t rank, FactorsOfBlock mean, FactorsOfBlock own, std::size_t height,
                 std::size_t width, std::size_t columns, float* HWY_RESTRICT gradient,
                 float* HWY_RESTRICT residual, bool large, float* HWY_RESTRICT room) {
  constexpr std::size_t kRows = kManyRegisters ? 4 : 2;
  const std::size_t step = 4 * hn::Lanes(FloatTag());
  const std::size_t panels = (width + kPanel - 1) / kPanel * kPanel * rank;
  float* const left = room;
  float* const own_left = left + kRows * rank;
  float* const right = own_left + kRows * rank;
  float* const own_right = right + panels;
  const bool differ = residual != nullptr && (own.left != mean.left || own.right != mean.right);
  PackPanels(rank, mean.right, mean.right_stride, width, right);
  if (differ) PackPanels(rank, own.right, own.right_stride, width, own_right);
  for (std::size_t i = 0; i < height; i += kRows) {
    PackRows<kRows>(rank, mean.left + i, mean.left_stride, height - i, left);
    if (differ) PackRows<kRows>(rank, own.left + i, own.left_stride, height - i, own_left);
    for (std::size_t j = 0; j < width; j += step) {
      const std::size_t at = i * columns + j;
      const std::size_t panel = j / kPanel * kPanel * rank + j % kPanel;
      Target target{
          gradient + at, residual == nullptr ? nullptr : residual + at, large, true, columns, height - i,
          width - j};
      const auto take = [&](std::size_t row, auto v0, auto v1, auto v2, auto v3)
                            HWY_ATTR { target.Take(row, v0, v1, v2, v3); };
      if (differ) {
        target.mean = false;
        ProductTile<kRows, false>(rank, own_left, own_right + panel, take);
        target.mean = true;
        target.residual = nullptr;
      }
      ProductTile<kRows, true>(rank, left, right + panel, take);
    }
  }
  if (large) hwy::FlushStream();
}

/// sums[c] = column c's dot product with `with`, for `count` <= 4 columns. Eight partial sums whatever the
/// vectors' length, and products rounded before they are added: the same bits on every machine.
void DotsWithColumns(const float* HWY_RESTRICT columns, std::size_t stride, std::size_t count,
                     const float* HWY_RESTRICT with, std::size_t rows, double* HWY_RESTRICT sums) {
  const HWY_CAPPED(double, kPartialSums) d;
  const hn::Rebind<float, decltype(d)> of_floats;
  const std::size_t lanes = hn::Lanes(d);
  const std::size_t whole = rows / kPartialSums * kPartialSums;
  // A column that is not there is the first one again.
  const auto column = [&](std::size_t c) { return columns + (c < count ? c : 0) * stride; };
  const float* HWY_RESTRICT c0 = column(0);
  const float* HWY_RESTRICT c1 = column(1);
  const float* HWY_RESTRICT c2 = column(2);
  const float* HWY_RESTRICT c3 = column(3);
  double partial[4][kPartialSums];
  for (std::size_t part = 0; part < kPartialSums; part += lanes) {
    auto s0 = hn::Zero(d);
    auto s1 = s0, s2 = s0, s3 = s0;
    for (std::size_t i = part; i < whole; i += kPartialSums) {
      const auto load = [&](const float* from)
                            HWY_ATTR { return hn::PromoteTo(d, hn::LoadU(of_floats, from + i)); };
      const auto w = load(with);
      s0 = hn::Add(s0, hn::Mul(load(c0), w));
      s1 = hn::Add(s1, hn::Mul(load(c1), w));
      s2 = hn::Add(s2, hn::Mul(load(c2), w));
      s3 = hn::Add(s3, hn::Mul(load(c3), w));
    }
    hn::StoreU(s0, d, partial[0] + part);
    hn::StoreU(s1, d, partial[1] + part);
    hn::StoreU(s2, d, partial[2] + part);
    hn::StoreU(s3, d, partial[3] + part);
  }
  for (std::size_t c = 0; c < count; ++c) {
    double* p = partial[c];
    for (std::size_t i = whole; i < rows; ++i) {
      p[i - whole] += static_cast<double>(column(c)[i]) * static_cast<double>(with[i]);
    }
    sums[c] = ((p[0] + p[1]) + (p[2] + p[3])) + ((p[4] + p[5]) + (p[6] + p[7]));
  }
}

/// column = (column - sum over `count` <= 4 columns of along[c] * column c) * factor, in double.
void SubtractColumns(const float* HWY_RESTRICT columns, std::size_t stride, std::size_t count,
                     const double* HWY_RESTRICT along, double factor, float* HWY_RESTRICT column,
                     std::size_t rows) {
  const HWY_CAPPED(double, 8) d;
  const hn::Rebind<float, decltype(d)> of_floats;
  const std::size_t lanes = hn::Lanes(d);
  const auto by = hn::Set(d, factor);
  std::size_t i = 0;
  for (; i + lanes <= rows; i += lanes) {
    auto value = hn::PromoteTo(d, hn::LoadU(of_floats, column + i));
    for (std::size_t c = 0; c < count; ++c) {
      const auto basis = hn::PromoteTo(d, hn::LoadU(of_floats, columns + c * stride + i));
      value = hn::Sub(value, hn::Mul(hn::Set(d, along[c]), basis));
    }
    hn::StoreU(hn::DemoteTo(of_floats, hn::Mul(value, by)), of_floats, column + i);
  }
  for (; i < rows; ++i) {
    auto value = static_cast<double>(column[i]);
    for (std::size_t c = 0; c < count; ++c) value -= along[c] * static_cast<double>(columns[c * stride + i]);
    column[i] = static_cast<float>(value * factor);
  }
}

bool AddWithin(float* HWY_RESTRICT target, const float* HWY_RESTRICT values, float limit, std::size_t count) {
  const FloatTag d;
  const std::size_t lanes = hn::Lanes(d);
  const auto bound = hn::Set(d, limit);
  bool within = true;
  std::size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    auto p = hn::LoadU(d, target + i);
    if (values != nullptr) {
      p = hn::Add(p, hn::LoadU(d, values + i));
      hn::StoreU(p, d, target + i);
    }
    within = hn::AllTrue(d, hn::Le(hn::Abs(p), bound)) && within;
  }
  for (; i < count; ++i) {
    if (values != nullptr) target[i] += values[i];
    within = within && std::fabs(target[i]) <= limit;
  }
  return within;
}

}  // namespace thinwire::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace thinwire {
namespace {

constexpr std::size_t kTileRows = 4;  ///< At most.

/// Below this, next to its length before, what is left of a column is rounding.
constexpr double kDependent = 1e-7;

}  // namespace

HWY_EXPORT(MultiplyRight);
HWY_EXPORT(MultiplyLeft);
HWY_EXPORT(ApplyToBand);
HWY_EXPORT(AddWithin);
HWY_EXPORT(DotsWithColumns);
HWY_EXPORT(SubtractColumns);

void multiply_right(Executor& executor, MatrixShape shape, std::size_t rank, Span<const float> matrix,
                    Span<const float> right, Span<float> left) {
  THINWIRE_ON_DEVICE(multiply_right, executor, shape, rank, matrix, right, left);
  executor.parallel_for(shape.rows, kRowBlock, [&](std::size_t begin, std::size_t end) {
    HWY_DYNAMIC_DISPATCH(MultiplyRight)
    (matrix.data(), shape.rows, shape.columns, rank, right.data(), left.data(), begin, end);
  });
}

void multiply_left(Executor& executor, MatrixShape shape, std::size_t rank, Span<const float> matrix,
                   Span<const float> left, Span<float> right) {
  THINWIRE_ON_DEVICE(multiply_left, executor, shape, rank, matrix, left, right);
  executor.parallel_for(shape.columns, kColumnBlock, [&](std::size_t begin, std::size_t end) {
    HWY_DYNAMIC_DISPATCH(MultiplyLeft)
    (matrix.data(), shape.rows, shape.columns, rank, left.data(), right.data(), begin, end);
  });
}

void orthonormalise(std::size_t rows, std::size_t rank, Span<float> left) {
  // Columns stay floats and only sums are doubles: the second round removes what rounding the first one
  // left, and the bits sent are those that the projections were computed from.
  for (std::size_t k = 0; k < rank; ++k) {
    float* const column = left.data() + k * rows;
    const auto length = [&] {
      double square = 0;
      HWY_DYNAMIC_DISPATCH(DotsWithColumns)(column, rows, 1, column, rows, &square);
      return std::sqrt(square);
    };
    const auto scale_by = [&](double factor) {
      HWY_DYNAMIC_DISPATCH(SubtractColumns)(column, rows, 0, nullptr, factor, column, rows);
    };
    bool independent = true;
    for (int round = 0; round < 2 && independent; ++round) {
      const double before = length();
      independent = before > 0;
      if (!independent) break;
      scale_by(1 / before);
      for (std::size_t other = 0; other < k; other += 4) {
        const float* const four = left.data() + other * rows;
        const std::size_t count = std::min<std::size_t>(4, k - other);
        double along[4] = {};
        HWY_DYNAMIC_DISPATCH(DotsWithColumns)(four, rows, count, column, rows, along);
        HWY_DYNAMIC_DISPATCH(SubtractColumns)(four, rows, count, along, 1, column, rows);
      }
      const double after = length();
      independent = after > kDependent;
      if (independent) scale_by(1 / after);
    }
    if (!independent) std::fill_n(column, rows, 0.0f);
  }
}

void apply_products(Executor& executor, MatrixShape shape, std::size_t rank, Factors mean, Factors own,
                    Span<float> gradient, const ResidualSpan& residual) {
  THINWIRE_ON_DEVICE(apply_products, executor, shape, rank, mean, own, gradient, residual);
  const auto part = [&](const Factors& factors, std::size_t i, std::size_t j) {
    return FactorsOfBlock{factors.left.data() + i, shape.rows, factors.right.data() + j, shape.columns};
  };
  const std::size_t band = band_columns(rank);
  executor.parallel_for(shape.rows, kRowBlock, [&](std::size_t begin, std::size_t end) {
    float* const room = kept_room(2 * rank * (std::min(band, shape.columns + kPanel) + kTileRows));
    for (std::size_t j = 0; j < shape.columns; j += band) {
      const std::size_t at = begin * shape.columns + j;
      HWY_DYNAMIC_DISPATCH(ApplyToBand)
      (rank, part(mean, begin, j), part(own, begin, j), end - begin, std::min(band, shape.columns - j),
       shape.columns, gradient.data() + at, data_at(residual.after, at), residual.large, room);
    }
  });
}

bool add_within(Executor& executor, Span<float> target, Span<const float> values, float limit) {
  THINWIRE_ON_DEVICE(add_within, executor, target, values, limit);
  std::atomic<bool> within{true};
  executor.parallel_for(target.size(), kBlockElements, [&](std::size_t begin, std::size_t end) {
    if (!HWY_DYNAMIC_DISPATCH(AddWithin)(target.data() + begin, data_at(values, begin), limit, end - begin)) {
      within.store(false, std::memory_order_relaxed);
    }
  });
  return within.load(std::memory_order_relaxed);
}

void gather_chunks([[maybe_unused]] Executor& executor, Span<const VectorChunk> chunks,
                   Span<const float> values, Span<float> target) {
  THINWIRE_ON_DEVICE(gather_chunks, executor, chunks, values, target);
  for (const VectorChunk& chunk : chunks) {
    std::copy_n(values.data() + chunk.begin, chunk.count, target.data() + chunk.offset);
  }
}

void scatter_chunks([[maybe_unused]] Executor& executor, Span<const VectorChunk> chunks,
                    Span<const float> values, Span<float> gradient, Span<float> residual) {
  THINWIRE_ON_DEVICE(scatter_chunks, executor, chunks, values, gradient, residual);
  for (const VectorChunk& chunk : chunks) {
    std::copy_n(values.data() + chunk.offset, chunk.count, gradient.data() + chunk.begin);
    const auto rest = residual.subspan(chunk.begin, chunk.count);
    std::fill(rest.begin(), rest.end(), 0.0f);
  }
}

}  // namespace thinwire
#endif
