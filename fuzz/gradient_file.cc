// Any bytes, as they are and as one or two steps whose hashes are right: read_gradients either throws
// std::runtime_error or returns steps whose every promise holds.

#include "apps/gradients/gradient_file.h"

#include <sstream>
#include <stdexcept>

#include "fuzz/input.h"

namespace {

using namespace thinwire::apps;
using thinwire::fuzz::require;

constexpr std::size_t kHead = 16;  // magic, rank and world size

bool reads(const std::string& bytes) {
  std::istringstream stream(bytes);
  try {
    const GradientFile file = read_gradients(stream, "input");
    require(file.rank >= 0 && file.rank < file.world_size);
    for (const auto& step : file.steps) {
      require(step.tensors.size() == file.steps.front().tensors.size());
      for (const auto& tensor : step.tensors) {
        const std::size_t count = tensor.row_sparse ? tensor.indices.size() : tensor.rows;
        require(!tensor.name.empty() && tensor.values.size() == count * tensor.width);
        for (const std::uint32_t index : tensor.indices) require(index < tensor.rows);
      }
    }
  } catch (const std::runtime_error&) {
    return false;
  }
  return true;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  if (reads(bytes) || bytes.size() < kHead) return 0;
  if (reads(thinwire::fuzz::with_hash(bytes, kHead))) return 0;
  // The last byte says where the second step begins.
  const std::size_t rest = bytes.size() - kHead;
  const std::size_t second = kHead + rest * data[size - 1] / 256;
  const std::string first = thinwire::fuzz::with_hash(bytes.substr(0, second), kHead);
  reads(thinwire::fuzz::with_hash(first + bytes.substr(second), first.size()));
  return 0;
}
