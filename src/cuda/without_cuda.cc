// What a build without CUDA has instead of an executor on a device.

#include <cstring>
#include <stdexcept>

#include "cuda/copy.h"
#include "thinwire/cuda.h"

namespace thinwire {

int cuda_devices() {
  return 0;
}

std::unique_ptr<Executor> make_cuda_executor(int, int) {
  throw std::runtime_error("this build of Thinwire has no CUDA: configure it with -DTHINWIRE_CUDA=ON");
}

bool copies(Memory memory) {
  return memory == Memory::host;
}

void copy_bytes(Span<const std::byte> from, Span<std::byte> to) {
  if (!from.empty()) std::memcpy(to.data(), from.data(), from.size());
}

}  // namespace thinwire
