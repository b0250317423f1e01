// The systems of one group; see exchange.h.

#include "fuzz/exchange.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  thinwire::fuzz::run_exchange(THINWIRE_FUZZ_GROUP, data, size);
  return 0;
}
