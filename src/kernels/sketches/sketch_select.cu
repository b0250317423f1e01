// Selections among the estimates of a count sketch on a CUDA device. What the CPU saves itself, an estimate
// of every element, costs the device less than finding out which ones it needs: the table stays in its cache.

#include "cuda/executor.h"
#include "kernels/sketches/sketch_select.h"

namespace thinwire {
using namespace cuda;
namespace {

/// What query says of all elements.
class Estimates {
 public:
  Estimates(Executor& executor, const CountSketch& sketch, std::size_t elements, Span<const float> table)
      : memory_(executor_on_device(executor), elements), span_(memory_.data(), elements, Memory::cuda) {
    query(executor, sketch, table, span_);
  }
  Span<const float> span() const { return span_; }

 private:
  Scratch<float> memory_;
  Span<float> span_;
};

}  // namespace

Selection select_estimates_at_least_on_cuda(Executor& executor, Workspace& workspace,
                                            const CountSketch& sketch, std::size_t elements,
                                            Span<const float> table, std::uint32_t least_bits) {
  if (elements == 0) return {};
  const Estimates estimates(executor, sketch, elements, table);
  return select_at_least(executor, workspace, estimates.span(), {}, least_bits);
}

Selection select_largest_estimates_on_cuda(Executor& executor, Workspace& workspace,
                                           const CountSketch& sketch, std::size_t elements,
                                           Span<const float> table, std::size_t k) {
  if (k == 0 || elements == 0) return {};
  const Estimates estimates(executor, sketch, elements, table);
  return select_largest(executor, workspace, estimates.span(), {}, k);
}

}  // namespace thinwire
