#pragma once
// Each rank's own gradient, clipped before it is compressed: see clip.cc.

#include <cstdint>
#include <memory>

#include "thinwire/state.h"
#include "thinwire/synchronizer.h"

namespace thinwire {

/// Of each parameter, its share of the squares of this rank's gradient. Other ranks begin with the mean.
inline constexpr StateKind kClipShare = {
    .name = "clip_share", .ranks = StateKind::Ranks::mean, .moves = true};
/// Of each parameter in a step that goes on in other buckets: the squares of this rank's gradient.
inline constexpr StateKind kClipSquares = {
    .name = "clip_squares", .ranks = StateKind::Ranks::mean, .moves = true};

enum class ClipLimit : std::uint8_t {
  norm,            ///< For each rank's gradient.
  norm_over_root,  ///< norm / sqrt(W), which W independent gradients add up to.
};

/// `inner` with this rank's gradient scaled down to an l2 norm over all buckets.
std::unique_ptr<Synchronizer> clip_gradient(double norm, ClipLimit limit,
                                            std::unique_ptr<Synchronizer> inner);

}  // namespace thinwire
