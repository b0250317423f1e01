#pragma once
// A resumed run's first step, in the buckets of the run that it goes on with.
//
// DDP groups parameters anew after a process's first step. So a new process takes that step in other buckets
// than the run that it goes on with took the same step in. Systems draw, sketch and choose per bucket: the
// result would be another. The engine therefore keeps its buckets in states, and takes the first step after
// load() in those: gradients are copied into them, and means back.

#include <cstddef>
#include <vector>

#include "torch/ddp_layout.h"

namespace thinwire {

/// The buckets of `items`, which are a step's last ones, as the buckets `layouts` from `first` on. Their
/// `done` copies the mean into DDP's buckets, and ends one when all of its parts are there. Empty, and
/// `items` are as they were, where the two are not made of the same parameters; else `items` is empty
/// afterwards. Called where submit() is: on devices, copies come after what computes the gradients.
std::vector<DdpItem> regrouped(std::vector<DdpItem>& items, const std::vector<DdpLayout>& layouts,
                               std::size_t first);

}  // namespace thinwire
