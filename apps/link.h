#pragma once
// Links as people write them: "25Gbit:20us".

#include <string_view>

namespace thinwire::apps {

struct Link {
  double bytes_per_second = 0;
  double latency_seconds = 0;
};

/// RATE:LATENCY, RATE in bit, Kbit, Mbit or Gbit per second, LATENCY in ns, us, ms or s. Throws
/// std::invalid_argument.
Link parse_link(std::string_view text);

}  // namespace thinwire::apps
