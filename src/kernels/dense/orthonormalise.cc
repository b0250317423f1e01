#include "kernels/dense/orthonormalise.h"

#include <algorithm>
#include <cmath>

#include "kernels/operands.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/dense/orthonormalise.cc"
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace thinwire::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

/// Of a dot product.
constexpr std::size_t kPartialSums = 8;

/// sums[c] = column c's dot product with `with`, for `count` <= 4 columns. Eight partial sums whatever the
/// vectors' length, and products rounded before they are added: the same bits on every machine.
void DotsWithColumns(Reads<float> columns, std::size_t stride, std::size_t count, Reads<float> with,
                     std::size_t rows, Writes<double> sums) {
  const HWY_CAPPED(double, kPartialSums) d;
  const hn::Rebind<float, decltype(d)> of_floats;
  const std::size_t lanes = hn::Lanes(d);
  const std::size_t whole = rows / kPartialSums * kPartialSums;
  // A column that is not there is the first one again.
  const auto column = [&](std::size_t c) { return columns + (c < count ? c : 0) * stride; };
  Reads<float> c0 = column(0);
  Reads<float> c1 = column(1);
  Reads<float> c2 = column(2);
  Reads<float> c3 = column(3);
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
void SubtractColumns(Reads<float> columns, std::size_t stride, std::size_t count, Reads<double> along,
                     double factor, Writes<float> column, std::size_t rows) {
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

}  // namespace thinwire::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace thinwire {
namespace {

/// Below this, next to its length before, what is left of a column is rounding.
constexpr double kDependent = 1e-7;

}  // namespace

HWY_EXPORT(DotsWithColumns);
HWY_EXPORT(SubtractColumns);

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

}  // namespace thinwire
#endif
