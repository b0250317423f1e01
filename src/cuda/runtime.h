#pragma once
// CUDA's runtime interface, or its emulation on the CPU: what every file with device code or device memory
// includes instead of cuda_runtime.h. Kernels are started by launch() and nothing else, so that one source
// serves both.

#ifdef THINWIRE_CUDA_EMULATED
#include "cuda/emulation.h"
#else
#include <cuda_runtime.h>
#endif

#include <cstddef>
#include <stdexcept>
#include <string>

namespace thinwire::cuda {

/// Throws std::runtime_error with CUDA's own words unless the call succeeded.
inline void check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  throw std::runtime_error(std::string("CUDA: ") + what + ": " + cudaGetErrorString(status));
}

/// A one-dimensional grid.
struct Grid {
  unsigned blocks = 1;
  unsigned threads = 1;          ///< Of a block, a multiple of 32.
  std::size_t shared_bytes = 0;  ///< Dynamic shared memory of a block, at most 48 KB.
};

#ifdef THINWIRE_CUDA_EMULATED

/// Runs the kernel on the calling thread.
template <class... Parameters, class... Arguments>
void launch(cudaStream_t, const Grid& grid, void (*kernel)(Parameters...), Arguments... arguments) {
  emulation::run(grid.blocks, grid.threads, grid.shared_bytes, [&] { kernel(arguments...); });
}

/// As THINWIRE_SHARED_MEMORY(type, name) in a kernel: the block's dynamic shared memory as an array.
#define THINWIRE_SHARED_MEMORY(type, name) \
  type* const name = static_cast<type*>(::thinwire::cuda::emulation::shared_memory())

#elif defined(__CUDACC__)

/// Submits the kernel to the stream. A grid of no blocks does nothing.
template <class... Parameters, class... Arguments>
void launch(cudaStream_t stream, const Grid& grid, void (*kernel)(Parameters...), Arguments... arguments) {
  if (grid.blocks == 0) return;
  kernel<<<grid.blocks, grid.threads, grid.shared_bytes, stream>>>(arguments...);
  check(cudaGetLastError(), "a kernel could not be started");
}

/// The block's dynamic shared memory as an array, aligned to 16 bytes.
#define THINWIRE_SHARED_MEMORY(type, name)                      \
  extern __shared__ __align__(16) unsigned char name##_bytes[]; \
  type* const name = reinterpret_cast<type*>(name##_bytes)

#endif

}  // namespace thinwire::cuda
