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

}  // namespace thinwire
