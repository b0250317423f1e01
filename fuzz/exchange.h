#pragma once
// Whole steps of systems, by one rank whose messages were damaged on the way, or made up by a rank that lies:
// it refuses, or it ends with a mean. Where a checksum covers what was damaged, and is wrong, it refuses or
// has the right mean.

#include <cstddef>
#include <cstdint>

namespace thinwire::fuzz {

/// One step of a system of `group`, see exchange.cc. data: which system, rank and step, and whether checksums
/// are made right, in two bytes; then twelve bytes for each damage. Ends the program where a promise is
/// broken.
void run_exchange(const char* group, const std::uint8_t* data, std::size_t size);

}  // namespace thinwire::fuzz
