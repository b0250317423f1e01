#include "comm/step_collectives.h"

namespace thinwire {

void all_reduce_sum(Step& step, Span<float> values) {
  if (values.memory() == Memory::host || values.empty()) return step.communicator.all_reduce_sum(values);
  if (step.communicator.reduces(values.memory())) {
    step.executor.wait();  // the engine knows nothing of the executor's stream
    return step.communicator.all_reduce_sum(values);
  }
  if (step.communicator.size() == 1) return;
  const Span<float> here = step.workspace.take<float>(values.size());
  copy(step.executor, Span<const float>(values), here);
  step.communicator.all_reduce_sum(here);
  copy(step.executor, Span<const float>(here), values);
}

}  // namespace thinwire
