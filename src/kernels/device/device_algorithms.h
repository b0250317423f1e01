#pragma once
// Algorithms of CUB on pointers to device memory, in the order of the executor's stream; plain loops where
// the device is emulated. `in` may be `out` where nothing else is said.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <vector>

#include "cuda/executor.h"
#include "cuda/runtime.h"

#ifndef THINWIRE_CUDA_EMULATED
#include <cub/device/device_radix_sort.cuh>
#include <cub/device/device_scan.cuh>
#include <cub/device/device_segmented_sort.cuh>
#endif

namespace thinwire::cuda {

#ifndef THINWIRE_CUDA_EMULATED
namespace detail {

/// CUB's two calls: algorithm(nullptr, bytes) says how much temporary memory it wants.
template <class Algorithm>
void with_temporary(CudaExecutor& executor, Algorithm algorithm) {
  std::size_t bytes = 0;
  check(algorithm(nullptr, bytes), "an algorithm's memory could not be found out");
  const Scratch<std::byte> temporary(executor, bytes);
  check(algorithm(temporary.data(), bytes), "an algorithm could not be started");
}

}  // namespace detail
#endif

/// out[i] = in[0] + ... + in[i - 1].
template <class T>
inline void exclusive_sum(CudaExecutor& executor, const T* in, T* out, std::size_t count) {
  if (count == 0) return;
#ifdef THINWIRE_CUDA_EMULATED
  (void)executor;
  emulation::run_on_device([&] { std::exclusive_scan(in, in + count, out, T{0}); });
#else
  detail::with_temporary(executor, [&](void* temporary, std::size_t& bytes) {
    return cub::DeviceScan::ExclusiveSum(temporary, bytes, in, out, static_cast<std::int64_t>(count),
                                         executor.stream());
  });
#endif
}

/// Sorts by the lowest `bits` bits of the keys, unsigned integers, ascending; pairs of equal keys keep their
/// order. No overlaps. bits: at least 1.
template <class Key, class Value>
inline void sort_pairs(CudaExecutor& executor, const Key* keys, Key* sorted_keys, const Value* values,
                       Value* sorted_values, std::size_t count, int bits) {
  if (count == 0) return;
#ifdef THINWIRE_CUDA_EMULATED
  (void)executor;
  emulation::run_on_device([&] {
    const std::uint64_t mask = bits < 64 ? (std::uint64_t{1} << bits) - 1 : ~std::uint64_t{0};
    std::vector<std::size_t> order(count);
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::stable_sort(order.begin(), order.end(),
                     [&](std::size_t a, std::size_t b) { return (keys[a] & mask) < (keys[b] & mask); });
    for (std::size_t i = 0; i < count; ++i) {
      sorted_keys[i] = keys[order[i]];
      sorted_values[i] = values[order[i]];
    }
  });
#else
  detail::with_temporary(executor, [&](void* temporary, std::size_t& bytes) {
    return cub::DeviceRadixSort::SortPairs(temporary, bytes, keys, sorted_keys, values, sorted_values,
                                           static_cast<std::int64_t>(count), 0, bits, executor.stream());
  });
#endif
}

/// Sorts each segment [begins[i], ends[i]) by itself, ascending. Segments do not overlap and together are
/// [0, count). No overlaps of memory.
template <class Key>
inline void sort_segments(CudaExecutor& executor, const Key* keys, Key* sorted, std::size_t count,
                          const std::uint32_t* begins, const std::uint32_t* ends, std::size_t segments) {
  if (count == 0) return;
#ifdef THINWIRE_CUDA_EMULATED
  (void)executor;
  emulation::run_on_device([&] {
    std::copy(keys, keys + count, sorted);
    for (std::size_t i = 0; i < segments; ++i) std::sort(sorted + begins[i], sorted + ends[i]);
  });
#else
  detail::with_temporary(executor, [&](void* temporary, std::size_t& bytes) {
    return cub::DeviceSegmentedSort::SortKeys(
        temporary, bytes, keys, sorted, static_cast<std::int64_t>(count), static_cast<std::int64_t>(segments),
        begins, ends, executor.stream());
  });
#endif
}

}  // namespace thinwire::cuda
