#pragma once
// Steps of AdamW in some of which its second moment stands still, bias correction included.

#include <torch/optim/optimizer.h>

#include <cstdint>

#include "apps/train/options.h"

namespace thinwire::train {

class HeldVariance {
 public:
  /// Throws std::invalid_argument where `spec` freezes a variance (Synchronizer::freezes_variance) and the
  /// optimizer has none.
  static void require_variance(OptimizerKind optimizer, const std::string& spec);

  /// One step of `optimizer`. frozen: the second moment of an AdamW stays what it is to the last bit, and is
  /// corrected as in the last step in which it moved. In later steps in which it moves both moments are
  /// corrected for the steps in which it moved.
  void step(torch::optim::Optimizer& optimizer, bool frozen);

  /// Steps in which it stood still: part of a checkpoint.
  std::uint64_t frozen_steps() const { return frozen_steps_; }
  void set_frozen_steps(std::uint64_t steps) { frozen_steps_ = steps; }

 private:
  std::uint64_t frozen_steps_ = 0;
};

}  // namespace thinwire::train
