#pragma once
// Scans and sorts of the device: CUB's, or plain C++ under emulation. All pointers are the device's; inputs
// and outputs do not overlap. Submitted, not waited for.

#include <cstddef>
#include <cstdint>

#include "cuda/executor.h"
#include "cuda/runtime.h"

#ifdef THINWIRE_CUDA_EMULATED
#include <algorithm>
#include <numeric>
#include <vector>
#else
#include <cub/device/device_radix_sort.cuh>
#include <cub/device/device_scan.cuh>
#endif

namespace thinwire::cuda {

#ifndef THINWIRE_CUDA_EMULATED
/// call(temporary memory, its bytes): CUB's functions tell how much they need when they get none.
template <class Call>
void with_temporary_memory(CudaExecutor& executor, Call call) {
  std::size_t bytes = 0;
  check(call(nullptr, bytes), "a library call failed");
  const Scratch<std::byte> memory(executor, bytes);
  check(call(memory.data(), bytes), "a library call failed");
}
#endif

/// out[i] = sum of in[0..i).
template <class T>
void exclusive_sum(CudaExecutor& executor, const T* in, T* out, std::size_t count) {
  if (count == 0) return;
#ifdef THINWIRE_CUDA_EMULATED
  static_cast<void>(executor);
  emulation::run_on_device([&] { std::exclusive_scan(in, in + count, out, T{0}); });
#else
  with_temporary_memory(executor, [&](void* memory, std::size_t& bytes) {
    return cub::DeviceScan::ExclusiveSum(memory, bytes, in, out, count, executor.stream());
  });
#endif
}

/// Sorts pairs by the lowest `bits` bits of their keys; pairs of the same key stay in their order.
template <class Key, class Value>
void sort_pairs(CudaExecutor& executor, const Key* keys, Key* sorted_keys, const Value* values,
                Value* sorted_values, std::size_t count, int bits) {
  if (count == 0) return;
#ifdef THINWIRE_CUDA_EMULATED
  static_cast<void>(executor);
  emulation::run_on_device([&] {
    const Key mask = static_cast<Key>(~Key{0} >> (8 * static_cast<int>(sizeof(Key)) - bits));
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
  with_temporary_memory(executor, [&](void* memory, std::size_t& bytes) {
    return cub::DeviceRadixSort::SortPairs(memory, bytes, keys, sorted_keys, values, sorted_values, count, 0,
                                           bits, executor.stream());
  });
#endif
}

}  // namespace thinwire::cuda
