// What a build without CUDA has instead of an executor on a device.

#include <stdexcept>

#include "thinwire/cuda.h"

namespace thinwire {

int cuda_devices() {
  return 0;
}

std::unique_ptr<Executor> make_cuda_executor(int, int) {
  throw std::runtime_error("this build of Thinwire has no CUDA: configure it with -DTHINWIRE_CUDA=ON");
}

}  // namespace thinwire
