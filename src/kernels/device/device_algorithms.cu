#include "kernels/device/device_algorithms.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "cuda/runtime.h"

#ifndef THINWIRE_CUDA_EMULATED
#include <cub/device/device_radix_sort.cuh>
#include <cub/device/device_scan.cuh>
#include <cub/device/device_segmented_sort.cuh>
#endif

namespace thinwire::cuda {
namespace {

#ifdef THINWIRE_CUDA_EMULATED

template <class T>
void sum(CudaExecutor&, const T* in, T* out, std::size_t count) {
  emulation::run_on_device([&] { std::exclusive_scan(in, in + count, out, T{0}); });
}

template <class Key>
void sort(CudaExecutor&, const Key* keys, Key* sorted_keys, const std::uint32_t* values,
          std::uint32_t* sorted_values, std::size_t count, int bits) {
  emulation::run_on_device([&] {
    const std::uint64_t mask = (std::uint64_t{1} << bits) - 1;
    std::vector<std::size_t> order(count);
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::stable_sort(order.begin(), order.end(),
                     [&](std::size_t a, std::size_t b) { return (keys[a] & mask) < (keys[b] & mask); });
    for (std::size_t i = 0; i < count; ++i) {
      sorted_keys[i] = keys[order[i]];
      sorted_values[i] = values[order[i]];
    }
  });
}

#else

/// CUB's two calls: algorithm(nullptr, bytes) says how much temporary memory it wants.
template <class Algorithm>
void with_temporary(CudaExecutor& executor, Algorithm algorithm) {
  std::size_t bytes = 0;
  check(algorithm(nullptr, bytes), "an algorithm's memory could not be found out");
  const Scratch<std::byte> temporary(executor, bytes);
  check(algorithm(temporary.data(), bytes), "an algorithm could not be started");
}

template <class T>
void sum(CudaExecutor& executor, const T* in, T* out, std::size_t count) {
  with_temporary(executor, [&](void* temporary, std::size_t& bytes) {
    return cub::DeviceScan::ExclusiveSum(temporary, bytes, in, out, static_cast<std::int64_t>(count),
                                         executor.stream());
  });
}

template <class Key>
void sort(CudaExecutor& executor, const Key* keys, Key* sorted_keys, const std::uint32_t* values,
          std::uint32_t* sorted_values, std::size_t count, int bits) {
  with_temporary(executor, [&](void* temporary, std::size_t& bytes) {
    return cub::DeviceRadixSort::SortPairs(temporary, bytes, keys, sorted_keys, values, sorted_values,
                                           static_cast<std::int64_t>(count), 0, bits, executor.stream());
  });
}

#endif

}  // namespace

void exclusive_sum(CudaExecutor& executor, const std::uint32_t* in, std::uint32_t* out, std::size_t count) {
  if (count != 0) sum(executor, in, out, count);
}

void exclusive_sum(CudaExecutor& executor, const std::uint64_t* in, std::uint64_t* out, std::size_t count) {
  if (count != 0) sum(executor, in, out, count);
}

void sort_pairs(CudaExecutor& executor, const std::uint32_t* keys, std::uint32_t* sorted_keys,
                const std::uint32_t* values, std::uint32_t* sorted_values, std::size_t count, int bits) {
  if (count != 0) sort(executor, keys, sorted_keys, values, sorted_values, count, bits);
}

void sort_pairs(CudaExecutor& executor, const std::uint16_t* keys, std::uint16_t* sorted_keys,
                const std::uint32_t* values, std::uint32_t* sorted_values, std::size_t count, int bits) {
  if (count != 0) sort(executor, keys, sorted_keys, values, sorted_values, count, bits);
}

void sort_segments(CudaExecutor& executor, const std::uint32_t* keys, std::uint32_t* sorted,
                   std::size_t count, const std::uint32_t* begins, const std::uint32_t* ends,
                   std::size_t segments) {
  if (count == 0) return;
#ifdef THINWIRE_CUDA_EMULATED
  (void)executor;
  emulation::run_on_device([&] {
    std::copy(keys, keys + count, sorted);
    for (std::size_t i = 0; i < segments; ++i) std::sort(sorted + begins[i], sorted + ends[i]);
  });
#else
  with_temporary(executor, [&](void* temporary, std::size_t& bytes) {
    return cub::DeviceSegmentedSort::SortKeys(
        temporary, bytes, keys, sorted, static_cast<std::int64_t>(count), static_cast<std::int64_t>(segments),
        begins, ends, executor.stream());
  });
#endif
}

}  // namespace thinwire::cuda
