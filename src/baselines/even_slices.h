#pragma once
// What Sparse PS and OmniReduce have in common: rank p owns the p-th slice of the table, whose rows lie side
// by side, and lists of rows go both ways. Where gradients are skewed, one owner gets most of them.

#include <memory>

#include "thinwire/synchronizer.h"

namespace thinwire {

/// `block`: elements per unit of sparsity of a dense bucket.
std::unique_ptr<Synchronizer> make_even_slices(std::size_t block);

}  // namespace thinwire
