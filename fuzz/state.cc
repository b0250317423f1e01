// Any bytes: StateReader either throws std::runtime_error or holds entries that can all be read.

#include "thinwire/state.h"

#include <cstdint>
#include <sstream>
#include <stdexcept>
#include <string>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::istringstream stream(std::string(reinterpret_cast<const char*>(data), size));
  try {
    const thinwire::StateReader reader(stream);
    for (const auto& name : reader.names("")) {
      try {
        std::vector<float> values(reader.length(name));
        reader.get(name, values);
      } catch (const std::runtime_error&) {
        // Not an array of floats.
      }
    }
    for (const auto& name : reader.names("kind/")) {
      try {
        (void)reader.declaration(name.substr(name.find('/') + 1));
      } catch (const std::runtime_error&) {
        // Not a declaration.
      }
    }
  } catch (const std::runtime_error&) {
  }
  return 0;
}
