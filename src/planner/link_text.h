#pragma once
// Links as people write them: "25Gbit:20us".

#include <string_view>

#include "thinwire/virtual_network.h"

namespace thinwire {

/// RATE:LATENCY, RATE in bit, Kbit, Mbit or Gbit per second, LATENCY in ns, us, ms or s. Throws
/// std::invalid_argument.
VirtualLink parse_link(std::string_view text);

}  // namespace thinwire
