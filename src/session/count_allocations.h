#pragma once
// For tests that assert that nothing allocates: replaces the global operator new by one that counts.

#include <cstdint>

namespace thinwire {

std::uint64_t allocations_so_far();

}  // namespace thinwire
