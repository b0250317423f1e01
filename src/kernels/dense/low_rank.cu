// Thin products on a CUDA device that take the whole matrix to a factor: cuBLAS's.

#include "kernels/dense/low_rank.h"
#include "kernels/device/device_blas.h"

namespace thinwire {
using namespace cuda;

// What lies row after row is, column after column, the transposed matrix.

void multiply_right_on_cuda(Executor& executor, MatrixShape shape, std::size_t rank, Span<const float> matrix,
                            Span<const float> right, Span<float> left) {
  CudaExecutor& own = executor_on_device(executor);
  Operand m(own, matrix);
  Operand r(own, right);
  Operand l(own, left);
  multiply(own, true, shape.rows, rank, shape.columns, {m.data(), shape.columns}, {r.data(), shape.columns},
           l.data());
  finish(own, m, r, l);
}

void multiply_left_on_cuda(Executor& executor, MatrixShape shape, std::size_t rank, Span<const float> matrix,
                           Span<const float> left, Span<float> right) {
  CudaExecutor& own = executor_on_device(executor);
  Operand m(own, matrix);
  Operand l(own, left);
  Operand r(own, right);
  multiply(own, false, shape.columns, rank, shape.rows, {m.data(), shape.columns}, {l.data(), shape.rows},
           r.data());
  finish(own, m, l, r);
}

}  // namespace thinwire
