#pragma once
// Parts of a vector that travel without the rest.

#include "thinwire/executor.h"
#include "thinwire/span.h"

namespace thinwire {

/// Elements [begin, begin + count) of a vector, which lie from `offset` on where chunks lie one behind the
/// other.
struct VectorChunk {
  std::size_t begin = 0;
  std::size_t count = 0;
  std::size_t offset = 0;
};

/// chunks: ascending, and in host memory. target: what they have of `values`, one behind the other.
void gather_chunks(Executor& executor, Span<const VectorChunk> chunks, Span<const float> values,
                   Span<float> target);

/// The reverse: gradient has there what `values` holds, residual, unless empty, 0.
void scatter_chunks(Executor& executor, Span<const VectorChunk> chunks, Span<const float> values,
                    Span<float> gradient, Span<float> residual);

}  // namespace thinwire
