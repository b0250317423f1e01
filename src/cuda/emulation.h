#pragma once
// CUDA on the CPU, as far as this project's kernels go, for tests on machines without a GPU: the source of a
// kernel is compiled as ordinary C++ and run thread by thread. It is slow, and it is not meant to be used.
//
// The threads of a block take turns on one thread of the CPU: each runs until it ends or meets a barrier, a
// shuffle or a vote. Blocks run one after the other and kernels one at a time, whatever stream they are
// submitted to; so an order that a GPU would not keep is not noticed, but every access is checked by the
// sanitizers, a barrier that some threads never reach ends the program, and memory of the device is
// protected while no kernel runs: the CPU faults where it touches what only the device may.

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "thinwire/function_ref.h"

// --- The language.

#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __noinline__
#define __grid_constant__
#define __restrict__ __restrict
// Blocks run one after the other, so one copy serves all.
#define __shared__ static

struct uint2 {
  unsigned x, y;
};
struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
inline float4 make_float4(float x, float y, float z, float w) {
  return {x, y, z, w};
}
inline float2 make_float2(float x, float y) {
  return {x, y};
}

namespace thinwire::cuda::emulation {

struct Index {
  unsigned x = 0;
  unsigned y = 0;
  unsigned z = 0;
};

/// Of the emulated thread that runs.
extern thread_local Index thread_index;
extern thread_local Index block_index;
extern thread_local Index block_size;
extern thread_local Index grid_size;

/// Calls `thread` once for every thread of every block.
void run(unsigned blocks, unsigned threads, std::size_t shared_bytes, FunctionRef<void()> thread);
/// Calls body while memory of the device may be touched: what a library would do on the device.
void run_on_device(FunctionRef<void()> body);
void* shared_memory();

/// Of all threads of the block that have not ended.
void block_barrier();
/// Each lane of the warp that has its bit in `mask` gives `value` and gets those of all, by lane; the others'
/// are 0. The array stays as it is until the lane's next exchange but one.
const std::uint64_t* exchange(unsigned mask, std::uint64_t value);

inline unsigned lane() {
  return thread_index.x % 32;
}

template <class T>
std::uint64_t to_bits(T value) {
  std::uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  return bits;
}
template <class T>
T from_bits(std::uint64_t bits) {
  T value;
  std::memcpy(&value, &bits, sizeof(T));
  return value;
}

template <class T, class Combine>
T exchange_at(T* address, Combine combine) {
  const T old = *address;
  *address = combine(old);
  return old;
}

}  // namespace thinwire::cuda::emulation

#define threadIdx (::thinwire::cuda::emulation::thread_index)
#define blockIdx (::thinwire::cuda::emulation::block_index)
#define blockDim (::thinwire::cuda::emulation::block_size)
#define gridDim (::thinwire::cuda::emulation::grid_size)

inline void __syncthreads() {
  ::thinwire::cuda::emulation::block_barrier();
}
inline void __syncwarp(unsigned mask = 0xffffffffu) {
  ::thinwire::cuda::emulation::exchange(mask, 0);
}
inline void __threadfence() {}

template <class T>
T __shfl_sync(unsigned mask, T value, int source) {
  namespace e = ::thinwire::cuda::emulation;
  return e::from_bits<T>(e::exchange(mask, e::to_bits(value))[source & 31]);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int lanes) {
  namespace e = ::thinwire::cuda::emulation;
  const unsigned own = e::lane();
  return e::from_bits<T>(e::exchange(mask, e::to_bits(value))[(own ^ static_cast<unsigned>(lanes)) & 31]);
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned lanes) {
  namespace e = ::thinwire::cuda::emulation;
  const unsigned own = e::lane();
  return e::from_bits<T>(e::exchange(mask, e::to_bits(value))[own >= lanes ? own - lanes : own]);
}
inline unsigned __ballot_sync(unsigned mask, bool predicate) {
  const std::uint64_t* values = ::thinwire::cuda::emulation::exchange(mask, predicate ? 1 : 0);
  unsigned result = 0;
  for (unsigned i = 0; i < 32; ++i) result |= static_cast<unsigned>(values[i] != 0) << i;
  return result & mask;
}
inline bool __any_sync(unsigned mask, bool predicate) {
  return __ballot_sync(mask, predicate) != 0;
}

inline int __popc(unsigned value) {
  return std::popcount(value);
}
inline int __popcll(unsigned long long value) {
  return std::popcount(value);
}
inline unsigned __float_as_uint(float value) {
  return std::bit_cast<unsigned>(value);
}
inline float __uint_as_float(unsigned value) {
  return std::bit_cast<float>(value);
}
inline float __fmaf_rn(float a, float b, float c) {
  return std::fma(a, b, c);
}

template <class T>
T atomicAdd(T* address, T value) {
  return ::thinwire::cuda::emulation::exchange_at(address,
                                                  [&](T old) { return static_cast<T>(old + value); });
}
template <class T>
T atomicOr(T* address, T value) {
  return ::thinwire::cuda::emulation::exchange_at(address, [&](T old) { return old | value; });
}
template <class T>
T atomicMax(T* address, T value) {
  return ::thinwire::cuda::emulation::exchange_at(address, [&](T old) { return std::max(old, value); });
}
template <class T>
T atomicCAS(T* address, T expected, T value) {
  return ::thinwire::cuda::emulation::exchange_at(address,
                                                  [&](T old) { return old == expected ? value : old; });
}

// --- The runtime library. Everything is done when a call returns.

enum cudaError_t { cudaSuccess = 0, cudaErrorInvalidValue = 1, cudaErrorMemoryAllocation = 2 };
enum cudaMemcpyKind { cudaMemcpyDefault = 4 };
enum cudaMemoryType {
  cudaMemoryTypeUnregistered = 0,
  cudaMemoryTypeHost = 1,
  cudaMemoryTypeDevice = 2,
  cudaMemoryTypeManaged = 3
};
struct cudaPointerAttributes {
  cudaMemoryType type = cudaMemoryTypeUnregistered;
};
using cudaStream_t = void*;
inline constexpr cudaStream_t cudaStreamPerThread = nullptr;
constexpr unsigned cudaStreamNonBlocking = 1;
constexpr unsigned cudaHostAllocDefault = 0;
using cudaMemPool_t = void*;
enum cudaMemPoolAttr { cudaMemPoolAttrReleaseThreshold = 4 };

const char* cudaGetErrorString(cudaError_t status);
cudaError_t cudaGetDeviceCount(int* count);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaMalloc(void** pointer, std::size_t bytes);
cudaError_t cudaFree(void* pointer);
cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* pool, int device);
cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t pool, cudaMemPoolAttr attribute, void* value);
cudaError_t cudaMallocAsync(void** pointer, std::size_t bytes, cudaStream_t stream);
cudaError_t cudaFreeAsync(void* pointer, cudaStream_t stream);
cudaError_t cudaHostAlloc(void** pointer, std::size_t bytes, unsigned flags);
cudaError_t cudaFreeHost(void* pointer);
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream);
cudaError_t cudaMemsetAsync(void* pointer, int byte, std::size_t bytes, cudaStream_t stream);
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* pointer);
cudaError_t cudaGetLastError();
