// Thin products on a CUDA device that take the whole matrix to a factor: cuBLAS's; plain loops where the
// device is emulated.

#include "kernels/dense/low_rank.h"

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>

#include "cuda/executor.h"
#include "cuda/runtime.h"

#ifndef THINWIRE_CUDA_EMULATED
#include <cublas_v2.h>
#endif

namespace thinwire {
using namespace cuda;
namespace {

/// A matrix column after column, each `stride` elements behind the one before.
struct ColumnMatrix {
  const float* data;
  std::size_t stride;
};

#ifdef THINWIRE_CUDA_EMULATED

void multiply(CudaExecutor&, bool transposed, std::size_t rows, std::size_t columns, std::size_t inner,
              ColumnMatrix a, ColumnMatrix b, float* product) {
  emulation::run_on_device([&] {
    for (std::size_t j = 0; j < columns; ++j) {
      for (std::size_t i = 0; i < rows; ++i) {
        float sum = 0;
        for (std::size_t k = 0; k < inner; ++k) {
          const float factor = transposed ? a.data[i * a.stride + k] : a.data[k * a.stride + i];
          sum += factor * b.data[j * b.stride + k];
        }
        product[j * rows + i] = sum;
      }
    }
  });
}

#else

void check_blas(cublasStatus_t status, const char* what) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw std::runtime_error(std::string("cuBLAS: ") + what + ": " + cublasGetStatusString(status));
}

/// The executor's handle, made at first use: that takes memory and some milliseconds.
cublasHandle_t blas_handle(CudaExecutor& executor) {
  auto& state = executor.library_state();
  if (state == nullptr) {
    cublasHandle_t handle{};
    check_blas(cublasCreate(&handle), "no handle");
    state = std::shared_ptr<void>(handle, [](void* own) { cublasDestroy(static_cast<cublasHandle_t>(own)); });
    check_blas(cublasSetStream(handle, executor.stream()), "the stream was refused");
  }
  return static_cast<cublasHandle_t>(state.get());
}

/// product [rows x columns, column after column] = a b, or a^T b where `transposed`, over `inner` products
/// each; in float32 throughout.
void multiply(CudaExecutor& executor, bool transposed, std::size_t rows, std::size_t columns,
              std::size_t inner, ColumnMatrix a, ColumnMatrix b, float* product) {
  const float one = 1;
  const float zero = 0;
  const auto size = [](std::size_t value) { return static_cast<std::int64_t>(value); };
  check_blas(cublasSgemm_64(blas_handle(executor), transposed ? CUBLAS_OP_T : CUBLAS_OP_N, CUBLAS_OP_N,
                            size(rows), size(columns), size(inner), &one, a.data, size(a.stride), b.data,
                            size(b.stride), &zero, product, size(rows)),
             "a product could not be started");
}

#endif

/// What lies row after row is, column after column, the transposed matrix. factor: `inner` rows; product:
/// `rows`.
void multiply_matrix(Executor& executor, bool transposed, std::size_t rows, std::size_t rank,
                     std::size_t inner, MatrixShape shape, Span<const float> matrix, Span<const float> factor,
                     Span<float> product) {
  CudaExecutor& own = executor_on_device(executor);
  Operand m(own, matrix);
  Operand f(own, factor);
  Operand p(own, product);
  multiply(own, transposed, rows, rank, inner, {m.data(), shape.columns}, {f.data(), inner}, p.data());
  finish(own, m, f, p);
}

}  // namespace

void multiply_right_on_cuda(Executor& executor, MatrixShape shape, std::size_t rank, Span<const float> matrix,
                            Span<const float> right, Span<float> left) {
  multiply_matrix(executor, true, shape.rows, rank, shape.columns, shape, matrix, right, left);
}

void multiply_left_on_cuda(Executor& executor, MatrixShape shape, std::size_t rank, Span<const float> matrix,
                           Span<const float> left, Span<float> right) {
  multiply_matrix(executor, false, shape.columns, rank, shape.rows, shape, matrix, left, right);
}

}  // namespace thinwire
