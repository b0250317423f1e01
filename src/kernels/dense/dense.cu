// Passes over float vectors on a CUDA device: every one reads and writes its operands once.

#include "kernels/dense/dense.h"

#include "core/partition.h"
#include "kernels/device/device.h"

namespace thinwire {
using namespace cuda;
namespace {

THINWIRE_KERNEL void add_kernel(Writes<float> target, Reads<float> values, std::size_t count) {
  for_each_element(
      count, [&](std::size_t i) { return target[i] + values[i]; },
      [&](std::size_t i, float sum) { target[i] = sum; });
}

THINWIRE_KERNEL void add_within_kernel(Writes<float> target, Reads<float> values, float limit,
                                       std::size_t count, std::uint32_t* flag) {
  constexpr unsigned kAhead = 4;
  bool wrong = false;
  const std::size_t step = threads_of_grid();
  for (std::size_t first = thread_of_grid(); first < count; first += kAhead * step) {
    float sums[kAhead];
#pragma unroll
    for (unsigned k = 0; k < kAhead; ++k) {
      const std::size_t i = first + k * step;
      sums[k] = i < count ? sum_at(target, values, i) : 0.0f;
    }
#pragma unroll
    for (unsigned k = 0; k < kAhead; ++k) {
      const std::size_t i = first + k * step;
      if (i < count && values != nullptr) target[i] = sums[k];
      wrong = wrong || !(fabsf(sums[k]) <= limit);
    }
  }
  report_if(wrong, flag);
}

THINWIRE_KERNEL void scale_kernel(Writes<float> values, float factor, std::size_t count,
                                  std::uint32_t* flag) {
  bool wrong = false;
  for_each_element(
      count, [&](std::size_t i) { return values[i]; },
      [&](std::size_t i, float value) {
        const float product = value * factor;
        wrong = wrong || !is_finite(product);
        values[i] = product;
      });
  report_if(wrong, flag);
}

THINWIRE_KERNEL void finite_kernel(Reads<float> values, std::size_t count, std::uint32_t* flag) {
  bool wrong = false;
  for_each_element(
      count, [&](std::size_t i) { return values[i]; },
      [&](std::size_t, float value) { wrong = wrong || !is_finite(value); });
  report_if(wrong, flag);
}

THINWIRE_KERNEL void fill_kernel(Writes<float> values, float value, std::size_t count) {
  for (std::size_t i = thread_of_grid(); i < count; i += threads_of_grid()) values[i] = value;
}

struct Magnitude {
  __device__ static double of(double p) { return fabs(p); }
};
struct Square {
  __device__ static double of(double p) { return p * p; }
};

template <class Term>
THINWIRE_KERNEL void sum_kernel(Reads<float> gradient, Reads<float> residual, std::size_t count,
                                Writes<double> sums) {
  double sum = 0;
  for_each_element(
      count, [&](std::size_t i) { return sum_at(gradient, residual, i); },
      [&](std::size_t, float p) { sum += Term::of(static_cast<double>(p)); });
  write_block_sum(sum, sums + blockIdx.x);
}

/// residual = gradient + residual - own, where there is one; gradient = sums * factor.
THINWIRE_KERNEL void average_kernel(Reads<float> own, Reads<float> sums, float factor, std::size_t count,
                                    Writes<float> gradient, Writes<float> residual,
                                    Writes<double> block_sums) {
  if (residual == nullptr) {
    for_each_element(
        count, [&](std::size_t i) { return sums[i]; },
        [&](std::size_t i, float sum) { gradient[i] = sum * factor; });
    return;
  }
  double squares = 0;
  for_each_element(
      count, [&](std::size_t i) { return make_float2(gradient[i] + residual[i] - own[i], sums[i]); },
      [&](std::size_t i, float2 loaded) {
        residual[i] = loaded.x;
        squares += static_cast<double>(loaded.x) * static_cast<double>(loaded.x);
        gradient[i] = loaded.y * factor;
      });
  write_block_sum(squares, block_sums + blockIdx.x);
}

THINWIRE_KERNEL void remainder_kernel(Reads<float> sums, float factor, Reads<float> mean, std::size_t count,
                                      Writes<float> residual, Writes<double> block_sums) {
  double squares = 0;
  for_each_element(
      count, [&](std::size_t i) { return residual[i] + (sums[i] - factor * mean[i]); },
      [&](std::size_t i, float left) {
        residual[i] = left;
        squares += static_cast<double>(left) * static_cast<double>(left);
      });
  write_block_sum(squares, block_sums + blockIdx.x);
}

THINWIRE_KERNEL void hold_back_kernel(std::size_t count, Writes<float> gradient, Writes<float> residual) {
  for_each_element(
      count, [&](std::size_t i) { return residual != nullptr ? gradient[i] + residual[i] : 0.0f; },
      [&](std::size_t i, float sum) {
        gradient[i] = 0;
        if (residual != nullptr) residual[i] = sum;
      });
}

THINWIRE_KERNEL void add_residual_kernel(Reads<float> gradient, Reads<float> residual, std::size_t count,
                                         Writes<float> sums) {
  for_each_element(
      count, [&](std::size_t i) { return sum_at(gradient, residual, i); },
      [&](std::size_t i, float sum) { sums[i] = sum; });
}

THINWIRE_KERNEL void clear_bits_kernel(Reads<std::uint64_t> bits, std::size_t count, Writes<float> vector) {
  for (std::size_t i = thread_of_grid(); i < count; i += threads_of_grid()) {
    if (bit_at(bits, i)) vector[i] = 0;
  }
}

THINWIRE_KERNEL void sample_kernel(Reads<float> from, std::size_t range, std::size_t count,
                                   Writes<float> out) {
  for (std::size_t i = thread_of_grid(); i < count; i += threads_of_grid()) {
    out[i] = from[part_begin(range, count, i)];
  }
}

THINWIRE_KERNEL void momentum_kernel(float momentum, Reads<float> velocity, std::size_t count,
                                     Writes<float> gradient, Writes<float> corrected) {
#pragma unroll 4
  for (std::size_t i = thread_of_grid(); i < count; i += threads_of_grid()) {
    const float value = momentum * velocity[i] + gradient[i];
    corrected[i] = value;
    gradient[i] = value;
  }
}

THINWIRE_KERNEL void add_momentum_kernel(float momentum, Reads<float> delivered, std::size_t count,
                                         Writes<float> gradient) {
#pragma unroll 4
  for (std::size_t i = thread_of_grid(); i < count; i += threads_of_grid()) {
    gradient[i] += momentum * delivered[i];
  }
}

THINWIRE_KERNEL void take_momentum_kernel(float momentum, std::size_t count, Writes<float> delivered,
                                          Writes<float> mean) {
#pragma unroll 4
  for (std::size_t i = thread_of_grid(); i < count; i += threads_of_grid()) {
    const float arrived = mean[i];
    mean[i] = arrived - momentum * delivered[i];
    delivered[i] = arrived;
  }
}

template <class Term>
double sum_of(Executor& executor, Span<const float> gradient, Span<const float> residual) {
  return run_summed(executor, grid_for_elements(gradient.size()), sum_kernel<Term>, gradient, residual,
                    gradient.size());
}

/// use(where an element lies in the vector, where it lies among the chunks).
template <class Use>
__device__ void for_each_of_chunks(const VectorChunk* chunks, std::size_t count, std::size_t elements,
                                   Use use) {
  for (std::size_t at = thread_of_grid(); at < elements; at += threads_of_grid()) {
    std::size_t low = 0;
    std::size_t high = count;
    while (high - low > 1) {
      const std::size_t middle = low + (high - low) / 2;
      (chunks[middle].offset <= at ? low : high) = middle;
    }
    use(chunks[low].begin + (at - chunks[low].offset), at);
  }
}

THINWIRE_KERNEL void gather_kernel(Reads<VectorChunk> chunks, std::size_t count, std::size_t elements,
                                   Reads<float> values, Writes<float> target) {
  for_each_of_chunks(chunks, count, elements, [&](std::size_t i, std::size_t at) { target[at] = values[i]; });
}

THINWIRE_KERNEL void scatter_kernel(Reads<VectorChunk> chunks, std::size_t count, std::size_t elements,
                                    Reads<float> values, Writes<float> gradient, Writes<float> residual) {
  for_each_of_chunks(chunks, count, elements, [&](std::size_t i, std::size_t at) {
    gradient[i] = values[at];
    if (residual != nullptr) residual[i] = 0;
  });
}

std::size_t elements_of(Span<const VectorChunk> chunks) {
  if (chunks.empty()) return 0;
  const VectorChunk& last = chunks[chunks.size() - 1];
  return last.offset + last.count;
}

}  // namespace

void add_on_cuda(Executor& executor, Span<float> target, Span<const float> values) {
  run(executor, grid_for_elements(target.size()), add_kernel, target, values, target.size());
}

bool add_within_on_cuda(Executor& executor, Span<float> target, Span<const float> values, float limit) {
  return run_flagged(executor, grid_for(target.size(), 4), add_within_kernel, target, values, limit,
                     target.size());
}

bool scale_on_cuda(Executor& executor, Span<float> values, float factor) {
  return run_flagged(executor, grid_for_elements(values.size()), scale_kernel, values, factor, values.size());
}

bool all_finite_on_cuda(Executor& executor, Span<const float> values) {
  return run_flagged(executor, grid_for_elements(values.size()), finite_kernel, values, values.size());
}

void fill_on_cuda(Executor& executor, Span<float> values, float value) {
  run(executor, grid_for_elements(values.size()), fill_kernel, values, value, values.size());
}

double sum_of_magnitudes_on_cuda(Executor& executor, Span<const float> gradient, Span<const float> residual) {
  return sum_of<Magnitude>(executor, gradient, residual);
}

double sum_of_squares_on_cuda(Executor& executor, Span<const float> gradient, Span<const float> residual) {
  return sum_of<Square>(executor, gradient, residual);
}

double apply_average_on_cuda(Executor& executor, Span<const float> own_part, Span<const float> sums,
                             float factor, Span<float> gradient, ResidualSpan turned) {
  CudaExecutor& own = executor_on_device(executor);
  const Span<float> residual = in_place(own, turned);
  const Grid grid = grid_for_elements(gradient.size());
  const Findings findings(own, grid);
  run(own, grid, average_kernel, own_part, sums, factor, gradient.size(), gradient, residual,
      findings.sums());
  return residual.empty() ? 0 : findings.sum();
}

double add_remainder_on_cuda(Executor& executor, Span<const float> sums, float factor, Span<const float> mean,
                             Span<float> residual) {
  return run_summed(executor, grid_for_elements(residual.size()), remainder_kernel, sums, factor, mean,
                    residual.size(), residual);
}

void hold_back_on_cuda(Executor& executor, Span<float> gradient, Span<float> residual) {
  run(executor, grid_for_elements(gradient.size()), hold_back_kernel, gradient.size(), gradient, residual);
}

void add_residual_on_cuda(Executor& executor, Span<const float> gradient, Span<const float> residual,
                          Span<float> sums) {
  run(executor, grid_for_elements(gradient.size()), add_residual_kernel, gradient, residual, gradient.size(),
      sums);
}

void clear_bits_on_cuda(Executor& executor, Span<const std::uint64_t> bits, Span<float> vector) {
  run(executor, grid_for(vector.size()), clear_bits_kernel, bits, vector.size(), vector);
}

void sample_evenly_on_cuda(Executor& executor, Span<const float> vector, std::size_t first, std::size_t range,
                           Span<float> out) {
  run(executor, grid_for(out.size()), sample_kernel, vector.subspan(first, range), range, out.size(), out);
}

void correct_by_momentum_on_cuda(Executor& executor, float momentum, Span<const float> velocity,
                                 Span<float> gradient, Span<float> corrected) {
  run(executor, grid_for(gradient.size()), momentum_kernel, momentum, velocity, gradient.size(), gradient,
      corrected);
}

void add_momentum_on_cuda(Executor& executor, float momentum, Span<const float> delivered,
                          Span<float> gradient) {
  run(executor, grid_for(gradient.size()), add_momentum_kernel, momentum, delivered, gradient.size(),
      gradient);
}

void take_momentum_on_cuda(Executor& executor, float momentum, Span<float> delivered, Span<float> mean) {
  run(executor, grid_for(mean.size()), take_momentum_kernel, momentum, mean.size(), delivered, mean);
}

void gather_chunks_on_cuda(Executor& executor, Span<const VectorChunk> chunks, Span<const float> values,
                           Span<float> target) {
  CudaExecutor& own = executor_on_device(executor);
  const TableOnDevice<VectorChunk> table(own, chunks);
  const std::size_t elements = elements_of(chunks);
  run(own, grid_for(elements, 4), gather_kernel, table.data(), chunks.size(), elements, values, target);
  own.wait();  // for the table
}

void scatter_chunks_on_cuda(Executor& executor, Span<const VectorChunk> chunks, Span<const float> values,
                            Span<float> gradient, Span<float> residual) {
  CudaExecutor& own = executor_on_device(executor);
  const TableOnDevice<VectorChunk> table(own, chunks);
  const std::size_t elements = elements_of(chunks);
  run(own, grid_for(elements, 4), scatter_kernel, table.data(), chunks.size(), elements, values, gradient,
      residual);
  own.wait();  // for the table
}

}  // namespace thinwire
