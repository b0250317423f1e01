#pragma once
// Local updates: each rank takes several steps of its own optimizer, and then ranks synchronize by how far
// these steps moved the parameters.
//
// Paper: F. Wu et al., "Sign Bit is Enough", DAC 2022 (Marsit).
// - Section 5, "Optimizers and hyper-parameters": "To reduce the frequency of the communications among nodes,
//   clients perform multiple local updates between two successive synchronizations. The optimizer for image
//   classification task is Momentum, and Adam for sentiment analysis."
// - Algorithm 2, line 5, hands the local stepsize times the gradient to Algorithm 1. So what is compressed is
//   an update of parameters. Line 6 subtracts what comes back from the parameters.
//
// A round is the local steps from one synchronization to the next:
//
//   local steps:  x_w = x, then H times x_w <- optimizer_w(x_w)
//   update:       u_w = x - x_w        handed to the session where gradients are otherwise
//   outer step:   x <- x - outer rate * mean of u
//
// Any system synchronizes u_w, and its residual is in units of parameters. The paper's eta_l is the
// optimizer's rate, and its eta_s the system's (marsit:eta_s). The paper has no outer rate: it is 1 there.
// What the paper does not say: each rank keeps its optimizer's state from round to round.

#include <torch/optim/optimizer.h>

#include <type_traits>
#include <utility>
#include <vector>

namespace thinwire::train {

class LocalUpdates {
 public:
  /// `parameters`: all that `optimizer` steps, each with a gradient. `buffers`: what else forward changes,
  /// such as running means. Torch's SGD and AdamW are known; std::logic_error for another optimizer once it
  /// has state. The optimizer outlives this.
  LocalUpdates(std::vector<torch::Tensor> parameters, std::vector<torch::Tensor> buffers,
               torch::optim::Optimizer& optimizer);

  /// A round begins: keeps copies of parameters, buffers and the optimizer's state.
  void begin();
  /// After the round's last local step: every parameter's gradient becomes its update since begin(), and the
  /// parameter what it was there.
  void take_updates();
  /// After take_updates() and the synchronization, when the round counts: steps along the mean update, which
  /// the gradients hold now.
  void apply(double outer_rate);
  /// Instead, when it does not count: buffers and the optimizer's state become what they were at begin(). So
  /// a value that was not finite on one rank leaves no trace on any.
  void undo();

 private:
  using OptimizerStates = std::decay_t<decltype(std::declval<torch::optim::Optimizer&>().state())>;

  std::vector<torch::Tensor> parameters_;
  std::vector<torch::Tensor> buffers_;
  torch::optim::Optimizer& optimizer_;
  std::vector<torch::Tensor> start_;  // parameters at begin()
  std::vector<torch::Tensor> buffers_at_start_;
  OptimizerStates kept_;  // at begin()
};

}  // namespace thinwire::train
