#include "apps/train/optimizer/local_updates.h"

#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <memory>
#include <stdexcept>

namespace thinwire::train {

namespace {

using torch::optim::AdamWParamState;
using torch::optim::OptimizerParamState;
using torch::optim::SGDParamState;

torch::Tensor copy_of(const torch::Tensor& tensor) {
  return tensor.defined() ? tensor.clone() : tensor;
}

/// Torch's own clone() shares the tensors, which step() changes in place.
std::unique_ptr<OptimizerParamState> deep_copy(const OptimizerParamState& state) {
  std::unique_ptr<OptimizerParamState> copy = state.clone();
  if (auto* adamw = dynamic_cast<AdamWParamState*>(copy.get())) {
    adamw->exp_avg(copy_of(adamw->exp_avg()));
    adamw->exp_avg_sq(copy_of(adamw->exp_avg_sq()));
  } else if (auto* sgd = dynamic_cast<SGDParamState*>(copy.get())) {
    sgd->momentum_buffer(copy_of(sgd->momentum_buffer()));
  } else {
    throw std::logic_error("local updates know the state of SGD and AdamW alone");
  }
  return copy;
}

}  // namespace

LocalUpdates::LocalUpdates(std::vector<torch::Tensor> parameters, std::vector<torch::Tensor> buffers,
                           torch::optim::Optimizer& optimizer)
    : parameters_(std::move(parameters)), buffers_(std::move(buffers)), optimizer_(optimizer) {
  for (const auto& parameter : parameters_) start_.push_back(torch::empty_like(parameter).detach());
  for (const auto& buffer : buffers_) buffers_at_start_.push_back(torch::empty_like(buffer));
}

void LocalUpdates::begin() {
  const torch::NoGradGuard no_grad;
  for (std::size_t i = 0; i < parameters_.size(); ++i) start_[i].copy_(parameters_[i]);
  for (std::size_t i = 0; i < buffers_.size(); ++i) buffers_at_start_[i].copy_(buffers_[i]);
  kept_.clear();
  for (const auto& [parameter, state] : optimizer_.state()) kept_[parameter] = deep_copy(*state);
}

void LocalUpdates::take_updates() {
  const torch::NoGradGuard no_grad;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    torch::Tensor gradient = parameters_[i].grad();
    torch::sub_out(gradient, start_[i], parameters_[i]);
    parameters_[i].copy_(start_[i]);
  }
}

void LocalUpdates::apply(double outer_rate) {
  const torch::NoGradGuard no_grad;
  for (auto& parameter : parameters_) parameter.sub_(parameter.grad(), outer_rate);
}

void LocalUpdates::undo() {
  for (std::size_t i = 0; i < buffers_.size(); ++i) buffers_[i].copy_(buffers_at_start_[i]);
  optimizer_.state() = std::move(kept_);
  kept_.clear();
}

}  // namespace thinwire::train
