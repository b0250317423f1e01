#include "kernels/step_vector.h"

#include "kernels/on_device.h"
#ifdef THINWIRE_HAS_CUDA
#include "cuda/executor.h"
#endif

namespace thinwire {

StepVector::StepVector(Executor& executor, Workspace& workspace, Memory memory, std::size_t count) {
  if (memory == Memory::host) {
    span_ = workspace.take<float>(count);
    return;
  }
#ifdef THINWIRE_HAS_CUDA
  const auto scratch = std::make_shared<cuda::Scratch<float>>(cuda::executor_on_device(executor), count);
  span_ = {scratch->data(), count, Memory::cuda};
  on_device_ = scratch;
#else
  (void)executor;
  throw_without_cuda();
#endif
}

NearCopy::NearCopy(Executor& executor, Workspace& workspace, Memory gradient, Span<float> values)
    : executor_(executor), values_(values) {
  if (gradient == Memory::host || values.empty()) return;
  copy_ = StepVector(executor, workspace, gradient, values.size());
  near_ = copy_.span();
}

void NearCopy::load() const {
  if (!near_.empty()) copy(executor_, Span<const float>(values_), near_);
}

void NearCopy::store() const {
  if (!near_.empty()) copy(executor_, Span<const float>(near_), values_);
}

}  // namespace thinwire
