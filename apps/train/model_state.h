#pragma once
// A model and its optimizer as entries of a checkpoint.

#include <torch/optim/optimizer.h>

#include "apps/train/models/models.h"
#include "thinwire/state.h"

namespace thinwire::train {

/// Parameters and buffers with their exact bits.
void put_model(StateWriter& writer, const Model& model);
/// Throws std::runtime_error naming a tensor that is missing or of another length.
void get_model(const StateReader& reader, Model& model);

/// Momentum and the like with their exact bits.
void put_optimizer(StateWriter& writer, const torch::optim::Optimizer& optimizer);
/// Throws std::runtime_error where it is missing or another optimizer's.
void get_optimizer(const StateReader& reader, torch::optim::Optimizer& optimizer);

}  // namespace thinwire::train
