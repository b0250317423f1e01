#include "kernels/rows/row_access.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "kernels/blocks.h"
#include "kernels/device/on_device.h"
#include "kernels/rows/bitmap.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/rows/row_access.cc"
#include <hwy/foreach_target.h>  // must come before highway.h

#include "kernels/bits-inl.h"

HWY_BEFORE_NAMESPACE();
namespace thinwire::HWY_NAMESPACE {

void Accumulate(Reads<std::uint32_t> positions, Reads<float> values, std::size_t width,
                Reads<std::uint64_t> bitmap, Reads<std::uint32_t> before, Writes<float> sums,
                std::size_t begin, std::size_t end) {
  for (std::size_t k = begin; k < end; ++k) {
    const std::uint32_t position = positions[k];
    const std::uint64_t lower = bitmap[position / 64] & ((std::uint64_t{1} << (position % 64)) - 1);
    const std::size_t slot = before[position / 64] + static_cast<std::size_t>(std::popcount(lower));
    if (width == 1) {
      sums[slot] += values[k];
    } else {
      AddTo(sums + slot * width, values + k * width, width);
    }
  }
}

/// One element per row. Which list is ahead is as good as random, so the step is made of comparisons instead
/// of branches that would be mispredicted half of the time.
std::size_t MergeElements(Reads<std::uint32_t> first, Reads<float> first_values, std::size_t first_count,
                          Reads<std::uint32_t> second, Reads<float> second_values, std::size_t second_count,
                          Writes<std::uint32_t> indices, Writes<float> values) {
  std::size_t a = 0;
  std::size_t b = 0;
  std::size_t out = 0;
  while (a < first_count && b < second_count) {
    const std::uint32_t x = first[a];
    const std::uint32_t y = second[b];
    const bool take_first = x <= y;
    const bool take_second = y <= x;
    const float u = first_values[a];
    const float v = second_values[b];
    indices[out] = take_first ? x : y;
    const float one = take_first ? u : v;
    values[out] = x == y ? u + v : one;
    a += take_first ? 1 : 0;
    b += take_second ? 1 : 0;
    ++out;
  }
  for (; a < first_count; ++a, ++out) {
    indices[out] = first[a];
    values[out] = first_values[a];
  }
  for (; b < second_count; ++b, ++out) {
    indices[out] = second[b];
    values[out] = second_values[b];
  }
  return out;
}

std::size_t MergeRows(Reads<std::uint32_t> first, Reads<float> first_values, std::size_t first_count,
                      Reads<std::uint32_t> second, Reads<float> second_values, std::size_t second_count,
                      std::size_t width, Writes<std::uint32_t> indices, Writes<float> values) {
  std::size_t a = 0;
  std::size_t b = 0;
  std::size_t out = 0;
  const std::size_t row_bytes = width * sizeof(float);
  while (a < first_count || b < second_count) {
    const bool from_first = a < first_count && (b == second_count || first[a] <= second[b]);
    const bool from_second = b < second_count && (a == first_count || second[b] <= first[a]);
    float* row = values + out * width;
    if (from_first) {
      std::memcpy(row, first_values + a * width, row_bytes);
      if (from_second) AddTo(row, second_values + b * width, width);
    } else {
      std::memcpy(row, second_values + b * width, row_bytes);
    }
    indices[out++] = from_first ? first[a] : second[b];
    a += from_first ? 1 : 0;
    b += from_second ? 1 : 0;
  }
  return out;
}

}  // namespace thinwire::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace thinwire {

HWY_EXPORT(AddTo);
HWY_EXPORT(Accumulate);
HWY_EXPORT(MergeElements);
HWY_EXPORT(MergeRows);

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

void accumulate_rows(Executor& executor, Span<const std::uint32_t> positions, Span<const float> values,
                     std::size_t width, Span<const std::uint64_t> bitmap, Span<const std::uint32_t> before,
                     bool distinct, Span<float> sums) {
  THINWIRE_ON_DEVICE(accumulate_rows, executor, positions, values, width, bitmap, before, distinct, sums);
  auto body = [&](std::size_t begin, std::size_t end) {
    HWY_DYNAMIC_DISPATCH(Accumulate)
    (positions.data(), values.data(), width, bitmap.data(), before.data(), sums.data(), begin, end);
  };
  if (distinct) {
    executor.parallel_for(positions.size(), rows_per_range(width), body);
  } else {
    body(0, positions.size());
  }
}

std::size_t merge_sorted_rows(Executor& executor, Span<const std::uint32_t> first_indices,
                              Span<const float> first_values, Span<const std::uint32_t> second_indices,
                              Span<const float> second_values, std::size_t width, Span<std::uint32_t> indices,
                              Span<float> values) {
  THINWIRE_ON_DEVICE(merge_sorted_rows, executor, first_indices, first_values, second_indices, second_values,
                     width, indices, values);
  if (width == 1) {
    return HWY_DYNAMIC_DISPATCH(MergeElements)(
        first_indices.data(), first_values.data(), first_indices.size(), second_indices.data(),
        second_values.data(), second_indices.size(), indices.data(), values.data());
  }
  return HWY_DYNAMIC_DISPATCH(MergeRows)(first_indices.data(), first_values.data(), first_indices.size(),
                                         second_indices.data(), second_values.data(), second_indices.size(),
                                         width, indices.data(), values.data());
}

}  // namespace thinwire
#endif
