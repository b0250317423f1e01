// Finding non-zeros on a CUDA device: one pass over the vectors marks them as bits, and a second one reads
// the marked elements alone.

#include "kernels/rows/nonzeros.h"

#include "kernels/rows/bit_list.h"

namespace thinwire {
using namespace cuda;
namespace {

struct IsNonzero {
  const float* gradient;
  const float* residual;
  // NaN is not equal to 0.
  __device__ bool operator()(std::size_t i) const { return sum_at(gradient, residual, i) != 0.0f; }
};

struct WriteElement {
  const float* gradient;
  const float* residual;
  std::uint32_t* indices;
  float* values;
  __device__ void operator()(std::size_t k, std::size_t position) const {
    indices[k] = static_cast<std::uint32_t>(position);
    values[k] = sum_at(gradient, residual, position);
  }
};

/// The two passes, with a look at the count between them.
class Search {
 public:
  Search(CudaExecutor& executor, Span<const float> gradient, Span<const float> residual)
      : executor_(executor),
        gradient_(executor, gradient),
        residual_(executor, residual),
        marks_(executor, gradient.size(), IsNonzero{gradient_.data(), residual_.data()}) {}

  std::size_t found() const { return marks_.total(); }

  void list(Span<std::uint32_t> indices, Span<float> values) {
    Operand i(executor_, indices);
    Operand v(executor_, values);
    marks_.list(WriteElement{gradient_.data(), residual_.data(), i.data(), v.data()});
    finish(executor_, gradient_, residual_, i, v);
  }

 private:
  CudaExecutor& executor_;
  Operand<const float> gradient_;
  Operand<const float> residual_;
  Marks marks_;
};

}  // namespace

Elements find_nonzeros_on_cuda(Executor& executor, Span<const float> gradient, Span<const float> residual,
                               Workspace& workspace) {
  Search search(executor_on_device(executor), gradient, residual);
  const auto indices = workspace.take<std::uint32_t>(search.found());
  const auto values = workspace.take<float>(search.found());
  search.list(indices, values);
  return {indices, values};
}

}  // namespace thinwire
