#pragma once
// What EF-signSGD and SSDM share: codes of one bit, whose table is one scale.
//
// Bytes per rank: (W - 1) * (8 + ceil(d/8)).

#include "thinwire/synchronizer.h"

namespace thinwire {

/// Decides this rank's bits.
using PackSigns = FunctionRef<void(Span<std::uint64_t> bits)>;

/// Collective. mean = average over ranks of scale * (+-1); residual = p - scale * (+-1) of this rank. A scale
/// that is not finite on any rank makes the step non-finite on all.
void average_scaled_signs(BucketId bucket, Span<float> gradient, Span<float> residual, Step& step,
                          double scale, PackSigns pack);

/// Of each part by itself, with a scale of its own; see exchange/reduce_scatter.h. scale: of a part's p; its
/// bits are the signs.
void reduce_scatter_signs(BucketId bucket, Span<float> gradient, Span<float> residual, Step& step,
                          FunctionRef<double(Span<const float> gradient, Span<const float> residual)> scale);

std::uint64_t scaled_signs_payload_bytes(const Workload& workload);

}  // namespace thinwire
