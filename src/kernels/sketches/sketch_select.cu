// Selections among the estimates of a count sketch on a CUDA device. What the CPU saves itself, an estimate
// of every element, costs the device less than finding out which ones it needs: the table stays in its cache.

#include "kernels/device/device.h"
#include "kernels/device/resident.h"
#include "kernels/selection/select_device.h"
#include "kernels/sketches/sketch_device.h"
#include "kernels/sketches/sketch_select.h"

namespace thinwire::cuda {
namespace {

/// select(the estimates of all elements).
template <class Select>
Selection among_estimates(CudaExecutor& executor, const CountSketch& sketch, std::size_t elements,
                          Span<const float> table, Select select) {
  const Resident<const float> cells(executor, table);
  const Scratch<float> estimates(executor, elements);
  const std::uint32_t only_block = 0;
  const BlockList all{{&only_block, 1}, elements, elements};
  query(executor, sketch, pieces_of(sketch, all, nullptr, BlockLayout::in_bucket), cells.data(),
        estimates.data());
  return select(SelectInput{estimates.data(), nullptr, elements});
}

}  // namespace

Selection select_estimates_at_least(Executor& executor, Workspace& workspace, const CountSketch& sketch,
                                    std::size_t elements, Span<const float> table, std::uint32_t least_bits) {
  if (elements == 0) return {};
  CudaExecutor& own = executor_on_device(executor);
  return among_estimates(own, sketch, elements, table, [&](const SelectInput& estimates) {
    return select_at_least(own, workspace, estimates, least_bits);
  });
}

Selection select_largest_estimates(Executor& executor, Workspace& workspace, const CountSketch& sketch,
                                   std::size_t elements, Span<const float> table, std::size_t k) {
  if (k == 0 || elements == 0) return {};
  CudaExecutor& own = executor_on_device(executor);
  return among_estimates(own, sketch, elements, table, [&](const SelectInput& estimates) {
    return select_largest(own, workspace, estimates, k);
  });
}

}  // namespace thinwire::cuda
