#include "kernels/dense/apply_products.h"

#include <algorithm>
#include <array>
#include <numeric>

#include "kernels/blocks.h"
#include "kernels/dense/panels.h"
#include "kernels/device/on_device.h"

#include <hwy/cache_control.h>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/dense/apply_products.cc"
#include <hwy/foreach_target.h>  // must come before highway.h

#include "kernels/bits-inl.h"

#ifndef THINWIRE_KERNELS_APPLY_PRODUCTS_ONCE
#define THINWIRE_KERNELS_APPLY_PRODUCTS_ONCE
namespace thinwire {

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

/// take(row, v0, v1, v2, v3) for kRows rows: four vectors of left right^T, added in the order of k.
/// Multiplication and addition are rounded one by one where bits must be the same on every machine: a fused
/// operation would give other ones where a machine lacks it. Rows of left are `rank` long, those of right
/// kPanel.
template <int kRows, bool kSameBits, class Take>
HWY_INLINE void ProductTile(std::size_t rank, Reads<float> left, Reads<float> right, Take&& take) {
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

/// Columns over which squares are summed in float before they go into a double.
constexpr std::size_t kSquaresRun = 2048;

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

  /// Adds the residual's squares: to the lanes of `squares`, of a tile that is not whole to `total`.
  template <class V>
  HWY_INLINE void Take(std::size_t row, V v0, V v1, V v2, V v3, V& squares, double& total) const {
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
        if (residual != nullptr) {
          const float left = gradient[at + j] - m[j];
          residual[at + j] = left;
          total += static_cast<double>(left) * static_cast<double>(left);
        }
        if (mean) gradient[at + j] = m[j];
      }
      return;
    }
    const bool past_caches = goes_past_caches(d, large, residual + at);
    const auto vector = [&](std::size_t j, V m) HWY_ATTR {
      if (residual != nullptr) {
        const V left = hn::Sub(hn::LoadU(d, gradient + j), m);
        squares = hn::MulAdd(left, left, squares);
        store_residual(left, d, residual + j, past_caches);
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
void PackPanels(std::size_t rank, Reads<float> right, std::size_t stride, std::size_t width,
                Writes<float> panels) {
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
HWY_INLINE void PackRows(std::size_t rank, Reads<float> left, std::size_t stride, std::size_t rows,
                         Writes<float> packed) {
  for (std::size_t k = 0; k < rank; ++k) {
    for (std::size_t i = 0; i < kRows; ++i) packed[i * rank + k] = i < rows ? left[k * stride + i] : 0.0f;
  }
}

/// A band of apply_products: `height` rows, `width` columns. gradient and residual: its first row, `columns`
/// from one to the next. room: for packed factors. Rows are walked from end to end, so that memory is read
/// and written in long runs; the panels, which every tile of rows reads anew, stay in the second-level cache.
/// The residual's squares of each `rows_per_sum` rows are added to one of `sums`.
void ApplyToBand(std::size_t rank, FactorsOfBlock mean, FactorsOfBlock own, std::size_t height,
                 std::size_t width, std::size_t columns, Writes<float> gradient, Writes<float> residual,
                 bool large, Writes<float> room, std::size_t rows_per_sum, Writes<double> sums) {
  const FloatTag d;
  constexpr std::size_t kRows = kManyRegisters ? 4 : 2;
  const std::size_t step = 4 * hn::Lanes(d);
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
    double total = 0;
    auto squares = hn::Zero(d);
    for (std::size_t j = 0; j < width; j += step) {
      if (j % kSquaresRun == 0 && j != 0) {
        total += static_cast<double>(hn::GetLane(hn::SumOfLanes(d, squares)));
        squares = hn::Zero(d);
      }
      const std::size_t at = i * columns + j;
      const std::size_t panel = j / kPanel * kPanel * rank + j % kPanel;
      Target target{
          gradient + at, residual == nullptr ? nullptr : residual + at, large, true, columns, height - i,
          width - j};
      const auto take = [&](std::size_t row, auto v0, auto v1, auto v2, auto v3)
                            HWY_ATTR { target.Take(row, v0, v1, v2, v3, squares, total); };
      if (differ) {
        target.mean = false;
        ProductTile<kRows, false>(rank, own_left, own_right + panel, take);
        target.mean = true;
        target.residual = nullptr;
      }
      ProductTile<kRows, true>(rank, left, right + panel, take);
    }
    sums[i / rows_per_sum] += total + static_cast<double>(hn::GetLane(hn::SumOfLanes(d, squares)));
  }
  if (large) hwy::FlushStream();
}

}  // namespace thinwire::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace thinwire {
namespace {

constexpr std::size_t kTileRows = 4;  ///< At most.
/// Sums of squares, each of the same rows whoever computes it.
constexpr std::size_t kMostSums = 256;

}  // namespace

HWY_EXPORT(ApplyToBand);

void apply_products(Executor& executor, MatrixShape shape, std::size_t rank, Factors mean, Factors own,
                    Span<float> gradient, const ResidualSpan& residual, Span<double> squares) {
  THINWIRE_ON_DEVICE(apply_products, executor, shape, rank, mean, own, gradient, residual, squares);
  const auto part = [&](const Factors& factors, std::size_t i, std::size_t j) {
    return FactorsOfBlock{factors.left.data() + i, shape.rows, factors.right.data() + j, shape.columns};
  };
  const std::size_t band = band_columns(rank);
  std::array<double, kMostSums> sums{};
  const std::size_t rows_per_sum = (shape.rows / kMostSums / kRowBlock + 1) * kRowBlock;
  executor.parallel_for(shape.rows, rows_per_sum, [&](std::size_t begin, std::size_t end) {
    float* const room = kept_room(2 * rank * (std::min(band, shape.columns + kPanel) + kTileRows));
    for (std::size_t j = 0; j < shape.columns; j += band) {
      const std::size_t at = begin * shape.columns + j;
      HWY_DYNAMIC_DISPATCH(ApplyToBand)
      (rank, part(mean, begin, j), part(own, begin, j), end - begin, std::min(band, shape.columns - j),
       shape.columns, gradient.data() + at, data_at(residual.after, at), residual.large, room, rows_per_sum,
       sums.data() + begin / rows_per_sum);
    }
  });
  if (!squares.empty()) squares[0] = std::accumulate(sums.begin(), sums.end(), 0.0);
}

}  // namespace thinwire
#endif
