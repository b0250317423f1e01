#include "kernels/dense/low_rank.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "kernels/dense/apply_products.h"
#include "kernels/dense/bf16_products.h"
#include "kernels/dense/dense.h"
#include "kernels/dense/orthonormalise.h"
#include "kernels/test_executors.h"
#include "kernels/test_vectors.h"

namespace thinwire::low_rank_test {
namespace {

struct Case {
  MatrixShape shape;
  std::size_t rank;
};

/// Every path: single rows, groups of four and two, tails of columns, several runs, blocks and bands of
/// columns, more columns of factors than a vector has lanes.
const std::vector<Case> kCases = {{{1, 1}, 1},     {{1, 7}, 2},      {{3, 70}, 3},     {{4, 64}, 4},
                                  {{5, 65}, 5},    {{17, 33}, 8},    {{64, 9}, 4},     {{33, 1025}, 6},
                                  {{7, 5000}, 4},  {{200, 130}, 1},  {{130, 2100}, 2}, {{37, 200}, 12},
                                  {{50, 129}, 16}, {{41, 2101}, 32}, {{19, 70}, 45},   {{3, 5}, 9}};

void expect_same_bits(const std::vector<float>& a, const std::vector<float>& b, const std::string& where) {
  ASSERT_EQ(a.size(), b.size());
  EXPECT_TRUE(a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0) << where;
}

TEST(LowRank, ProductsAgreeWithTheirDefinitions) {
  for_each_executor([&](Executor& executor, const std::string& name) {
    for (const auto& [shape, rank] : kCases) {
      SCOPED_TRACE(testing::Message() << name << " " << shape.rows << "x" << shape.columns << " " << rank);
      const auto matrix = test_values(shape.elements(), 1);
      const auto right = test_values(rank * shape.columns, 2);
      const auto left = test_values(rank * shape.rows, 3);
      Placed placed_matrix(executor, matrix);
      Placed placed_left(executor, std::vector<float>(left.size(), -1.0f));
      // One factor in host memory.
      std::vector<float> to_right(right.size(), -1.0f);
      multiply_right(executor, shape, rank, placed_matrix, Placed(executor, right), placed_left);
      multiply_left(executor, shape, rank, placed_matrix, Placed(executor, left), to_right);
      const auto to_left = placed_left.read();
      for (std::size_t k = 0; k < rank; ++k) {
        for (std::size_t i = 0; i < shape.rows; ++i) {
          double sum = 0;
          double magnitude = 1e-30;
          for (std::size_t j = 0; j < shape.columns; ++j) {
            const double product = static_cast<double>(matrix[i * shape.columns + j]) *
                                   static_cast<double>(right[k * shape.columns + j]);
            sum += product;
            magnitude += std::fabs(product);
          }
          ASSERT_NEAR(static_cast<double>(to_left[k * shape.rows + i]), sum, 1e-5 * magnitude);
        }
        for (std::size_t j = 0; j < shape.columns; ++j) {
          double sum = 0;
          double magnitude = 1e-30;
          for (std::size_t i = 0; i < shape.rows; ++i) {
            const double product = static_cast<double>(matrix[i * shape.columns + j]) *
                                   static_cast<double>(left[k * shape.rows + i]);
            sum += product;
            magnitude += std::fabs(product);
          }
          ASSERT_NEAR(static_cast<double>(to_right[k * shape.columns + j]), sum, 1e-5 * magnitude);
        }
      }
    }
  });
}

TEST(LowRank, ABadValueSpoilsItsRowInEveryColumn) {
  const MatrixShape shape{9, 130};
  constexpr std::size_t kRank = 3;
  for_each_executor([&](Executor& executor, const std::string& name) {
    for (const float bad :
         {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
      for (const std::size_t at : {std::size_t{0}, 4 * shape.columns + 129}) {
        auto matrix = test_values(shape.elements(), 1);
        matrix[at] = bad;
        Placed left(executor, std::vector<float>(kRank * shape.rows));
        multiply_right(executor, shape, kRank, Placed(executor, matrix),
                       Placed(executor, std::vector<float>(kRank * shape.columns, 0.0f)), left);
        const auto values = left.read();
        for (std::size_t i = 0; i < values.size(); ++i) {
          ASSERT_EQ(std::isfinite(values[i]), i % shape.rows != at / shape.columns) << name << " " << i;
        }
      }
    }
  });
}

/// Rounded to bfloat16, to the even one of two that are as near.
double in_bf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) & 0xffff0000u;
  return static_cast<double>(std::bit_cast<float>(rounded));
}

struct Sum {
  double value = 0;
  double magnitude = 1e-30;

