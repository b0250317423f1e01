#include "apps/train/optimizer/held_variance.h"

#include <fmt/format.h>
#include <torch/optim/adamw.h>

#include <cmath>
#include <limits>
#include <stdexcept>
#include <vector>

#include "thinwire/registry.h"

namespace thinwire::train {

namespace {

using torch::optim::AdamWOptions;
using torch::optim::AdamWParamState;

AdamWOptions& options_of(torch::optim::Optimizer& optimizer) {
  return static_cast<AdamWOptions&>(optimizer.param_groups().at(0).options());
}

/// body(state) of every parameter that has one.
template <class Body>
void for_each_state(torch::optim::Optimizer& optimizer, Body body) {
  for (auto& entry : optimizer.state()) body(static_cast<AdamWParamState&>(*entry.second));
}

/// 1 - beta2^steps: the share of a second moment that so many steps make up.
double correction(double beta2, std::int64_t steps) {
  return 1 - std::pow(beta2, static_cast<double>(steps));
}

}  // namespace

void HeldVariance::require_variance(OptimizerKind optimizer, const std::string& spec) {
  if (optimizer == OptimizerKind::adamw) return;
  if (!builtin_registry().freezes_variance(spec)) return;
  throw std::invalid_argument(
      fmt::format("--sync {}: it freezes Adam's variance, and SGD has none; give --optimizer adamw", spec));
}

/// AMSGrad's maximum is what the step divides by. It is given the variance, and the second moment a value
/// that is the smaller one whatever is added to it.
void HeldVariance::step(torch::optim::Optimizer& optimizer, bool frozen) {
  if (!frozen && frozen_steps_ == 0) {
    optimizer.step();
    return;
  }
  const auto held = static_cast<std::int64_t>(frozen_steps_);
  if (!frozen) {
    for_each_state(optimizer, [&](AdamWParamState& state) { state.step(state.step() - held); });
    optimizer.step();
    for_each_state(optimizer, [&](AdamWParamState& state) { state.step(state.step() + held); });
    return;
  }
  const double beta2 = std::get<1>(options_of(optimizer).betas());
  std::vector<torch::Tensor> variances;
  for_each_state(optimizer, [&](AdamWParamState& state) {
    const torch::Tensor variance = state.exp_avg_sq();
    const double moved = correction(beta2, state.step() - held);
    state.max_exp_avg_sq(variance * (correction(beta2, state.step() + 1) / moved));
    state.exp_avg_sq(torch::full_like(variance, std::numeric_limits<float>::lowest() / 4));
    variances.push_back(variance);
  });
  if (variances.empty()) throw std::logic_error("Adam's variance is to stand still before its first step");
  options_of(optimizer).amsgrad(true);
  optimizer.step();
  options_of(optimizer).amsgrad(false);
  std::size_t next = 0;
  for_each_state(optimizer, [&](AdamWParamState& state) {
    state.exp_avg_sq(variances.at(next++));
    state.max_exp_avg_sq(torch::Tensor());
  });
  ++frozen_steps_;
}

}  // namespace thinwire::train
