#pragma once
// Signs with error feedback on both legs: to the owners of shards, and from them to all.
//
// Source: H. Tang et al., "1-bit Adam", ICML 2021 (arXiv 2102.02888), algorithm 1 and section 4.2.
//
//   p --signs, scales--> owner of the shard: s = own p + sum of the others' Q(p)
//     --signs, scales of s / W--> mean
//
// Each rank owns part `rank` of the bucket. Every parameter has a scale of its own in each shard, since
// layers differ by orders of magnitude. residual = p - Q(p) of the others' shards, and s - W * mean of its
// own: the server's error waits there. Deviations: the papers have one scale for a whole vector or shard, and
// codes the owner's own part like the others' although it does not travel.
//
// Bytes per rank: for each of the others' shards, and W - 1 times for its own, 4 for each parameter that has
// elements there, and 8 for each 64 of these elements or a part of them.

#include "thinwire/synchronizer.h"

namespace thinwire {

enum class SignScale {
  l1,  ///< mean |p|, which errs least.
  l2,  ///< sqrt(mean p^2), with which the code is as long as p.
};

/// Collective. gradient becomes the mean, +-scale of its shard and parameter. Where any rank has a value that
/// is not finite report.finite becomes false on all, and residual stays as it was.
void average_sign_shards(BucketId bucket, Span<float> gradient, Span<float> residual, Step& step,
                         SignScale scale);

std::uint64_t sign_shards_payload_bytes(const Workload& workload);

}  // namespace thinwire
