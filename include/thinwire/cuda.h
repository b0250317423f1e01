#pragma once
// Gradients in the memory of a CUDA device. A session with a device compresses there and brings frames to the
// host, which sends them.

#include <memory>

#include "thinwire/executor.h"

namespace thinwire {

/// Number of CUDA devices that this build can use: 0 without a device or a
/// driver, or in a build without CUDA.
int cuda_devices();

/// An executor on a new stream of the device. `threads` CPU threads, the calling one included, do what is
/// done on the host. One thread at a time may use it. Throws std::invalid_argument for a device that is not
/// there or threads < 1, std::runtime_error in a build without CUDA.
std::unique_ptr<Executor> make_cuda_executor(int device, int threads = 1);

}  // namespace thinwire