  void add(float a, float b) {
    const double product = in_bf16(a) * in_bf16(b);
    value += product;
    magnitude += std::fabs(product);
  }
};

/// Runs body(executor, name) wherever there are products of bfloat16.
template <class Body>
void for_each_with_bf16(Body body) {
  bool any = false;
  for_each_executor([&](Executor& executor, const std::string& name) {
    if (!has_bf16_products(executor)) return;
    any = true;
    body(executor, name);
  });
  if (!any) GTEST_SKIP() << "no processor with products of bfloat16";
}

TEST(LowRank, ProductsOfBfloat16AgreeWithTheirDefinitions) {
  for_each_with_bf16([&](Executor& executor, const std::string& name) {
    for (const auto& [shape, rank] : kCases) {
      SCOPED_TRACE(testing::Message() << name << " " << shape.rows << "x" << shape.columns << " " << rank);
      const auto gradient = test_values(shape.elements(), 1);
      const auto residual = test_values(shape.elements(), 4);
      const auto right = test_values(rank * shape.columns, 2);
      const auto left = test_values(rank * shape.rows, 3);
      std::vector<float> p(gradient);
      for (std::size_t i = 0; i < p.size(); ++i) p[i] += residual[i];
      std::vector<float> to_left(left.size(), -1.0f), to_right(right.size(), -1.0f);
      std::vector<float> of_right(gradient), of_left(gradient);
      EXPECT_TRUE(add_and_multiply_right(executor, shape, rank, of_right, residual, 100, right, to_left));
      EXPECT_TRUE(add_and_multiply_left(executor, shape, rank, of_left, residual, 100, left, to_right));
      expect_same_bits(of_right, p, "p of the right product");
      expect_same_bits(of_left, p, "p of the left product");
      for (std::size_t k = 0; k < rank; ++k) {
        for (std::size_t i = 0; i < shape.rows; ++i) {
          Sum sum;
          for (std::size_t j = 0; j < shape.columns; ++j) {
            sum.add(p[i * shape.columns + j], right[k * shape.columns + j]);
          }
          ASSERT_NEAR(static_cast<double>(to_left[k * shape.rows + i]), sum.value, 1e-5 * sum.magnitude);
        }
        for (std::size_t j = 0; j < shape.columns; ++j) {
          Sum sum;
          for (std::size_t i = 0; i < shape.rows; ++i) {
            sum.add(p[i * shape.columns + j], left[k * shape.rows + i]);
          }
          ASSERT_NEAR(static_cast<double>(to_right[k * shape.columns + j]), sum.value, 1e-5 * sum.magnitude);
        }
      }
      // Without a residual nothing is written.
      add_and_multiply_right(executor, shape, rank, of_right, {}, 100, right, to_left);
      expect_same_bits(of_right, p, "read alone");
    }
  });
}

TEST(LowRank, ProductsOfBfloat16NoticeValuesBeyondTheLimit) {
  const MatrixShape shape{67, 2100};
  constexpr std::size_t kRank = 2;
  for_each_with_bf16([&](Executor& executor, const std::string& name) {
    const std::vector<float> left(kRank * shape.rows), right(kRank * shape.columns);
    for (const float bad :
         {51.0f, -std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
      for (const std::size_t at : {std::size_t{0}, shape.columns + 2090, shape.elements() - 1}) {
        auto gradient = test_values(shape.elements(), 1);
        gradient[at] = bad;
        std::vector<float> to_left(left.size()), to_right(right.size());
        const auto both_notice = [&](float limit) {
          const bool one =
              !add_and_multiply_right(executor, shape, kRank, gradient, {}, limit, right, to_left);
          const bool other =
              !add_and_multiply_left(executor, shape, kRank, gradient, {}, limit, left, to_right);
          EXPECT_EQ(one, other) << name << " " << at;
          return one;
        };
        EXPECT_TRUE(both_notice(50)) << name << " " << at;
        EXPECT_FALSE(both_notice(std::numeric_limits<float>::infinity())) << name << " " << at;
      }
    }
  });
}

/// left right^T, added in the order of the factors' columns.
std::vector<float> product_of(MatrixShape shape, std::size_t rank, const std::vector<float>& left,
                              const std::vector<float>& right) {
  std::vector<float> product(shape.elements());
  for (std::size_t i = 0; i < shape.rows; ++i) {
    for (std::size_t j = 0; j < shape.columns; ++j) {
      float m = left[i] * right[j];
      for (std::size_t k = 1; k < rank; ++k) {
        const float summand = left[k * shape.rows + i] * right[k * shape.columns + j];
        m += summand;
      }
      product[i * shape.columns + j] = m;
    }
  }
  return product;
}

TEST(LowRank, MeansHaveTheSameBitsOnEveryExecutor) {
  for_each_executor([&](Executor& executor, const std::string& name) {
    for (const auto& [shape, rank] : kCases) {
      const auto left = test_values(rank * shape.rows, 1);
      const auto right = test_values(rank * shape.columns, 2);
      const auto own_left = test_values(rank * shape.rows, 4);
      const auto own_right = test_values(rank * shape.columns, 5);
      const auto p = test_values(shape.elements(), 3);
      const auto mean = product_of(shape, rank, left, right);
      const auto less = [&](const std::vector<float>& m) {
        std::vector<float> rest(p);
        for (std::size_t i = 0; i < rest.size(); ++i) rest[i] -= m[i];
        return rest;
      };
      Placed placed(executor, left);
      const Factors factors{placed, right};
      const auto check = [&](const Factors& own, const std::vector<float>& rest, const std::string& which) {
        Placed gradient(executor, p);
        Placed residual(executor, std::vector<float>(p.size(), 7.0f));
        Placed squares(executor, std::vector<double>{-1});
        apply_products(executor, shape, rank, factors, own, gradient, residual, squares);
        expect_same_bits(gradient.read(), mean, name + ", mean, " + which);
        const auto left_over = residual.read();
        if (own.left.data() == factors.left.data() && own.right.data() == factors.right.data()) {
          expect_same_bits(left_over, rest, name + ", residual, " + which);
        }
        double expected = 0;
        for (std::size_t i = 0; i < rest.size(); ++i) {
          ASSERT_NEAR(left_over[i], rest[i], 1e-5f * static_cast<float>(rank)) << name << which << i;
          expected += static_cast<double>(left_over[i]) * static_cast<double>(left_over[i]);
        }
        EXPECT_NEAR(squares.read()[0], expected, 1e-5 * expected) << name << which;
      };
      check(factors, less(mean), "own is the mean");
      check({placed, own_right}, less(product_of(shape, rank, left, own_right)), "another right factor");
      Placed placed_own(executor, own_left);
      check({placed_own, right}, less(product_of(shape, rank, own_left, right)), "another left factor");
      Placed alone(executor, p);
      apply_products(executor, shape, rank, {left, Placed(executor, right)}, {}, alone, {});
      expect_same_bits(alone.read(), mean, name + ", no residual");
    }
  });
}

TEST(LowRank, OrthonormalColumnsHaveTheSameBitsOnEveryMachine) {
  for (const auto& [rows, rank] : {std::pair{std::size_t{1}, std::size_t{1}}, {7, 3}, {16, 5}, {501, 33}}) {
    std::vector<std::vector<float>> results;
    for_each_executor([&](Executor&, const std::string&) {
      results.push_back(test_values(rows * rank, 9));
      orthonormalise(rows, rank, results.back());
    });
    for (const auto& result : results) expect_same_bits(result, results.front(), std::to_string(rows));
  }
}

TEST(LowRank, SumsOfSquaresDoNotDependOnTheNumberOfThreads) {
  // More rows than there are sums for blocks of them.
  const MatrixShape shape{5003, 70};
  const auto left = test_values(2 * shape.rows, 1);
  const auto right = test_values(2 * shape.columns, 2);
  std::vector<double> squares;
  for (const int threads : {1, 3}) {
    const auto executor = make_cpu_executor(threads);
    auto gradient = test_values(shape.elements(), 3);
    std::vector<float> residual(gradient.size());
    double of_residual = 0;
    apply_products(*executor, shape, 2, {left, right}, {left, right}, gradient, residual, {&of_residual, 1});
    double expected = 0;
    for (const float value : residual) expected += static_cast<double>(value) * static_cast<double>(value);
    EXPECT_NEAR(of_residual, expected, 1e-5 * expected);
    squares.push_back(of_residual);
  }
  EXPECT_EQ(squares[0], squares[1]);
}

TEST(LowRank, ThreadsDoNotChangeABit) {
  const auto one = make_cpu_executor(1);
  const auto three = make_cpu_executor(3);
  const MatrixShape shape{101, 5003};
  const auto matrix = test_values(shape.elements(), 1);
  const auto right = test_values(4 * shape.columns, 2);
  const auto left = test_values(4 * shape.rows, 3);
  std::vector<float> left1(left.size()), left3(left.size()), right1(right.size()), right3(right.size());
  multiply_right(*one, shape, 4, matrix, right, left1);
  multiply_right(*three, shape, 4, matrix, right, left3);
  expect_same_bits(left1, left3, "left");
  multiply_left(*one, shape, 4, matrix, left, right1);
  multiply_left(*three, shape, 4, matrix, left, right3);
  expect_same_bits(right1, right3, "right");
}

double dot_of_columns(const std::vector<float>& left, std::size_t rows, std::size_t a, std::size_t b) {
  double sum = 0;
  for (std::size_t i = 0; i < rows; ++i) {
    sum += static_cast<double>(left[a * rows + i]) * static_cast<double>(left[b * rows + i]);
  }
  return sum;
}

TEST(LowRank, ColumnsBecomeOrthonormalEvenWhenNearlyDependent) {
  constexpr std::size_t kRows = 501;
  constexpr std::size_t kRank = 6;
  auto left = test_values(kRows * kRank, 1);
  for (std::size_t i = 0; i < kRows; ++i) {
    left[2 * kRows + i] = left[i] + 1e-5f * left[2 * kRows + i];  // almost column 0
    left[3 * kRows + i] *= 1e-30f;                                // tiny, yet a direction of its own
  }
  const auto before = left;
  orthonormalise(kRows, kRank, left);
  for (std::size_t a = 0; a < kRank; ++a) {
    for (std::size_t b = 0; b <= a; ++b) {
      EXPECT_NEAR(dot_of_columns(left, kRows, a, b), a == b ? 1 : 0, 2e-6) << a << " " << b;
    }
  }
  // The first column keeps its direction.
  double length = 0;
  for (std::size_t i = 0; i < kRows; ++i) {
    length += static_cast<double>(before[i]) * static_cast<double>(before[i]);
  }
  for (std::size_t i = 0; i < kRows; ++i) {
    EXPECT_NEAR(static_cast<double>(left[i]) * std::sqrt(length), static_cast<double>(before[i]), 1e-5);
  }
}

TEST(LowRank, DependentAndZeroColumnsBecomeZero) {
  constexpr std::size_t kRows = 4;
  std::vector<float> left = {0, 0, 0, 0, 1, 2, 2, 0, -2, -4, -4, 0, 0, 0, 0, 3, 1, 2, 2, 4};
  orthonormalise(kRows, 5, left);
  const std::vector<float> expected = {0, 0, 0, 0, 1.0f / 3.0f, 2.0f / 3.0f, 2.0f / 3.0f, 0, 0, 0,
                                       0, 0, 0, 0, 0,           1,           0,           0, 0, 0};
  for (std::size_t i = 0; i < left.size(); ++i) EXPECT_NEAR(left[i], expected[i], 1e-7f) << i;
  std::vector<float> more_than_rows = {3, -4};
  orthonormalise(1, 2, more_than_rows);
  EXPECT_EQ(more_than_rows, (std::vector<float>{1, 0}));
}

TEST(LowRank, ValuesBeyondTheLimitAreNoticedWhereverTheyAre) {
  for_each_executor([&](Executor& executor, const std::string& name) {
    for (const std::size_t count : kTestSizes) {
      const auto a = test_values(count, 1);
      const auto b = test_values(count, 2);
      Placed sum(executor, a);
      EXPECT_TRUE(add_within(executor, sum, Placed(executor, b), 100.0f)) << name;
      const auto sums = sum.read();
      for (std::size_t i = 0; i < count; ++i) ASSERT_EQ(sums[i], a[i] + b[i]) << name;
      EXPECT_TRUE(add_within(executor, sum, {}, 100.0f)) << name;
      EXPECT_EQ(sum.read(), sums);
      if (count == 0) continue;
      for (const std::size_t at : {std::size_t{0}, count / 2, count - 1}) {
        for (const float bad :
             {101.0f, -std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
          auto spoilt = a;
          spoilt[at] = bad;
          EXPECT_FALSE(add_within(executor, Placed(executor, spoilt), {}, 50.0f)) << name << " " << at;
        }
      }
    }
  });
}

TEST(LowRank, ChunksAreGatheredAndScattered) {
  for_each_executor([&](Executor& executor, const std::string& name) {
    for (const auto& chunks :
         {std::vector<VectorChunk>{}, std::vector<VectorChunk>{{3, 1, 0}},
          std::vector<VectorChunk>{{0, 5, 0}, {7, 1, 5}, {64, 130, 6}, {3000, 7000, 136}}}) {
      const auto vector = test_values(10'000, 1);
      std::vector<float> together;
      for (const VectorChunk& chunk : chunks) {
        for (std::size_t i = 0; i < chunk.count; ++i) together.push_back(vector[chunk.begin + i]);
      }
      Placed target(executor, std::vector<float>(together.size()));
      gather_chunks(executor, chunks, Placed(executor, vector), target);
      expect_same_bits(target.read(), together, name);
      std::vector<float> gradient(vector.size(), 2.0f);
      std::vector<float> residual(vector.size(), 3.0f);
      Placed placed_gradient(executor, gradient);
      Placed placed_residual(executor, residual);
      scatter_chunks(executor, chunks, target, placed_gradient, placed_residual);
      Placed alone(executor, gradient);
      scatter_chunks(executor, chunks, target, alone, {});
      for (const VectorChunk& chunk : chunks) {
        for (std::size_t i = chunk.begin; i < chunk.begin + chunk.count; ++i) {
          gradient[i] = vector[i];
          residual[i] = 0;
        }
      }
      expect_same_bits(placed_gradient.read(), gradient, name);
      expect_same_bits(placed_residual.read(), residual, name);
      expect_same_bits(alone.read(), gradient, name);
    }
  });
}

}  // namespace
}  // namespace thinwire::low_rank_test
