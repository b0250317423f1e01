#include "kernels/dense/multiply_rows.h"

#include <algorithm>

#include "kernels/dense/panels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/dense/multiply_rows.cc"
#include <hwy/foreach_target.h>  // must come before highway.h

#include "kernels/bits-inl.h"

HWY_BEFORE_NAMESPACE();
namespace thinwire::HWY_NAMESPACE {

/// Twelve sums at a time fit the registers of every target, and hide how long an addition takes.
constexpr std::size_t kRowsOfTile = 6;
/// Rows of `by` that are packed at a time: a panel of them stays in the first-level cache.
constexpr std::size_t kInnerRun = 256;
/// Rows and columns that are transposed at a time: both sides' lines of the cache are used up.
constexpr std::size_t kSquare = 16;

/// Six rows with two vectors of columns. from: rows of a run of `inner`. panel: [inner][2 vectors]. base:
/// null for zeros. to, base: six rows; `columns` of them are the matrix's.
template <bool kSameBits>
HWY_INLINE void RowTile(Reads<const float*> from, std::size_t inner, Reads<float> panel,
                        Reads<const float*> base, Reads<float*> to, std::size_t columns) {
  const FloatTag d;
  const std::size_t lanes = hn::Lanes(d);
  using V = hn::Vec<FloatTag>;
  const std::size_t low = std::min(columns, lanes);
  const std::size_t high = columns - low;
  // Through room of its own: nothing beside the columns may be touched, nor aligned be asked for.
  const auto begin = [&](std::size_t row, std::size_t at, std::size_t count) HWY_ATTR -> V {
    if (base[row] == nullptr || count == 0) return hn::Zero(d);
    if (count == lanes) return hn::LoadU(d, base[row] + at);
    float some[16] = {};
    std::copy_n(base[row] + at, count, some);
    return hn::LoadU(d, some);
  };
  V a0 = begin(0, 0, low), a1 = begin(0, lanes, high), b0 = begin(1, 0, low), b1 = begin(1, lanes, high);
  V c0 = begin(2, 0, low), c1 = begin(2, lanes, high), e0 = begin(3, 0, low), e1 = begin(3, lanes, high);
  V f0 = begin(4, 0, low), f1 = begin(4, lanes, high), g0 = begin(5, 0, low), g1 = begin(5, lanes, high);
  for (std::size_t k = 0; k < inner; ++k, panel += 2 * lanes) {
    const V q0 = hn::LoadU(d, panel);
    const V q1 = hn::LoadU(d, panel + lanes);
    const auto add_to = [&](std::size_t row, V& s0, V& s1) HWY_ATTR {
      const V by = hn::Set(d, from[row][k]);
      s0 = kSameBits ? hn::Add(s0, hn::Mul(by, q0)) : hn::MulAdd(by, q0, s0);
      s1 = kSameBits ? hn::Add(s1, hn::Mul(by, q1)) : hn::MulAdd(by, q1, s1);
    };
    add_to(0, a0, a1);
    add_to(1, b0, b1);
    add_to(2, c0, c1);
    add_to(3, e0, e1);
    add_to(4, f0, f1);
    add_to(5, g0, g1);
  }
  const auto store = [&](V sums, float* target, std::size_t count) HWY_ATTR {
    if (count == lanes) {
      hn::StoreU(sums, d, target);
      return;
    }
    float some[16];
    hn::StoreU(sums, d, some);
    std::copy_n(some, count, target);
  };
  const auto end = [&](std::size_t row, V s0, V s1) HWY_ATTR {
    if (to[row] == nullptr) return;
    store(s0, to[row], low);
    if (high != 0) store(s1, to[row] + lanes, high);
  };
  end(0, a0, a1);
  end(1, b0, b1);
  end(2, c0, c1);
  end(3, e0, e1);
  end(4, f0, f1);
  end(5, g0, g1);
}

/// Rows [begin, end). room: kInnerRun * 2 vectors.
template <bool kSameBits>
void MultiplyRowsRounded(std::size_t begin, std::size_t end, std::size_t inner, std::size_t columns,
                         const RowsOf<const float>& from, const RowsOf<const float>& by,
                         const RowsOf<const float>& base, const RowsOf<float>& to, Writes<float> room) {
  const std::size_t width = 2 * hn::Lanes(FloatTag());
  for (std::size_t k = 0; k < inner; k += kInnerRun) {
    const std::size_t run = std::min(kInnerRun, inner - k);
    for (std::size_t j = 0; j < columns; j += width) {
      const std::size_t count = std::min(width, columns - j);
      for (std::size_t r = 0; r < run; ++r) {
        std::copy_n(by.row(k + r) + j, count, room + r * width);
        std::fill(room + r * width + count, room + (r + 1) * width, 0.0f);
      }
      for (std::size_t i = begin; i < end; i += kRowsOfTile) {
        const float* rows[kRowsOfTile];
        const float* bases[kRowsOfTile];
        float* results[kRowsOfTile];
        for (std::size_t r = 0; r < kRowsOfTile; ++r) {
          // Rows behind the last one are that one again, and go nowhere.
          const std::size_t row = std::min(i + r, end - 1);
          rows[r] = from.row(row) + k;
          results[r] = i + r < end ? to.row(row) + j : nullptr;
          bases[r] = k != 0 ? to.row(row) + j : base.values.empty() ? nullptr : base.row(row) + j;
        }
        RowTile<kSameBits>(rows, run, room, bases, results, count);
      }
    }
  }
}

void MultiplyRows(std::size_t begin, std::size_t end, std::size_t inner, std::size_t columns,
                  const RowsOf<const float>& from, const RowsOf<const float>& by,
                  const RowsOf<const float>& base, const RowsOf<float>& to, bool same_bits) {
  float* const room = kept_room(kInnerRun * 2 * hn::Lanes(FloatTag()));
  if (same_bits) {
    MultiplyRowsRounded<true>(begin, end, inner, columns, from, by, base, to, room);
  } else {
    MultiplyRowsRounded<false>(begin, end, inner, columns, from, by, base, to, room);
  }
}

/// Columns [begin, end) of `from` become rows of `to`. Four rows, with as many columns as a vector has lanes,
/// are interleaved at a time. So four elements of a row are written together.
void TransposeRows(std::size_t begin, std::size_t end, std::size_t rows, const RowsOf<const float>& from,
                   const RowsOf<float>& to) {
  const FloatTag d;
  const std::size_t lanes = hn::Lanes(d);
  const auto one_by_one = [&](std::size_t i, std::size_t rows_end, std::size_t j, std::size_t columns_end) {
    for (; j < columns_end; ++j) {
      for (std::size_t r = i; r < rows_end; ++r) to.row(j)[r] = from.row(r)[j];
    }
  };
  for (std::size_t i = 0; i < rows; i += kSquare) {
    const std::size_t rows_end = std::min(i + kSquare, rows);
    const std::size_t fours_end = rows_end - (rows_end - i) % 4;
    std::size_t j = begin;
    for (; j + lanes <= end; j += lanes) {
      for (std::size_t r = i; r < fours_end; r += 4) {
        alignas(64) float together[4 * 16];
        hn::StoreInterleaved4(hn::LoadU(d, from.row(r) + j), hn::LoadU(d, from.row(r + 1) + j),
                              hn::LoadU(d, from.row(r + 2) + j), hn::LoadU(d, from.row(r + 3) + j), d,
                              together);
        for (std::size_t c = 0; c < lanes; ++c) std::copy_n(together + 4 * c, 4, to.row(j + c) + r);
      }
    }
    one_by_one(fours_end, rows_end, begin, j);
    one_by_one(i, rows_end, j, end);
  }
}

}  // namespace thinwire::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace thinwire {
namespace {

/// Rows of a task: a multiple of a tile's.
constexpr std::size_t kRowsPerTask = 192;
/// Columns of a task: whole lines of the cache.
constexpr std::size_t kColumnsPerTask = 64;

}  // namespace

HWY_EXPORT(MultiplyRows);
HWY_EXPORT(TransposeRows);

void multiply_rows(Executor& executor, std::size_t rows, std::size_t inner, std::size_t columns,
                   RowsOf<const float> from, RowsOf<const float> by, RowsOf<const float> base,
                   RowsOf<float> to, Rounding rounding) {
  executor.parallel_for(rows, kRowsPerTask, [&](std::size_t begin, std::size_t end) {
    HWY_DYNAMIC_DISPATCH(MultiplyRows)
    (begin, end, inner, columns, from, by, base, to, rounding == Rounding::same_bits);
  });
}

void transpose_rows(Executor& executor, std::size_t rows, std::size_t columns, RowsOf<const float> from,
                    RowsOf<float> to) {
  executor.parallel_for(columns, kColumnsPerTask, [&](std::size_t begin, std::size_t end) {
    HWY_DYNAMIC_DISPATCH(TransposeRows)(begin, end, rows, from, to);
  });
}

}  // namespace thinwire
#endif
