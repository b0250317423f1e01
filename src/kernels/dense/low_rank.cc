#include "kernels/dense/low_rank.h"

#include <algorithm>
#include <atomic>
#include <cmath>

#include "kernels/blocks.h"
#include "kernels/device/on_device.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/dense/low_rank.cc"
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>

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

/// Rows [begin, end) of left = matrix right; begin is a multiple of 4.
void MultiplyRight(const float* HWY_RESTRICT matrix, std::size_t rows, std::size_t columns, std::size_t rank,
                   const float* HWY_RESTRICT right, float* HWY_RESTRICT left, std::size_t begin,
                   std::size_t end) {
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

/// Columns [begin, begin + count) of right = matrix^T left.
void MultiplyLeft(const float* HWY_RESTRICT matrix, std::size_t rows, std::size_t columns, std::size_t rank,
                  const float* HWY_RESTRICT left, float* HWY_RESTRICT right, std::size_t begin,
                  std::size_t count) {
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

/// One row of apply_product, `count` columns of it. Multiplication and addition are rounded one by one: a
/// fused operation would give other bits where a machine lacks it.
void ApplyProduct(std::size_t rank, const float* HWY_RESTRICT left, std::size_t left_stride,
                  const float* HWY_RESTRICT right, std::size_t right_stride, float* HWY_RESTRICT gradient,
                  float* HWY_RESTRICT residual, std::size_t count) {
  const FloatTag d;
  const std::size_t lanes = hn::Lanes(d);
  std::size_t j = 0;
  for (; j + lanes <= count; j += lanes) {
    auto m = hn::Mul(hn::Set(d, left[0]), hn::LoadU(d, right + j));
    for (std::size_t k = 1; k < rank; ++k) {
      const auto product =
          hn::Mul(hn::Set(d, left[k * left_stride]), hn::LoadU(d, right + k * right_stride + j));
      m = hn::Add(m, product);
    }
    if (residual != nullptr) hn::StoreU(hn::Sub(hn::LoadU(d, gradient + j), m), d, residual + j);
    hn::StoreU(m, d, gradient + j);
  }
  for (; j < count; ++j) {
    float m = left[0] * right[j];
    for (std::size_t k = 1; k < rank; ++k) m += left[k * left_stride] * right[k * right_stride + j];
    if (residual != nullptr) residual[j] = gradient[j] - m;
    gradient[j] = m;
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

/// Rows and columns that one task works on: 4 KB of a row, so that memory is read in long runs while the
/// factors stay in the first-level cache.
constexpr std::size_t kColumnBlock = 1024;
constexpr std::size_t kRowBlock = 16;

/// Below this, next to its length before, what is left of a column is rounding.
constexpr double kDependent = 1e-7;

double dot(Span<const float> a, Span<const float> b) {
  // Four sums, always the same ones: one alone would wait for every addition.
  double sums[4] = {};
  std::size_t i = 0;
  for (; i + 4 <= a.size(); i += 4) {
    for (std::size_t k = 0; k < 4; ++k) {
      sums[k] += static_cast<double>(a[i + k]) * static_cast<double>(b[i + k]);
    }
  }
  for (; i < a.size(); ++i) sums[0] += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

}  // namespace

HWY_EXPORT(MultiplyRight);
HWY_EXPORT(MultiplyLeft);
HWY_EXPORT(ApplyProduct);
HWY_EXPORT(AddWithin);

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
    for (std::size_t j = begin; j < end; j += kColumnBlock) {
      HWY_DYNAMIC_DISPATCH(MultiplyLeft)
      (matrix.data(), shape.rows, shape.columns, rank, left.data(), right.data(), j,
       std::min(kColumnBlock, end - j));
    }
  });
}

void orthonormalise(std::size_t rows, std::size_t rank, Span<float> left) {
  // Columns stay floats and only sums are doubles: the second round removes what rounding the first one
  // left, and the bits sent are those that the projections were computed from.
  for (std::size_t k = 0; k < rank; ++k) {
    const auto column = left.subspan(k * rows, rows);
    const auto scale_by = [&](double factor) {
      for (float& value : column) value = static_cast<float>(static_cast<double>(value) * factor);
    };
    bool independent = true;
    for (int round = 0; round < 2 && independent; ++round) {
      const double before = std::sqrt(dot(column, column));
      independent = before > 0;
      if (!independent) break;
      scale_by(1 / before);
      for (std::size_t other = 0; other < k; ++other) {
        const auto basis = left.subspan(other * rows, rows);
        const double along = dot(basis, column);
        for (std::size_t i = 0; i < rows; ++i) {
          column[i] =
              static_cast<float>(static_cast<double>(column[i]) - along * static_cast<double>(basis[i]));
        }
      }
      const double after = std::sqrt(dot(column, column));
      independent = after > kDependent;
      if (independent) scale_by(1 / after);
    }
    if (!independent) std::fill(column.begin(), column.end(), 0.0f);
  }
}

void apply_product(Executor& executor, MatrixShape shape, std::size_t rank, Span<const float> left,
                   Span<const float> right, Span<float> gradient, Span<float> residual) {
  THINWIRE_ON_DEVICE(apply_product, executor, shape, rank, left, right, gradient, residual);
  executor.parallel_for(shape.rows, kRowBlock, [&](std::size_t begin, std::size_t end) {
    for (std::size_t block = begin; block < end; block += kRowBlock) {
      for (std::size_t j = 0; j < shape.columns; j += kColumnBlock) {
        const std::size_t count = std::min(kColumnBlock, shape.columns - j);
        for (std::size_t i = block; i < std::min(block + kRowBlock, end); ++i) {
          const std::size_t at = i * shape.columns + j;
          HWY_DYNAMIC_DISPATCH(ApplyProduct)
          (rank, left.data() + i, shape.rows, right.data() + j, shape.columns, gradient.data() + at,
           data_at(residual, at), count);
        }
      }
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
