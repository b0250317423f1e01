#pragma once
// What EF-signSGD and SSDM share: every rank sends one scale and one bit per element to all others, and every
// rank averages all of them in rank order.
//
// Bytes per rank: (W - 1) * (8 + ceil(d/8)).

#include <vector>

#include "thinwire/synchronizer.h"

namespace thinwire {

/// Decides this rank's bits; `scale` is the factor that they stand for.
using PackScaledSigns = FunctionRef<void(Span<std::uint64_t> bits)>;

/// Collective. mean = average over ranks of scale * (+-1); residual = p - scale * (+-1) of this rank. A scale
/// that is not finite on any rank makes the step non-finite on all. `pendings` is storage that the system
/// keeps between steps.
void average_scaled_signs(BucketId bucket, Span<float> gradient, Span<float> residual, Step& step,
                          double scale, std::vector<Pending>& pendings, PackScaledSigns pack);

std::uint64_t scaled_signs_payload_bytes(const Workload& workload);

}  // namespace thinwire
