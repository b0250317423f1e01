// Rows of a table by their indices, on a CUDA device.

#include "kernels/rows/row_access.h"
#include "kernels/rows/row_lanes.h"

namespace thinwire {
using namespace cuda;
namespace {

// `elements`: of the table, of whose last row some may be missing.

template <class T>
THINWIRE_KERNEL void scatter_kernel(Reads<std::uint32_t> indices, std::size_t rows, Reads<T> values,
                                    std::size_t width, RowLanes lanes, Writes<T> table,
                                    std::size_t elements) {
  for (std::size_t k = lanes.first_row(); k < rows; k += lanes.row_step()) {
    const std::size_t begin = indices[k] * width;
#pragma unroll 4
    for (std::size_t i = lanes.first_element(); i < width; i += lanes.element_step()) {
      if (begin + i < elements) table[begin + i] = values[k * width + i];
    }
  }
}

template <class T>
THINWIRE_KERNEL void gather_kernel(Reads<T> table, std::size_t elements, Reads<std::uint32_t> indices,
                                   std::size_t rows, std::size_t width, RowLanes lanes, Writes<T> values) {
  for (std::size_t k = lanes.first_row(); k < rows; k += lanes.row_step()) {
    const std::size_t begin = indices[k] * width;
#pragma unroll 4
    for (std::size_t i = lanes.first_element(); i < width; i += lanes.element_step()) {
      values[k * width + i] = begin + i < elements ? table[begin + i] : T{};
    }
  }
}

THINWIRE_KERNEL void gather_sums_kernel(Reads<float> gradient, Reads<float> residual, std::size_t elements,
                                        Reads<std::uint32_t> indices, std::size_t rows, std::size_t width,
                                        RowLanes lanes, Writes<float> values) {
  for (std::size_t k = lanes.first_row(); k < rows; k += lanes.row_step()) {
    const std::size_t begin = indices[k] * width;
#pragma unroll 4
    for (std::size_t i = lanes.first_element(); i < width; i += lanes.element_step()) {
      values[k * width + i] = begin + i < elements ? gradient[begin + i] + residual[begin + i] : 0.0f;
    }
  }
}

THINWIRE_KERNEL void fill_kernel(Reads<std::uint32_t> indices, std::size_t rows, std::size_t width,
                                 RowLanes lanes, float value, Writes<float> table, std::size_t elements) {
  for (std::size_t k = lanes.first_row(); k < rows; k += lanes.row_step()) {
    const std::size_t begin = indices[k] * width;
    for (std::size_t i = lanes.first_element(); i < width; i += lanes.element_step()) {
      if (begin + i < elements) table[begin + i] = value;
    }
  }
}

THINWIRE_KERNEL void subtract_kernel(Reads<std::uint32_t> indices, std::size_t rows, Reads<float> values,
                                     std::size_t width, RowLanes lanes, Writes<float> table,
                                     std::size_t elements) {
  for (std::size_t k = lanes.first_row(); k < rows; k += lanes.row_step()) {
    const std::size_t begin = indices[k] * width;
#pragma unroll 4
    for (std::size_t i = lanes.first_element(); i < width; i += lanes.element_step()) {
      if (begin + i < elements) table[begin + i] -= values[k * width + i];
    }
  }
}

constexpr std::size_t kVector = 4;

/// Whether rows can be moved 16 bytes at a time: all of them begin and end so.
template <class... Pointers>
bool in_vectors(std::size_t width, std::size_t elements, const Pointers*... pointers) {
  return width % kVector == 0 && elements % kVector == 0 &&
         ((reinterpret_cast<std::uintptr_t>(pointers) % sizeof(float4) == 0) && ...);
}

const float4* vectors(const float* pointer) {
  return reinterpret_cast<const float4*>(pointer);
}
float4* vectors(float* pointer) {
  return reinterpret_cast<float4*>(pointer);
}

}  // namespace

void scatter_rows_on_cuda(Executor& executor, Span<const std::uint32_t> indices, Span<const float> values,
                          std::size_t width, Span<float> table) {
  CudaExecutor& own = executor_on_device(executor);
  Operand i(own, indices);
  Operand v(own, values);
  Operand t(own, table);
  const std::size_t rows = indices.size();
  if (in_vectors(width, table.size(), v.data(), t.data())) {
    const RowLanes lanes = RowLanes::of(width / kVector);
    launch(own.stream(), lanes.grid(rows), scatter_kernel<float4>, i.data(), rows, vectors(v.data()),
           width / kVector, lanes, vectors(t.data()), table.size() / kVector);
  } else {
    const RowLanes lanes = RowLanes::of(width);
    launch(own.stream(), lanes.grid(rows), scatter_kernel<float>, i.data(), rows, v.data(), width, lanes,
           t.data(), table.size());
  }
  finish(own, i, v, t);
}

void gather_rows_on_cuda(Executor& executor, Span<const float> gradient, Span<const float> residual,
                         Span<const std::uint32_t> indices, std::size_t width, Span<float> values) {
  CudaExecutor& own = executor_on_device(executor);
  Operand g(own, gradient);
  Operand r(own, residual);
  Operand i(own, indices);
  Operand v(own, values);
  const std::size_t rows = indices.size();
  const RowLanes lanes = RowLanes::of(width);
  if (!residual.empty()) {
    launch(own.stream(), lanes.grid(rows), gather_sums_kernel, g.data(), r.data(), gradient.size(), i.data(),
           rows, width, lanes, v.data());
  } else if (in_vectors(width, gradient.size(), g.data(), v.data())) {
    const RowLanes fewer = RowLanes::of(width / kVector);
    launch(own.stream(), fewer.grid(rows), gather_kernel<float4>, vectors(g.data()),
           gradient.size() / kVector, i.data(), rows, width / kVector, fewer, vectors(v.data()));
  } else {
    launch(own.stream(), lanes.grid(rows), gather_kernel<float>, g.data(), gradient.size(), i.data(), rows,
           width, lanes, v.data());
  }
  finish(own, g, r, i, v);
}

void fill_rows_on_cuda(Executor& executor, Span<const std::uint32_t> indices, std::size_t width, float value,
                       Span<float> table) {
  const RowLanes lanes = RowLanes::of(width);
  run(executor, lanes.grid(indices.size()), fill_kernel, indices, indices.size(), width, lanes, value, table,
      table.size());
}

void subtract_rows_on_cuda(Executor& executor, Span<const std::uint32_t> indices, Span<const float> values,
                           std::size_t width, Span<float> table) {
  const RowLanes lanes = RowLanes::of(width);
  run(executor, lanes.grid(indices.size()), subtract_kernel, indices, indices.size(), values, width, lanes,
      table, table.size());
}

}  // namespace thinwire
