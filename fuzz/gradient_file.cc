// Any bytes: read_gradients either throws std::runtime_error or returns steps whose every promise holds.

#include "apps/gradients/gradient_file.h"

#include <cstdint>
#include <cstdlib>
#include <sstream>
#include <stdexcept>
#include <string>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace thinwire::apps;
  std::istringstream stream(std::string(reinterpret_cast<const char*>(data), size));
  try {
    const GradientFile file = read_gradients(stream, "input");
    if (file.rank < 0 || file.rank >= file.world_size) std::abort();
    for (const auto& step : file.steps) {
      if (step.tensors.size() != file.steps.front().tensors.size()) std::abort();
      for (const auto& tensor : step.tensors) {
        const std::size_t count = tensor.row_sparse ? tensor.indices.size() : tensor.rows;
        if (tensor.name.empty() || tensor.values.size() != count * tensor.width) std::abort();
        for (const std::uint32_t index : tensor.indices) {
          if (index >= tensor.rows) std::abort();
        }
      }
    }
  } catch (const std::runtime_error&) {
  }
  return 0;
}
