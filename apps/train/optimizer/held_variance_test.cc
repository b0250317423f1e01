#include "apps/train/optimizer/held_variance.h"

#include <gtest/gtest.h>
#include <torch/optim/adamw.h>

#include <cmath>
#include <stdexcept>
#include <vector>

namespace thinwire::train {
namespace {

TEST(HeldVariance, StandsStillWithItsCorrectionWhereItIsFrozen) {
  const double rate = 0.01;
  const double beta1 = 0.8;
  const double beta2 = 0.95;
  const double decay = 0.1;
  torch::Tensor weight = torch::linspace(-1, 1, 9).requires_grad_(true);
  torch::optim::AdamW optimizer({weight},
                                torch::optim::AdamWOptions(rate).betas({beta1, beta2}).weight_decay(decay));
  HeldVariance held;
  // The definition, in double.
  torch::Tensor x = weight.detach().to(torch::kDouble);
  torch::Tensor m = torch::zeros_like(x);
  torch::Tensor v = torch::zeros_like(x);
  double steps = 0;
  double moved = 0;
  for (const bool frozen : {false, false, true, false, true, true, true, false, true, false}) {
    weight.mutable_grad() = torch::sin(torch::arange(9) * 0.7 + 2.1 * steps).to(torch::kFloat);
    const torch::Tensor gradient = weight.grad().to(torch::kDouble);
    held.step(optimizer, frozen);
    steps += 1;
    if (!frozen) moved += 1;
    m = beta1 * m + (1 - beta1) * gradient;
    if (!frozen) v = beta2 * v + (1 - beta2) * gradient * gradient;
    const torch::Tensor root = (v / (1 - std::pow(beta2, moved))).sqrt() + 1e-8;
    x = x * (1 - rate * decay) - rate * m / (1 - std::pow(beta1, frozen ? steps : moved)) / root;
    EXPECT_TRUE(torch::allclose(weight.detach().to(torch::kDouble), x, 0, 1e-6)) << "step " << steps;
  }
  EXPECT_EQ(held.frozen_steps(), 5u);
}

TEST(HeldVariance, SgdHasNone) {
  EXPECT_NO_THROW(HeldVariance::require_variance(OptimizerKind::adamw, "rows=zen,dense=one_bit_adam"));
  EXPECT_NO_THROW(HeldVariance::require_variance(OptimizerKind::sgd, "momentum+casq"));
  for (const char* spec : {"one_bit_adam", "rows=zen,dense=warm_up:steps=3+zero_one_adam"}) {
    EXPECT_THROW(HeldVariance::require_variance(OptimizerKind::sgd, spec), std::invalid_argument) << spec;
  }
}

}  // namespace
}  // namespace thinwire::train
