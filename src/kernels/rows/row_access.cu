// Rows of a table by their indices, and adding up rows of several ranks, on a CUDA device.

#include "kernels/rows/row_access.h"

#include <algorithm>
#include <bit>

#include "kernels/device/device.h"
#include "kernels/device/device_algorithms.h"
#include "kernels/rows/bit_list.h"

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

// --- By rank in a bitmap.

THINWIRE_KERNEL void accumulate_kernel(Reads<std::uint32_t> positions, std::size_t rows, Reads<float> values,
                                       std::size_t width, RowLanes lanes, Reads<std::uint64_t> bitmap,
                                       Reads<std::uint32_t> before, Writes<float> sums) {
  for (std::size_t k = lanes.first_row(); k < rows; k += lanes.row_step()) {
    const std::size_t begin = rank_at(bitmap, before, positions[k]) * width;
#pragma unroll 4
    for (std::size_t i = lanes.first_element(); i < width; i += lanes.element_step()) {
      sums[begin + i] += values[k * width + i];
    }
  }
}

THINWIRE_KERNEL void slots_kernel(Reads<std::uint32_t> positions, std::size_t rows,
                                  Reads<std::uint64_t> bitmap, Reads<std::uint32_t> before,
                                  Writes<std::uint32_t> slots, Writes<std::uint32_t> numbers) {
  for (std::size_t k = thread_of_grid(); k < rows; k += threads_of_grid()) {
    slots[k] = rank_at(bitmap, before, positions[k]);
    numbers[k] = static_cast<std::uint32_t>(k);
  }
}

/// Rows numbers[i] .. of one slot stand next to each other, in the order in which they came: whoever has the
/// first one adds them all.
THINWIRE_KERNEL void accumulate_runs_kernel(Reads<std::uint32_t> slots, Reads<std::uint32_t> numbers,
                                            std::size_t rows, Reads<float> values, std::size_t width,
                                            RowLanes lanes, Writes<float> sums) {
  for (std::size_t k = lanes.first_row(); k < rows; k += lanes.row_step()) {
    const std::uint32_t slot = slots[k];
    if (k > 0 && slots[k - 1] == slot) continue;
    for (std::size_t i = lanes.first_element(); i < width; i += lanes.element_step()) {
      float sum = sums[slot * width + i];
      for (std::size_t next = k; next < rows && slots[next] == slot; ++next) {
        sum += values[numbers[next] * width + i];
      }
      sums[slot * width + i] = sum;
    }
  }
}

// --- Two sorted lists.

/// How many of values[begin, end), which ascend, are below `limit`, plus begin.
__device__ std::size_t lower_bound(const std::uint32_t* values, std::size_t begin, std::size_t end,
                                   std::uint32_t limit) {
  return partition_point(begin, end, [&](std::size_t i) { return values[i] < limit; });
}

/// ranks[i] = how many of `others` are below own[i]; both[i], unless null: whether own[i] is one of them.
THINWIRE_KERNEL void rank_kernel(Reads<std::uint32_t> own, std::size_t count, Reads<std::uint32_t> others,
                                 std::size_t other_count, Writes<std::uint32_t> ranks,
                                 Writes<std::uint32_t> both) {
  __shared__ std::size_t range[2];  // where the block's ranks lie
  for (std::size_t first = std::size_t{blockIdx.x} * kThreads; first < count;
       first += std::size_t{gridDim.x} * kThreads) {
    const std::size_t last = first + kThreads < count ? first + kThreads - 1 : count - 1;
    if (threadIdx.x < 2) {
      range[threadIdx.x] = lower_bound(others, 0, other_count, own[threadIdx.x == 0 ? first : last]);
    }
    __syncthreads();
    const std::size_t i = first + threadIdx.x;
    if (i < count) {
      const std::size_t rank = lower_bound(others, range[0], range[1], own[i]);
      ranks[i] = static_cast<std::uint32_t>(rank);
      if (both != nullptr) both[i] = rank < other_count && others[rank] == own[i] ? 1 : 0;
    }
    __syncthreads();
  }
}

/// Writes the first list's rows, with those of the second added that have the same index. both_before[i] =
/// indices of both lists among the first i of this one.
THINWIRE_KERNEL void place_first_kernel(Reads<std::uint32_t> first, std::size_t count, Reads<float> values,
                                        Reads<float> second_values, Reads<std::uint32_t> ranks,
                                        Reads<std::uint32_t> both_before, std::size_t width, RowLanes lanes,
                                        Writes<std::uint32_t> indices, Writes<float> out) {
  for (std::size_t k = lanes.first_row(); k < count; k += lanes.row_step()) {
    const std::size_t rank = ranks[k];
    const std::size_t at = k + rank - both_before[k];
    const bool in_both = both_before[k + 1] != both_before[k];
    if (lanes.first_element() == 0) indices[at] = first[k];
    for (std::size_t i = lanes.first_element(); i < width; i += lanes.element_step()) {
      const float value = values[k * width + i];
      out[at * width + i] = in_both ? value + second_values[rank * width + i] : value;
    }
  }
}

