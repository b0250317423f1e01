// The products of PowerSGD beside memory and, where the build found one, beside the system's BLAS, on one
// core, in one run: start it with OPENBLAS_NUM_THREADS=1. What each figure counts stands in
// docs/kernels.md.

#include <limits>
#include <random>
#include <vector>

#include "bench/measure.h"
#include "kernels/dense/apply_products.h"
#include "kernels/dense/bf16_products.h"
#include "kernels/dense/low_rank.h"
#include "kernels/dense/orthonormalise.h"

#if THINWIRE_HAVE_BLAS
extern "C" void sgemm_(const char* transpose_a, const char* transpose_b, const int* m, const int* n,
                       const int* k, const float* alpha, const float* a, const int* lda, const float* b,
                       const int* ldb, const float* beta, float* c, const int* ldc);
#endif

namespace thinwire {
namespace {

constexpr std::size_t kLargestRank = 32;

struct Data {
  std::vector<float> gradient, copy, left, right;

  Data() : gradient(kElements), copy(kElements), left(kLargestRank * 5000), right(kLargestRank * 5000) {
    std::mt19937 random(1);
    for (auto* vector : {&gradient, &left, &right}) fill_randomly(random, *vector);
    copy = gradient;
  }
};

constexpr auto& data = made_once<Data>;

struct Case {
  MatrixShape shape;
  std::size_t rank;
};

Case case_of(const benchmark::State& state) {
  return {{static_cast<std::size_t>(state.range(0)), static_cast<std::size_t>(state.range(1))},
          static_cast<std::size_t>(state.range(2))};
}

/// run(case): reads the matrix once; the factors are small beside it.
template <class Run>
void product(benchmark::State& state, Run run) {
  const Case one = case_of(state);
  const auto elements = static_cast<double>(one.shape.elements());
  against_read(state, 4 * elements, elements, [&] { run(one); });
}

void right_product(benchmark::State& state) {
  product(state, [](const Case& one) {
    multiply_right(executor(), one.shape, one.rank, data().gradient, data().right, data().left);
  });
}

void left_product(benchmark::State& state) {
  product(state, [](const Case& one) {
    multiply_left(executor(), one.shape, one.rank, data().gradient, data().left, data().right);
  });
}

constexpr float kNoLimit = std::numeric_limits<float>::infinity();

/// The same with operands rounded to bfloat16, where the processor has such products.
void right_product_bf16(benchmark::State& state) {
  if (!has_bf16_products(executor())) return state.SkipWithError("no bfloat16");
  product(state, [](const Case& one) {
    add_and_multiply_right(executor(), one.shape, one.rank, data().gradient, {}, kNoLimit, data().right,
                           data().left);
  });
}

void left_product_bf16(benchmark::State& state) {
  if (!has_bf16_products(executor())) return state.SkipWithError("no bfloat16");
  product(state, [](const Case& one) {
    add_and_multiply_left(executor(), one.shape, one.rank, data().gradient, {}, kNoLimit, data().left,
                          data().right);
  });
}

/// Reads the gradient, writes mean and residual.
void apply(benchmark::State& state) {
  const Case one = case_of(state);
  const auto elements = static_cast<double>(one.shape.elements());
  std::vector<float> gradient(one.shape.elements());
  against_copy(state, 12 * elements, elements, [&] {
    const Factors factors{data().left, data().right};
    apply_products(executor(), one.shape, one.rank, factors, factors, gradient, data().copy);
  });
}

/// With a second product for the residual.
void apply_both(benchmark::State& state) {
  const Case one = case_of(state);
  const auto elements = static_cast<double>(one.shape.elements());
  std::vector<float> gradient(one.shape.elements());
  const std::vector<float> own(data().right);
  against_copy(state, 12 * elements, elements, [&] {
    apply_products(executor(), one.shape, one.rank, {data().left, data().right}, {data().left, own}, gradient,
                   data().copy);
  });
}

/// Of a left factor: its floats are what is counted.
void orthonormal_columns(benchmark::State& state) {
  const Case one = case_of(state);
  const std::size_t floats = one.shape.rows * one.rank;
  std::vector<float> left(floats);
  against_copy(state, 8 * static_cast<double>(floats), static_cast<double>(floats), [&] {
    std::copy_n(data().left.begin(), floats, left.begin());
    orthonormalise(one.shape.rows, one.rank, left);
  });
}

#if THINWIRE_HAVE_BLAS
/// BLAS counts column after column: to it the matrix is its transpose.
void gemm(const Case& one, const char* transpose, std::size_t m, std::size_t k, const float* factor,
          float* result) {
  const int rows = static_cast<int>(m);
  const int inner = static_cast<int>(k);
  const int rank = static_cast<int>(one.rank);
  const int columns = static_cast<int>(one.shape.columns);
  const float alpha = 1;
  const float beta = 0;
  sgemm_(transpose, "N", &rows, &rank, &inner, &alpha, data().gradient.data(), &columns, factor, &inner,
         &beta, result, &rows);
}

void right_product_blas(benchmark::State& state) {
  product(state, [](const Case& one) {
    gemm(one, "T", one.shape.rows, one.shape.columns, data().right.data(), data().left.data());
  });
}

void left_product_blas(benchmark::State& state) {
  product(state, [](const Case& one) {
    gemm(one, "N", one.shape.columns, one.shape.rows, data().left.data(), data().right.data());
  });
}
#endif

void cases(benchmark::internal::Benchmark* all) {
  all->UseManualTime()->Unit(benchmark::kMicrosecond)->MinTime(0.2);
  for (const auto& [rows, columns] : {std::pair{64, 576}, {512, 2048}, {512, 4608}, {5000, 5000}}) {
    for (const int rank : {1, 2, 4, 8, 32}) all->Args({rows, columns, rank});
  }
}

BENCHMARK(measure_copy<data>)->Name("copy")->UseManualTime()->Unit(benchmark::kMicrosecond);
BENCHMARK(measure_read<data>)->Name("read")->UseManualTime()->Unit(benchmark::kMicrosecond);
BENCHMARK(right_product)->Apply(cases);
#if THINWIRE_HAVE_BLAS
BENCHMARK(right_product_blas)->Apply(cases);
#endif
BENCHMARK(left_product)->Apply(cases);
#if THINWIRE_HAVE_BLAS
BENCHMARK(left_product_blas)->Apply(cases);
#endif
BENCHMARK(right_product_bf16)->Apply(cases);
BENCHMARK(left_product_bf16)->Apply(cases);
BENCHMARK(apply)->Apply(cases);
BENCHMARK(apply_both)->Apply(cases);
BENCHMARK(orthonormal_columns)->Apply(cases);

}  // namespace
}  // namespace thinwire

BENCHMARK_MAIN();
