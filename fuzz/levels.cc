// Any number of levels, and any bytes: read_entropy_coded either throws CorruptFrame or returns levels that
// can be written, and these are read as what they are.

#include "kernels/codes/entropy_code.h"

#include <vector>

#include "fuzz/input.h"
#include "thinwire/errors.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace thinwire;
  using thinwire::fuzz::require;
  if (size < 2) return 0;
  static const auto executor = make_cpu_executor(1);
  // One segment, or two.
  const std::size_t count = data[0] + 256u * (data[1] % 8) + (data[1] >= 128 ? 65536u : 0u);
  // Read where a message would lie, at an even address, with nothing behind it.
  std::vector<std::byte> codes(size - 2);
  for (std::size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<std::byte>(data[2 + i]);
  std::vector<std::int16_t> levels(count);
  try {
    read_entropy_coded(*executor, codes, levels);
  } catch (const CorruptFrame&) {
    return 0;
  }
  std::vector<std::byte> again(most_entropy_coded_bytes(count));
  again.resize(write_entropy_coded(*executor, levels, again));
  std::vector<std::int16_t> back(count);
  read_entropy_coded(*executor, again, back);
  require(back == levels);
  return 0;
}
