#pragma once
// The learning rate before compression. What a system holds back waits for steps; when the rate falls
// meanwhile, it matters whether the gradient meets the rate of its own step or that of its delivery.

#include <memory>

#include "thinwire/synchronizer.h"

namespace thinwire {

/// `inner` with the learning rate inside: it is handed gradient * rate, and what it delivers is divided by
/// the rate of the same step, with which the optimizer will multiply it (Step::learning_rate). So what
/// reaches the parameters is each gradient times the rate of its own step, as in algorithm 5 of the
/// Sketched-SGD paper. The residual, and any velocity inside `inner`, hold products of gradient and rate:
///
///   sum over ranks of (rate * gradient_in + residual_in) = W * rate * mean + sum over ranks of residual_out
///
/// While the rate is 1 the inner system sees what it would see alone, bit for bit. In a step whose rate is 0
/// nothing is sent, the mean is 0 and nothing else changes: the rate must be 0 on all ranks. Throws
/// std::invalid_argument for any other rate outside [1e-30, 1e30]. When the division overflows, the report
/// says that the step is not finite, though its delivery is spent.
std::unique_ptr<Synchronizer> put_learning_rate_inside(std::unique_ptr<Synchronizer> inner);

}  // namespace thinwire