/// Writes those rows of the second list whose index the first one lacks.
THINWIRE_KERNEL void place_second_kernel(Reads<std::uint32_t> second, std::size_t count, Reads<float> values,
                                         std::size_t first_count, Reads<std::uint32_t> ranks,
                                         Reads<std::uint32_t> both_before, std::size_t width, RowLanes lanes,
                                         Reads<std::uint32_t> first, Writes<std::uint32_t> indices,
                                         Writes<float> out) {
  for (std::size_t k = lanes.first_row(); k < count; k += lanes.row_step()) {
    const std::size_t rank = ranks[k];
    if (rank < first_count && first[rank] == second[k]) continue;
    const std::size_t at = k + rank - both_before[rank];
    if (lanes.first_element() == 0) indices[at] = second[k];
    for (std::size_t i = lanes.first_element(); i < width; i += lanes.element_step()) {
      out[at * width + i] = values[k * width + i];
    }
  }
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

void accumulate_rows_on_cuda(Executor& executor, Span<const std::uint32_t> positions,
                             Span<const float> values, std::size_t width, Span<const std::uint64_t> bitmap,
                             Span<const std::uint32_t> before, bool distinct, Span<float> sums) {
  if (positions.empty()) return;
  CudaExecutor& own = executor_on_device(executor);
  const std::size_t rows = positions.size();
  const RowLanes lanes = RowLanes::of(width);
  Operand p(own, positions);
  Resident b(own, bitmap);
  Resident f(own, before);
  Resident s(own, sums);
  if (distinct) {
    Operand v(own, values);
    launch(own.stream(), lanes.grid(rows), accumulate_kernel, p.data(), rows, v.data(), width, lanes,
           b.data(), f.data(), s.data());
    finish(own, p, v, b, f, s);
    return;
  }
  Resident v(own, values);
  const Scratch<std::uint32_t> slots(own, rows);
  const Scratch<std::uint32_t> numbers(own, rows);
  const Scratch<std::uint32_t> sorted_slots(own, rows);
  const Scratch<std::uint32_t> sorted_numbers(own, rows);
  launch(own.stream(), grid_for(rows), slots_kernel, p.data(), rows, b.data(), f.data(), slots.data(),
         numbers.data());
  sort_pairs(own, slots.data(), sorted_slots.data(), numbers.data(), sorted_numbers.data(), rows,
             std::max(1, static_cast<int>(std::bit_width(sums.size() / width))));
  launch(own.stream(), lanes.grid(rows), accumulate_runs_kernel, sorted_slots.data(), sorted_numbers.data(),
         rows, v.data(), width, lanes, s.data());
  finish(own, p, v, b, f, s);
}

std::size_t merge_sorted_rows_on_cuda(Executor& executor, Span<const std::uint32_t> first_indices,
                                      Span<const float> first_values,
                                      Span<const std::uint32_t> second_indices,
                                      Span<const float> second_values, std::size_t width,
                                      Span<std::uint32_t> indices, Span<float> values) {
  CudaExecutor& own = executor_on_device(executor);
  const std::size_t count = first_indices.size();
  const std::size_t second_count = second_indices.size();
  Resident first(own, first_indices);
  Resident second(own, second_indices);
  Operand v(own, first_values);
  Resident w(own, second_values);
  Resident out(own, indices, false);
  Resident out_values(own, values, false);
  const Scratch<std::uint32_t> ranks(own, count);
  const Scratch<std::uint32_t> second_ranks(own, second_count);
  const Scratch<std::uint32_t> both(own, count + 1);
  check(cudaMemsetAsync(both.data() + count, 0, sizeof(std::uint32_t), own.stream()), "a sum has no end");
  launch(own.stream(), grid_for(count), rank_kernel, first.data(), count, second.data(), second_count,
         ranks.data(), both.data());
  launch(own.stream(), grid_for(second_count), rank_kernel, second.data(), second_count, first.data(), count,
         second_ranks.data(), static_cast<std::uint32_t*>(nullptr));
  exclusive_sum(own, both.data(), both.data(), count + 1);
  const RowLanes lanes = RowLanes::of(width);
  launch(own.stream(), lanes.grid(count), place_first_kernel, first.data(), count, v.data(), w.data(),
         ranks.data(), both.data(), width, lanes, out.data(), out_values.data());
  launch(own.stream(), lanes.grid(second_count), place_second_kernel, second.data(), second_count, w.data(),
         count, second_ranks.data(), both.data(), width, lanes, first.data(), out.data(), out_values.data());
  auto* in_both = static_cast<std::uint32_t*>(own.results(sizeof(std::uint32_t)));
  submit_copy(own, both.data() + count, in_both, 1, "a count could not be copied");
  own.wait();
  const std::size_t merged = count + second_count - *in_both;
  out.write_back(merged);
  out_values.write_back(merged * width);
  finish(own, first, second, v, w, out, out_values);
  return merged;
}

}  // namespace thinwire
