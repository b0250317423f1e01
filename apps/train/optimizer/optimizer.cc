#include "apps/train/optimizer/optimizer.h"

#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

namespace thinwire::train {

std::unique_ptr<torch::optim::Optimizer> make_optimizer(const Options& options,
                                                        const std::vector<torch::Tensor>& parameters) {
  const double rate = options.learning_rate;
  if (options.optimizer == OptimizerKind::adamw) {
    return std::make_unique<torch::optim::AdamW>(
        parameters, torch::optim::AdamWOptions(rate).weight_decay(options.weight_decay));
  }
  return std::make_unique<torch::optim::SGD>(
      parameters,
      torch::optim::SGDOptions(rate).momentum(options.momentum).weight_decay(options.weight_decay));
}

}  // namespace thinwire::train
