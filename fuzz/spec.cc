// Any text: a spec is refused with std::invalid_argument, or stands for a pipeline whose canonical spec means
// the same.

#include <stdexcept>

#include "fuzz/input.h"
#include "thinwire/registry.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace thinwire;
  const std::string text(reinterpret_cast<const char*>(data), size);
  try {
    const SpecPair pair = parse_spec_pair(text);
    for (const auto& spec : {pair.dense, pair.rows}) {
      const std::string canonical = builtin_registry().make(spec).spec;
      fuzz::require(builtin_registry().make(canonical).spec == canonical);
    }
  } catch (const std::invalid_argument&) {
  }
  return 0;
}
