#pragma once
// Momentum correction: momentum applied before compression, so that what a sparsifier holds back gathers the
// same momentum that it would have had in the optimizer. Y. Lin et al., "Deep Gradient Compression", ICLR
// 2018, section 3.2; in Thinwire it is a stage around any system that leaves elements undelivered.

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

}  // namespace thinwire
