#pragma once
// Copies for who has no executor.

#include "thinwire/span.h"

namespace thinwire {

/// Whether copy_bytes takes `memory`: that of devices in a build with CUDA.
bool copies(Memory memory);

/// to = from, of the same size, wherever they lie; done when it returns. What lies on a device is complete
/// and of the calling thread's current one, or of one that reaches it. Throws std::runtime_error when CUDA
/// fails.
void copy_bytes(Span<const std::byte> from, Span<std::byte> to);

}  // namespace thinwire
