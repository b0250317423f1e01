#pragma once
// What steps the parameters whose gradients are dense.

#include <torch/optim/optimizer.h>

#include <memory>
#include <vector>

#include "apps/train/options.h"

namespace thinwire::train {

/// SGD with Options::momentum, or AdamW (Loshchilov and Hutter 2019) with torch's betas, 0.9 and 0.999; both
/// with Options::weight_decay.
std::unique_ptr<torch::optim::Optimizer> make_optimizer(const Options& options,
                                                        const std::vector<torch::Tensor>& parameters);

}  // namespace thinwire::train
