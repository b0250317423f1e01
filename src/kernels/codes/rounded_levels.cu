// Steps and levels on a CUDA device, range by range. Levels lie in host memory, where the CPU codes them.

#include "kernels/codes/rounded_levels.h"

#include "kernels/device/device.h"

namespace thinwire {
using namespace cuda;
namespace {

THINWIRE_KERNEL void round_kernel(Reads<float> gradient, Reads<float> residual, std::size_t count,
                                  float inverse, float up, Writes<std::int16_t> levels) {
  for_each_element(
      count, [&](std::size_t i) { return sum_at(gradient, residual, i); },
      [&](std::size_t i, float p) {
        const float place = fminf(fabsf(p) * inverse + up, 32767.0f);
        levels[i] = static_cast<std::int16_t>(copysignf(place, p));
      });
}

THINWIRE_KERNEL void add_kernel(Reads<std::int16_t> levels, std::size_t count, float step, bool first,
                                float factor, Writes<float> sums) {
  for_each_element(
      count, [&](std::size_t i) { return step * static_cast<float>(levels[i]); },
      [&](std::size_t i, float value) { sums[i] = (first ? value : sums[i] + value) * factor; });
}

THINWIRE_KERNEL void apply_kernel(Reads<std::int16_t> own, Reads<std::int16_t> mean, std::size_t count,
                                  float own_step, float mean_step, Writes<float> gradient,
                                  Writes<float> residual, Writes<double> block_sums) {
  double squares = 0;
  for_each_element(
      count, [&](std::size_t i) { return gradient[i]; },
      [&](std::size_t i, float value) {
        if (residual != nullptr) {
          const float left = value + residual[i] - own_step * static_cast<float>(own[i]);
          residual[i] = left;
          squares += static_cast<double>(left) * static_cast<double>(left);
        }
        gradient[i] = mean_step * static_cast<float>(mean[i]);
      });
  write_block_sum(squares, block_sums + blockIdx.x);
}

/// body(range, first, count) for all ranges that have elements.
template <class Body>
void for_ranges(Span<const std::size_t> ends, Body body) {
  std::size_t begin = 0;
  for (std::size_t range = 0; range < ends.size(); begin = ends[range], ++range) {
    if (ends[range] > begin) body(range, begin, ends[range] - begin);
  }
}

}  // namespace

void round_to_levels_on_cuda(Executor& executor, Span<const std::size_t> ends, Span<const float> steps,
                             float up, Span<const float> gradient, Span<const float> residual,
                             Span<std::int16_t> levels) {
  CudaExecutor& own = executor_on_device(executor);
  for_ranges(ends, [&](std::size_t range, std::size_t first, std::size_t count) {
    const float inverse = steps[range] > 0 ? 1.0f / steps[range] : 0.0f;
    run(own, grid_for_elements(count), round_kernel, gradient.subspan(first, count),
        residual.subspan(first, count), count, inverse, up, levels.subspan(first, count));
  });
}

void mean_of_levels_on_cuda(Executor& executor, Span<const std::size_t> ends, Span<const SteppedLevels> ranks,
                            Span<float> mean) {
  CudaExecutor& own = executor_on_device(executor);
  const float part = 1.0f / static_cast<float>(ranks.size());
  for_ranges(ends, [&](std::size_t range, std::size_t first, std::size_t count) {
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
      run(own, grid_for_elements(count), add_kernel, ranks[rank].levels.subspan(first, count), count,
          ranks[rank].steps[range], rank == 0, rank + 1 == ranks.size() ? part : 1.0f,
          mean.subspan(first, count));
    }
  });
}

double apply_levels_on_cuda(Executor& executor, Span<const std::size_t> ends, const SteppedLevels& own,
                            const SteppedLevels& mean, Span<float> gradient, ResidualSpan turned) {
  CudaExecutor& device = executor_on_device(executor);
  const Span<float> residual = in_place(device, turned);
  double squares = 0;
  for_ranges(ends, [&](std::size_t range, std::size_t first, std::size_t count) {
    squares += run_summed(device, grid_for_elements(count), apply_kernel, own.levels.subspan(first, count),
                          mean.levels.subspan(first, count), count, own.steps[range], mean.steps[range],
                          gradient.subspan(first, count), residual.subspan(first, count));
  });
  return residual.empty() ? 0 : squares;
}

}  // namespace thinwire
