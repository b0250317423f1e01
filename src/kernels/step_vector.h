#pragma once
// A vector that systems need beside the gradient for the length of a step: where the gradient lies on a CUDA
// device it must lie there, too, and the workspace does not.

#include <memory>

#include "thinwire/executor.h"
#include "thinwire/span.h"
#include "thinwire/workspace.h"

namespace thinwire {

/// `count` floats, uninitialised, in the memory that is named. On the host they come from the workspace, on a
/// device from its pool, to which they return, in the order of kernels, with the last copy of this object.
class StepVector {
 public:
  StepVector() = default;
  StepVector(Executor& executor, Workspace& workspace, Memory memory, std::size_t count);

  Span<float> span() const { return span_; }

 private:
  std::shared_ptr<void> on_device_;
  Span<float> span_;
};

/// Values of the host that travel, as kernels work on them: themselves where the gradient lies on the host,
/// and a copy on its device otherwise, where they are asked for again and again.
class NearCopy {
 public:
  NearCopy(Executor& executor, Workspace& workspace, Memory gradient, Span<float> values);

  Span<float> span() const { return near_.empty() ? values_ : near_; }
  /// What the host holds, to where kernels work.
  void load() const;
  /// The reverse; done when it returns.
  void store() const;

 private:
  Executor& executor_;
  Span<float> values_;
  StepVector copy_;
  Span<float> near_;
};

}  // namespace thinwire
