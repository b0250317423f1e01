#pragma once
// Counters of positive signs as bit planes: plane k holds bit k of every element's counter, so that counters
// of ceil(log2(W + 1)) bits travel without padding and 64 of them are incremented by a handful of word
// operations.

#include "thinwire/executor.h"
#include "thinwire/span.h"

namespace thinwire {

/// planes: plane_count planes of `words` words each, least significant first. Every counter with its bit set
/// in `bits` [words] is incremented; the caller has room for it: counters stay below 2^plane_count.
void add_votes(Executor& executor, Span<std::uint64_t> planes, int plane_count,
               Span<const std::uint64_t> bits);

/// majority[i] = counter i > workers / 2, and the bit of `ties` where it is exactly half.
void majority_of_votes(Executor& executor, Span<const std::uint64_t> planes, int plane_count,
                       std::uint32_t workers, Span<const std::uint64_t> ties, Span<std::uint64_t> majority);

}  // namespace thinwire
