#pragma once
// Momentum before compression, in two forms.
//
// Momentum correction: momentum applied before compression, so that what a sparsifier holds back gathers the
// same momentum that it would have had in the optimizer. Y. Lin et al., "Deep Gradient Compression", ICLR
// 2018, section 3.2; in Thinwire it is a stage around any system that leaves elements undelivered.
//
// Inner momentum, for optimizers that keep their own: what travels is the momentum, which turns slowly, and
// what is delivered is the gradient that makes the optimizer's momentum the one that arrived. H. Tang et al.,
// "1-bit Adam", ICML 2021 (arXiv 2102.02888), algorithm 1, lines 8 to 13.

#include "thinwire/registry.h"

namespace thinwire {

/// u below. It smooths a rank's own gradients: ranks that are new begin with the mean of all.
inline constexpr StateKind kVelocity = {
    .name = "velocity", .unit = StateKind::Unit::gradient, .ranks = StateKind::Ranks::mean};

/// Stage `mc:momentum=M`. With u the velocity of a bucket: u = M u + gradient is handed to the inner system
/// as its gradient; where the inner system delivered (Step::delivered), u becomes 0. A step that is not
/// finite leaves u as it was. Keeps one float per element.
SystemInfo momentum_correction_info();

/// The stage itself, around `inner`; for stages that contain it.
std::unique_ptr<Synchronizer> correct_momentum(float momentum, std::unique_ptr<Synchronizer> inner);

/// V below. It follows what was delivered, so another system behind the stage goes on with it.
inline constexpr StateKind kDeliveredMomentum = {.name = "delivered_momentum",
                                                 .unit = StateKind::Unit::gradient,
                                                 .ranks = StateKind::Ranks::same,
                                                 .moves = true};

/// Stage `momentum:momentum=M`. V is the momentum of all means delivered so far, the same on all ranks. Rank
/// i hands M V + gradient to the inner system, with the residual; V' is the mean that comes back. Delivered
/// is V' - M V. So the contract's equation holds as it stands: M V is added on both sides. An optimizer that
/// sets m = M m + gradient (torch's SGD without dampening, and Adam's first moment with the factor 1 - beta1)
/// has m = V', to rounding, if it began with the stage and nothing changes the means in between. A step that
/// is not finite leaves V as it was. Keeps one float per element.
SystemInfo inner_momentum_info();

enum class MomentumTravels {
  always,
  /// Else the gradient does, as it is, and V follows the mean.
  while_variance_is_frozen,
};

/// The stage itself, around `inner`; for systems that contain it. momentum: 0 to 1.
std::unique_ptr<Synchronizer> keep_momentum(float momentum, MomentumTravels travels,
                                            std::unique_ptr<Synchronizer> inner);

}  // namespace thinwire
