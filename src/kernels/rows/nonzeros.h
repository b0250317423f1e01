#pragma once
// Finding what is not zero in a dense gradient: the first pass of every sparse system.

#include "thinwire/executor.h"
#include "thinwire/span.h"
#include "thinwire/workspace.h"

namespace thinwire {

/// Elements of a vector, ascending.
struct Elements {
  Span<const std::uint32_t> indices;
  Span<const float> values;
};

/// With p = gradient + residual (residual: [n] or empty): the elements of p that are not 0; -0 counts as 0,
/// NaN does not. Takes room for n elements of the workspace on a CPU, which finds them in one pass; for what
/// lies on a device, whose workspace is pinned memory, room for as many as there are.
Elements find_nonzeros(Executor& executor, Span<const float> gradient, Span<const float> residual,
                       Workspace& workspace);

}  // namespace thinwire
