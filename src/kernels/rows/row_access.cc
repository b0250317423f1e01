#include "kernels/rows/row_access.h"

#include <algorithm>
#include <cstring>

#include "kernels/blocks.h"
#include "kernels/device/on_device.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/rows/row_access.cc"
#include <hwy/foreach_target.h>  // must come before highway.h

#include "kernels/bits-inl.h"

#if HWY_ONCE
namespace thinwire {

HWY_EXPORT(AddTo);

namespace {

/// What there is of a row.
template <class T>
Span<T> row_of(Span<T> table, std::uint32_t index, std::size_t width) {
  const std::size_t begin = index * width;
  return table.subspan(begin, std::min(width, table.size() - begin));
}

}  // namespace

void scatter_rows(Executor& executor, Span<const std::uint32_t> indices, Span<const float> values,
                  std::size_t width, Span<float> table) {
  THINWIRE_ON_DEVICE(scatter_rows, executor, indices, values, width, table);
  executor.parallel_for(indices.size(), rows_per_range(width), [&](std::size_t begin, std::size_t end) {
    if (width == 1) {
      for (std::size_t k = begin; k < end; ++k) table[indices[k]] = values[k];
      return;
    }
    for (std::size_t k = begin; k < end; ++k) {
      const auto row = row_of(table, indices[k], width);
      std::memcpy(row.data(), values.data() + k * width, row.size_bytes());
    }
  });
}

void gather_rows(Executor& executor, Span<const float> gradient, Span<const float> residual,
                 Span<const std::uint32_t> indices, std::size_t width, Span<float> values) {
  THINWIRE_ON_DEVICE(gather_rows, executor, gradient, residual, indices, width, values);
  executor.parallel_for(indices.size(), rows_per_range(width), [&](std::size_t begin, std::size_t end) {
    if (width == 1) {
      for (std::size_t k = begin; k < end; ++k) {
        const std::uint32_t at = indices[k];
        values[k] = residual.empty() ? gradient[at] : gradient[at] + residual[at];
      }
      return;
    }
    for (std::size_t k = begin; k < end; ++k) {
      const auto row = row_of(gradient, indices[k], width);
      float* out = values.data() + k * width;
      std::memcpy(out, row.data(), row.size_bytes());
      std::fill(out + row.size(), out + width, 0.0f);
      if (residual.empty()) continue;
      HWY_DYNAMIC_DISPATCH(AddTo)(out, residual.data() + indices[k] * width, row.size());
    }
  });
}

void fill_rows(Executor& executor, Span<const std::uint32_t> indices, std::size_t width, float value,
               Span<float> table) {
  THINWIRE_ON_DEVICE(fill_rows, executor, indices, width, value, table);
  executor.parallel_for(indices.size(), rows_per_range(width), [&](std::size_t begin, std::size_t end) {
    for (std::size_t k = begin; k < end; ++k) {
      const auto row = row_of(table, indices[k], width);
      std::fill(row.begin(), row.end(), value);
    }
  });
}

void subtract_rows(Executor& executor, Span<const std::uint32_t> indices, Span<const float> values,
                   std::size_t width, Span<float> table) {
  THINWIRE_ON_DEVICE(subtract_rows, executor, indices, values, width, table);
  executor.parallel_for(indices.size(), rows_per_range(width), [&](std::size_t begin, std::size_t end) {
    for (std::size_t k = begin; k < end; ++k) {
      const auto row = row_of(table, indices[k], width);
      for (std::size_t i = 0; i < row.size(); ++i) row[i] -= values[k * width + i];
    }
  });
}

}  // namespace thinwire
#endif
