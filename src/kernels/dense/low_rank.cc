#include "kernels/dense/low_rank.h"

#include <algorithm>

#include "kernels/blocks.h"
#include "kernels/dense/panels.h"
#include "kernels/device/on_device.h"

#include <hwy/cache_control.h>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/dense/low_rank.cc"
#include <hwy/foreach_target.h>  // must come before highway.h

#include "kernels/bits-inl.h"

HWY_BEFORE_NAMESPACE();
namespace thinwire::HWY_NAMESPACE {

/// Rows that are multiplied with a panel at a time.
constexpr std::size_t kPanelRows = 32;
constexpr std::size_t kLine = 16;  ///< Floats of a line of the cache.
constexpr std::size_t kAhead = 2;  ///< Panels.

/// Columns whose products are summed in float before they go into a double; their part of `right` stays in
/// the first-level cache for ranks up to 4.
constexpr std::size_t kRun = 2048;

/// Dot products of one row with one column of right, over `count` elements.
HWY_INLINE double Dot(Reads<float> row, Reads<float> column, std::size_t count) {
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
HWY_INLINE void DotsBy4(Reads<float> row, std::size_t row_stride, Reads<float> right, std::size_t stride,
                        std::size_t count, Writes<double> sums) {
  const FloatTag d;
  const std::size_t lanes = hn::Lanes(d);
  Reads<float> row1 = row + row_stride;
  Reads<float> row2 = row1 + row_stride;
  Reads<float> row3 = row2 + row_stride;
  Reads<float> right1 = right + stride;
  Reads<float> right2 = right1 + stride;
  Reads<float> right3 = right2 + stride;
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
HWY_INLINE void Dots4x1(Reads<float> row, std::size_t row_stride, Reads<float> column, std::size_t count,
                        Writes<double> sums) {
  const FloatTag d;
  const std::size_t lanes = hn::Lanes(d);
  Reads<float> row1 = row + row_stride;
  Reads<float> row2 = row1 + row_stride;
  Reads<float> row3 = row2 + row_stride;
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
void MultiplyRightNarrow(Reads<float> matrix, std::size_t rows, std::size_t columns, std::size_t rank,
                         Reads<float> right, Writes<float> left, std::size_t begin, std::size_t end) {
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
HWY_INLINE void AddRowsTimes(Reads<const float*> rows, Reads<float> right, std::size_t width,
                             std::size_t count, Writes<float> sums) {
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
void MultiplyRightWide(Reads<float> matrix, std::size_t rows, std::size_t columns, std::size_t rank,
                       Reads<float> right, Writes<float> left, std::size_t begin, std::size_t end,
                       Writes<float> room) {
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
        Reads<float> column = right + k * columns + first;
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
void MultiplyRight(Reads<float> matrix, std::size_t rows, std::size_t columns, std::size_t rank,
                   Reads<float> right, Writes<float> left, std::size_t begin, std::size_t end) {
  if (!IsWide(rows, rank)) return MultiplyRightNarrow(matrix, rows, columns, rank, right, left, begin, end);
  const std::size_t lanes = hn::Lanes(FloatTag());
  float* const room = kept_room(std::min(std::max(kBandFloats, rank + lanes), (rank + lanes) * columns));
  MultiplyRightWide(matrix, rows, columns, rank, right, left, begin, end, room);
}

/// right[j] += sum over four rows of left[r] * row[r][j], for kColumns (1, 2 or 4) columns of the factors.
template <int kColumns>
HWY_INLINE void AddFourRows(Reads<float> row, std::size_t row_stride, Reads<float> left,
                            std::size_t left_stride, Writes<float> right, std::size_t right_stride,
                            std::size_t count) {
  const FloatTag d;
  const std::size_t lanes = hn::Lanes(d);
  Reads<float> row1 = row + row_stride;
  Reads<float> row2 = row1 + row_stride;
  Reads<float> row3 = row2 + row_stride;
  // Strides of columns that are not there are not used: these factors are read, and multiply nothing.
  Reads<float> b = kColumns >= 2 ? left + left_stride : left;
  Reads<float> c = kColumns == 4 ? b + left_stride : left;
  Reads<float> e = kColumns == 4 ? c + left_stride : left;
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

HWY_INLINE void AddOneRow(Reads<float> row, float factor, Writes<float> right, std::size_t count) {
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
void MultiplyLeftNarrow(Reads<float> matrix, std::size_t rows, std::size_t columns, std::size_t rank,
                        Reads<float> left, Writes<float> right, std::size_t begin, std::size_t count) {
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
HWY_INLINE void AddPanelTimes(Reads<float> panel, std::size_t rows, Reads<float> left, std::size_t rank,
                              Writes<float> sums) {
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
void MultiplyLeftWide(Reads<float> matrix, std::size_t rows, std::size_t columns, std::size_t rank,
                      Reads<float> left, Writes<float> right, std::size_t begin, std::size_t count,
                      Writes<float> room) {
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
void MultiplyLeft(Reads<float> matrix, std::size_t rows, std::size_t columns, std::size_t rank,
                  Reads<float> left, Writes<float> right, std::size_t begin, std::size_t end) {
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

}  // namespace thinwire::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace thinwire {

HWY_EXPORT(MultiplyRight);
HWY_EXPORT(MultiplyLeft);

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

}  // namespace thinwire
#endif
