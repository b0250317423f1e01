// Steps and levels on a CUDA device. Levels lie in host memory, where the CPU codes them.

#include "kernels/codes/rounded_levels.h"

#include <vector>

#include "kernels/device/device.h"

namespace thinwire {
using namespace cuda;
namespace {

/// The step of each block, made on the CPU so that both have the same bits.
std::vector<float> steps_of(const BlockSteps& steps) {
  std::vector<float> all(steps.scales.size());
  for (std::size_t block = 0; block < all.size(); ++block) all[block] = steps.of(block);
  return all;
}

THINWIRE_KERNEL void round_kernel(Reads<float> gradient, Reads<float> residual, std::size_t count,
                                  Reads<float> steps, float up, Writes<std::int16_t> levels) {
  for_each_element(
      count, [&](std::size_t i) { return sum_at(gradient, residual, i); },
      [&](std::size_t i, float p) {
        const float step = steps[i / kSteppedBlock];
        const float inverse = step > 0 ? 1.0f / step : 0.0f;
        const float place = fminf(fabsf(p) * inverse + up, 32767.0f);
        levels[i] = static_cast<std::int16_t>(copysignf(place, p));
      });
}

THINWIRE_KERNEL void add_kernel(Reads<std::int16_t> levels, std::size_t count, Reads<float> steps, bool first,
                                float factor, Writes<float> sums) {
  for_each_element(
      count, [&](std::size_t i) { return steps[i / kSteppedBlock] * static_cast<float>(levels[i]); },
      [&](std::size_t i, float value) { sums[i] = (first ? value : sums[i] + value) * factor; });
}

THINWIRE_KERNEL void apply_kernel(Reads<std::int16_t> own, Reads<std::int16_t> mean, std::size_t count,
                                  Reads<float> own_steps, Reads<float> mean_steps, Writes<float> gradient,
                                  Writes<float> residual, Writes<double> block_sums) {
  double squares = 0;
  for_each_element(
      count, [&](std::size_t i) { return gradient[i]; },
      [&](std::size_t i, float value) {
        const std::size_t block = i / kSteppedBlock;
        if (residual != nullptr) {
          const float left = value + residual[i] - own_steps[block] * static_cast<float>(own[i]);
          residual[i] = left;
          squares += static_cast<double>(left) * static_cast<double>(left);
        }
        gradient[i] = mean_steps[block] * static_cast<float>(mean[i]);
      });
  write_block_sum(squares, block_sums + blockIdx.x);
}

}  // namespace

void round_to_levels_on_cuda(Executor& executor, const BlockSteps& steps, float up,
                             Span<const float> gradient, Span<const float> residual,
                             Span<std::int16_t> levels) {
  CudaExecutor& own = executor_on_device(executor);
  const std::vector<float> all = steps_of(steps);
  const TableOnDevice<float> table(own, all);
  run(own, grid_for_elements(levels.size()), round_kernel, gradient, residual, levels.size(), table.data(),
      up, levels);
  own.wait();  // for the table
}

void mean_of_levels_on_cuda(Executor& executor, Span<const SteppedLevels> ranks, Span<float> mean) {
  CudaExecutor& own = executor_on_device(executor);
  const float part = 1.0f / static_cast<float>(ranks.size());
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    const std::vector<float> all = steps_of(ranks[rank].steps);
    const TableOnDevice<float> table(own, all);
    run(own, grid_for_elements(mean.size()), add_kernel, ranks[rank].levels, mean.size(), table.data(),
        rank == 0, rank + 1 == ranks.size() ? part : 1.0f, mean);
    own.wait();  // for the table
  }
}

double apply_levels_on_cuda(Executor& executor, const SteppedLevels& own, const SteppedLevels& mean,
                            Span<float> gradient, ResidualSpan turned) {
  CudaExecutor& device = executor_on_device(executor);
  const Span<float> residual = in_place(device, turned);
  const std::vector<float> own_steps = steps_of(own.steps);
  const std::vector<float> mean_steps = steps_of(mean.steps);
  const TableOnDevice<float> own_table(device, own_steps);
  const TableOnDevice<float> mean_table(device, mean_steps);
  // Waits, too, for the tables.
  const double squares =
      run_summed(device, grid_for_elements(gradient.size()), apply_kernel, own.levels, mean.levels,
                 gradient.size(), own_table.data(), mean_table.data(), gradient, residual);
  return residual.empty() ? 0 : squares;
}

}  // namespace thinwire
