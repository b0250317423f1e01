#pragma once
// How long a step of training takes when buckets are synchronized beside backward: a model, no trial.
//
// Ranks are alike, so one of them is computed. Three kinds of things go on at the same time:
//
//   - Training computes. Buckets become ready on the way, and the optimizer starts when all means are there.
//   - Each lane takes every lanes-th bucket and works it off in four phases: half of the computing, the
//     latencies, the transfer, the other half of the computing. What sockets compute counts as such: over
//     Gloo it hardly overlaps with the transfer of the same bucket.
//   - All transfers share the link.
//
// Each thread that computes wants one core. Where the rank has fewer, each gets the same share of them.
//
// Not modelled: ranks that are slower than others, losses on the network, caches.

#include <cstddef>
#include <vector>

namespace thinwire {

/// What a candidate does to one bucket.
struct BucketCost {
  double codec_seconds = 0;  ///< CPU time of one thread to compress, send, receive and decompress.
  double link_bytes = 0;     ///< Over the link, of all ranks that share it.
  double rounds = 0;         ///< Messages that wait for each other: so often the latency passes.
};

/// What training does without synchronization. Seconds.
struct StepCompute {
  std::vector<double> ready{};  ///< From the step's beginning until each bucket is ready; ascending.
  double backward_end = 0;      ///< From the step's beginning; at least the last of `ready`.
  double rest = 0;     ///< From the end of backward to the next step's beginning: the optimizer, data.
  double threads = 1;  ///< Cores that it uses until backward ends; 0: it computes on a device.
};

/// Of one rank.
struct StepResources {
  double bytes_per_second = 0;  ///< The link's.
  double latency_seconds = 0;   ///< One way.
  double cores = 1;             ///< Those of the host, divided by its ranks.
  std::size_t lanes = 2;
};

/// Where the time of a step goes. compute + codec + wire + wait = step; the last three are the exposed part.
struct StepCost {
  double step = 0;
  double compute = 0;  ///< Without synchronization.
  double codec = 0;    ///< Codecs that are waited for, and what they took from training's cores.
  double wire = 0;     ///< Transfers that are waited for.
  double wait = 0;     ///< Latencies that are waited for.

  double exposed() const { return codec + wire + wait; }
};

/// buckets: as many as `ready` has; throws std::invalid_argument otherwise, for numbers that are negative or
/// not finite, and unless there are a lane, a part of a core and a rate.
StepCost step_cost(const std::vector<BucketCost>& buckets, const StepCompute& compute,
                   const StepResources& resources);

}  // namespace thinwire
