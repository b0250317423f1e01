#pragma once
// Algorithms of CUB on pointers to device memory, in the order of the executor's stream; plain loops where
// the device is emulated. `in` may be `out` where nothing else is said.
//
// Functions and not templates, so that nvcc compiles CUB's part of each once and not for each caller.

#include <cstddef>
#include <cstdint>

#include "cuda/executor.h"

namespace thinwire::cuda {

/// out[i] = in[0] + ... + in[i - 1].
void exclusive_sum(CudaExecutor& executor, const std::uint32_t* in, std::uint32_t* out, std::size_t count);
void exclusive_sum(CudaExecutor& executor, const std::uint64_t* in, std::uint64_t* out, std::size_t count);

/// Sorts by the lowest `bits` bits of the keys, ascending; pairs of equal keys keep their order. No overlaps.
/// bits: at least 1.
void sort_pairs(CudaExecutor& executor, const std::uint32_t* keys, std::uint32_t* sorted_keys,
                const std::uint32_t* values, std::uint32_t* sorted_values, std::size_t count, int bits);
void sort_pairs(CudaExecutor& executor, const std::uint16_t* keys, std::uint16_t* sorted_keys,
                const std::uint32_t* values, std::uint32_t* sorted_values, std::size_t count, int bits);

/// Sorts each segment [begins[i], ends[i]) by itself, ascending. Segments do not overlap and together are
/// [0, count). No overlaps of memory.
void sort_segments(CudaExecutor& executor, const std::uint32_t* keys, std::uint32_t* sorted,
                   std::size_t count, const std::uint32_t* begins, const std::uint32_t* ends,
                   std::size_t segments);

}  // namespace thinwire::cuda
