#pragma once
// Finding what is not zero in a dense gradient: the first pass of every sparse system.

#include <cstddef>
#include <cstdint>

#include "thinwire/executor.h"
#include "thinwire/span.h"
#include "thinwire/workspace.h"

namespace thinwire {

/// With p = gradient + residual (residual: [n] or empty): indices[k], values[k] = the k-th element of p that
/// is not 0, ascending; -0 counts as 0, NaN does not. Outputs have room for n elements and overlap no input.
/// Returns how many there are.
std::size_t find_nonzeros(Executor& executor, Span<const float> gradient, Span<const float> residual,
                          Span<std::uint32_t> indices, Span<float> values);

/// Elements of a vector, ascending.
struct Elements {
  Span<const std::uint32_t> indices;
  Span<const float> values;
};

/// The same into the workspace. Takes room for n elements on a CPU, which finds them in one pass; for what
/// lies on a device, whose workspace is pinned memory, room for as many as there are.
Elements find_nonzeros(Executor& executor, Span<const float> gradient, Span<const float> residual,
                       Workspace& workspace);

/// The same on a CUDA device, see kernels/device/on_device.h.
namespace cuda {
std::size_t find_nonzeros(Executor& executor, Span<const float> gradient, Span<const float> residual,
                          Span<std::uint32_t> indices, Span<float> values);
Elements find_nonzeros(Executor& executor, Span<const float> gradient, Span<const float> residual,
                       Workspace& workspace);
}  // namespace cuda

}  // namespace thinwire
