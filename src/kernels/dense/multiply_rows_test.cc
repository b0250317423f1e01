#include "kernels/dense/multiply_rows.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "kernels/dense/symmetric_eigen.h"
#include "kernels/test_vectors.h"

namespace thinwire::multiply_rows_test {
namespace {

struct Case {
  std::size_t rows;
  std::size_t inner;
  std::size_t columns;
};

/// Tails of rows, of columns and of a run, several tasks.
const std::vector<Case> kCases = {{1, 1, 1},    {6, 8, 16},    {7, 5, 3},     {200, 128, 128},
                                  {19, 64, 33}, {13, 700, 40}, {400, 16, 32}, {5, 257, 17}};

RowsOf<const float> read(const std::vector<float>& values, std::size_t stride) {
  return {Span<const float>(values), stride};
}

TEST(MultiplyRows, IsTheSumOfProductsFromTheBaseOn) {
  for (const int threads : {1, 3}) {
    const auto executor = make_cpu_executor(threads);
    for (const auto& [rows, inner, columns] : kCases) {
      SCOPED_TRACE(testing::Message() << rows << " " << inner << " " << columns);
      // Strides are longer than rows; what lies between them is not touched.
      const auto from = test_values(rows * (inner + 3), 1);
      const auto by = test_values(inner * (columns + 1), 2);
      const auto base = test_values(rows * (columns + 2), 3);
      for (const Rounding rounding : {Rounding::fused, Rounding::same_bits}) {
        for (const bool based : {false, true}) {
          std::vector<float> to(rows * (columns + 5), -7.0f);
          multiply_rows(*executor, rows, inner, columns, read(from, inner + 3), read(by, columns + 1),
                        based ? read(base, columns + 2) : RowsOf<const float>(),
                        RowsOf<float>{Span<float>(to), columns + 5}, rounding);
          for (std::size_t i = 0; i < rows; ++i) {
            for (std::size_t j = 0; j < columns; ++j) {
              float same = based ? base[i * (columns + 2) + j] : 0;
              double sum = static_cast<double>(same);
              double size = std::fabs(sum);
              for (std::size_t k = 0; k < inner; ++k) {
                const float one = from[i * (inner + 3) + k];
                const float other = by[k * (columns + 1) + j];
                same += one * other;
                sum += static_cast<double>(one) * static_cast<double>(other);
                size += std::fabs(static_cast<double>(one) * static_cast<double>(other));
              }
              const float result = to[i * (columns + 5) + j];
              if (rounding == Rounding::same_bits) {
                ASSERT_EQ(result, same) << i << " " << j;
              } else {
                ASSERT_NEAR(static_cast<double>(result), sum, 1e-5 * size) << i << " " << j;
              }
            }
            for (std::size_t j = columns; j < columns + 5; ++j) ASSERT_EQ(to[i * (columns + 5) + j], -7.0f);
          }
        }
      }
    }
  }
}

TEST(MultiplyRows, AddsToItsOwnBase) {
  const auto executor = make_cpu_executor(1);
  const auto from = test_values(20 * 300, 1);
  const auto by = test_values(300 * 24, 2);
  const auto base = test_values(20 * 24, 3);
  std::vector<float> apart(base.size());
  auto in_place = base;
  multiply_rows(*executor, 20, 300, 24, read(from, 300), read(by, 24), read(base, 24),
                {Span<float>(apart), 24}, Rounding::fused);
  multiply_rows(*executor, 20, 300, 24, read(from, 300), read(by, 24), read(in_place, 24),
                {Span<float>(in_place), 24}, Rounding::fused);
  EXPECT_EQ(apart, in_place);
}

TEST(TransposeRows, SwapsRowsAndColumns) {
  const auto executor = make_cpu_executor(2);
  for (const auto& [rows, columns, unused] : kCases) {
    const auto from = test_values(rows * (columns + 1), 4);
    std::vector<float> to(columns * (rows + 2), -7.0f);
    transpose_rows(*executor, rows, columns, read(from, columns + 1), {Span<float>(to), rows + 2});
    for (std::size_t i = 0; i < rows; ++i) {
      for (std::size_t j = 0; j < columns; ++j)
        ASSERT_EQ(to[j * (rows + 2) + i], from[i * (columns + 1) + j]);
    }
    for (std::size_t j = 0; j < columns; ++j) ASSERT_EQ(to[j * (rows + 2) + rows], -7.0f);
  }
}

/// vectors diag(matrix) vectors^T
double rebuilt(std::size_t n, const std::vector<double>& values, const std::vector<double>& vectors,
               std::size_t i, std::size_t j) {
  double sum = 0;
  for (std::size_t k = 0; k < n; ++k) sum += vectors[k * n + i] * values[k * n + k] * vectors[k * n + j];
  return sum;
}

TEST(SymmetricEigenvectors, TakeTheMatrixApartAndAreOrthonormal) {
  for (const std::size_t n : {1u, 2u, 5u, 32u, 128u}) {
    // Of full rank, of rank 1 (equal eigenvalues), and zeros.
    for (const int kind : {0, 1, 2}) {
      std::vector<double> matrix(n * n, 0);
      const auto values = test_values(n * n, 5);
      for (std::size_t i = 0; i < n; ++i) {
        for (std::size_t j = 0; j < n; ++j) {
          if (kind == 0) matrix[i * n + j] = static_cast<double>(values[i * n + j] + values[j * n + i]);
          if (kind == 1) matrix[i * n + j] = static_cast<double>(values[i]) * static_cast<double>(values[j]);
        }
      }
      const auto original = matrix;
      std::vector<double> vectors(n * n);
      symmetric_eigenvectors(n, Span<double>(matrix), Span<double>(vectors), 1e-9);
      double size = 1e-30;
      for (const double one : original) size = std::max(size, std::fabs(one));
      for (std::size_t i = 0; i < n; ++i) {
        ASSERT_GE(matrix[i * n + i], matrix[std::min(i + 1, n - 1) * (n + 1)]);
        for (std::size_t j = 0; j < n; ++j) {
          double product = 0;
          for (std::size_t k = 0; k < n; ++k) product += vectors[i * n + k] * vectors[j * n + k];
          ASSERT_NEAR(product, i == j ? 1 : 0, 1e-10);
          ASSERT_NEAR(rebuilt(n, matrix, vectors, i, j), original[i * n + j],
                      1e-5 * static_cast<double>(n) * size);
        }
      }
    }
  }
}

}  // namespace
}  // namespace thinwire::multiply_rows_test
