#include "kernels/dense/places.h"

#include <algorithm>

#include "core/partition.h"
#include "kernels/blocks.h"
#include "kernels/device/on_device.h"

namespace thinwire {

void gather_places(Executor& executor, Span<const float> gradient, Span<const float> residual,
                   Span<const std::uint32_t> places, Span<float> out) {
  THINWIRE_ON_DEVICE(gather_places, executor, gradient, residual, places, out);
  executor.parallel_for(places.size(), kBlockElements, [&](std::size_t begin, std::size_t end) {
    for (std::size_t i = begin; i < end; ++i) {
      const std::uint32_t at = places[i];
      out[i] = residual.empty() ? gradient[at] : gradient[at] + residual[at];
    }
  });
}

void scatter_places(Executor& executor, Span<const std::uint32_t> places, Span<const float> values,
                    Span<float> vector) {
  THINWIRE_ON_DEVICE(scatter_places, executor, places, values, vector);
  executor.parallel_for(places.size(), kBlockElements, [&](std::size_t begin, std::size_t end) {
    for (std::size_t i = begin; i < end; ++i) vector[places[i]] = values.empty() ? 0.0f : values[i];
  });
}

void clear_places(Executor& executor, Span<const std::uint32_t> places, Span<float> vector) {
  scatter_places(executor, places, {}, vector);
}

void hold_back(Executor& executor, Span<float> gradient, Span<float> residual) {
  THINWIRE_ON_DEVICE(hold_back, executor, gradient, residual);
  executor.parallel_for(gradient.size(), kBlockElements, [&](std::size_t begin, std::size_t end) {
    float* g = gradient.data();
    float* e = residual.data();
    if (!residual.empty()) {
      for (std::size_t i = begin; i < end; ++i) e[i] = g[i] + e[i];
    }
    std::fill(g + begin, g + end, 0.0f);
  });
}

void add_residual(Executor& executor, Span<const float> gradient, Span<const float> residual,
                  Span<float> sums) {
  THINWIRE_ON_DEVICE(add_residual, executor, gradient, residual, sums);
  executor.parallel_for(gradient.size(), kBlockElements, [&](std::size_t begin, std::size_t end) {
    const float* g = gradient.data();
    const float* e = residual.data();
    float* out = sums.data();
    if (residual.empty()) {
      std::copy(g + begin, g + end, out + begin);
    } else {
      for (std::size_t i = begin; i < end; ++i) out[i] = g[i] + e[i];
    }
  });
}

void clear_bits(Executor& executor, Span<const std::uint64_t> bits, Span<float> vector) {
  THINWIRE_ON_DEVICE(clear_bits, executor, bits, vector);
  executor.parallel_for(vector.size(), kBlockElements, [&](std::size_t begin, std::size_t end) {
    for (std::size_t i = begin; i < end; ++i) {
      if (((bits[i / 64] >> (i % 64)) & 1) != 0) vector[i] = 0;
    }
  });
}

void sample_evenly(Executor& executor, Span<const float> vector, std::size_t first, std::size_t range,
                   Span<float> out) {
  THINWIRE_ON_DEVICE(sample_evenly, executor, vector, first, range, out);
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = vector[first + part_begin(range, out.size(), i)];
}

void correct_by_momentum(Executor& executor, float momentum, Span<const float> velocity, Span<float> gradient,
                         Span<float> corrected) {
  THINWIRE_ON_DEVICE(correct_by_momentum, executor, momentum, velocity, gradient, corrected);
  executor.parallel_for(gradient.size(), kBlockElements, [&](std::size_t begin, std::size_t end) {
    for (std::size_t i = begin; i < end; ++i) {
      corrected[i] = momentum * velocity[i] + gradient[i];
      gradient[i] = corrected[i];
    }
  });
}

}  // namespace thinwire
