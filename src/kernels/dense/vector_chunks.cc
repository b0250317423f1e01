#include "kernels/dense/vector_chunks.h"

#include <algorithm>

#include "kernels/device/on_device.h"

namespace thinwire {

void gather_chunks([[maybe_unused]] Executor& executor, Span<const VectorChunk> chunks,
                   Span<const float> values, Span<float> target) {
  THINWIRE_ON_DEVICE(gather_chunks, executor, chunks, values, target);
  for (const VectorChunk& chunk : chunks) {
    std::copy_n(values.data() + chunk.begin, chunk.count, target.data() + chunk.offset);
  }
}

void scatter_chunks([[maybe_unused]] Executor& executor, Span<const VectorChunk> chunks,
                    Span<const float> values, Span<float> gradient, Span<float> residual) {
  THINWIRE_ON_DEVICE(scatter_chunks, executor, chunks, values, gradient, residual);
  for (const VectorChunk& chunk : chunks) {
    std::copy_n(values.data() + chunk.offset, chunk.count, gradient.data() + chunk.begin);
    const auto rest = residual.subspan(chunk.begin, chunk.count);
    std::fill(rest.begin(), rest.end(), 0.0f);
  }
}

}  // namespace thinwire
