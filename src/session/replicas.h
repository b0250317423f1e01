#pragma once
// How ranks say that they do not hold the same parameters any more.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace thinwire {

/// hashes: of what each rank holds, in rank order. "rank 1 holds other parameters than the rest of 3 ranks",
/// or who holds what where no set is that of more ranks than any other; nothing where all are the same.
std::optional<std::string> replica_difference(const std::vector<std::uint64_t>& hashes);

}  // namespace thinwire
