// Any bytes, as they are and with a checksum that is right for them: StateReader either throws
// std::runtime_error or holds entries that can all be read.

#include "thinwire/state.h"

#include <sstream>
#include <stdexcept>
#include <vector>

#include "fuzz/input.h"

namespace {

void read_all(const thinwire::StateReader& reader) {
  for (const auto& name : reader.names("")) {
    if (reader.type(name) != thinwire::StateReader::Type::floats) continue;
    std::vector<float> values(reader.length(name));
    reader.get(name, values);
  }
  for (const auto& name : reader.names("kind/")) {
    try {
      (void)reader.declaration(name.substr(name.find('/') + 1));
    } catch (const std::runtime_error&) {
      // Not a declaration.
    }
  }
}

bool reads(const std::string& bytes) {
  std::istringstream stream(bytes);
  try {
    read_all(thinwire::StateReader(stream));
  } catch (const std::runtime_error&) {
    return false;
  }
  return true;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  if (!reads(bytes)) reads(thinwire::fuzz::with_hash(bytes));
  return 0;
}
