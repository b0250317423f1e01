#include "cuda/executor.h"

#include <cstring>
#include <stdexcept>
#include <string>

#include "cuda/copy.h"

namespace thinwire {
namespace cuda {

CudaExecutor::CudaExecutor(int device, int threads) : device_(device), host_(make_cpu_executor(threads)) {
  enter();
  check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "no stream");
  // Left alone, the pool gives unused memory back whenever somebody waits, and every call would ask the
  // driver for its temporary memory again.
  cudaMemPool_t pool{};
  check(cudaDeviceGetDefaultMemPool(&pool, device), "no pool of temporary memory");
  std::uint64_t everything = ~std::uint64_t{0};
  check(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &everything),
        "temporary memory could not be kept");
}

CudaExecutor::~CudaExecutor() {
  if (cudaSetDevice(device_) != cudaSuccess) return;
  cudaStreamSynchronize(stream_);
  library_state_.reset();
  cudaFreeHost(results_);
  cudaStreamDestroy(stream_);
}

void CudaExecutor::copy(Span<const std::byte> from, Span<std::byte> to) {
  if (from.empty()) return;
  enter();
  check(cudaMemcpyAsync(to.data(), from.data(), from.size(), cudaMemcpyDefault, stream_), "a copy failed");
  if (from.memory() == Memory::host || to.memory() == Memory::host) wait();
}

void CudaExecutor::wait() {
  check(cudaStreamSynchronize(stream_), "a kernel failed");
}

void* CudaExecutor::results(std::size_t bytes) {
  if (results_bytes_ < bytes) {
    wait();
    cudaFreeHost(std::exchange(results_, nullptr));
    results_bytes_ = 0;
    check(cudaHostAlloc(&results_, bytes, cudaHostAllocDefault), "no pinned memory");
    results_bytes_ = bytes;
  }
  return results_;
}

void* CudaExecutor::DeviceAllocator::allocate(std::size_t bytes) {
  owner_.enter();
  void* pointer = nullptr;
  check(cudaMalloc(&pointer, bytes), "no memory on the device");
  return pointer;
}

void CudaExecutor::DeviceAllocator::release(void* pointer) noexcept {
  cudaFree(pointer);
}

void* CudaExecutor::PinnedAllocator::allocate(std::size_t bytes) {
  owner_.enter();
  void* pointer = nullptr;
  check(cudaHostAlloc(&pointer, bytes, cudaHostAllocDefault), "no pinned memory");
  return pointer;
}

void CudaExecutor::PinnedAllocator::release(void* pointer) noexcept {
  cudaFreeHost(pointer);
}

CudaExecutor& executor_on_device(Executor& executor) {
  if (executor.memory() != Memory::cuda) {
    throw std::invalid_argument(
        "memory of a CUDA device was given to an executor of the CPU: make the session with that device");
  }
  auto& own = static_cast<CudaExecutor&>(executor);
  own.enter();
  return own;
}

}  // namespace cuda

bool copies(Memory) {
  return true;
}

void copy_bytes(Span<const std::byte> from, Span<std::byte> to) {
  if (from.empty()) return;
  if (from.memory() == Memory::host && to.memory() == Memory::host) {
    std::memcpy(to.data(), from.data(), from.size());
    return;
  }
  // The default stream would wait for every other one.
  cuda::check(cudaMemcpyAsync(to.data(), from.data(), from.size(), cudaMemcpyDefault, cudaStreamPerThread),
              "a copy failed");
  cuda::check(cudaStreamSynchronize(cudaStreamPerThread), "a copy failed");
}

int cuda_devices() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

std::unique_ptr<Executor> make_cuda_executor(int device, int threads) {
  const int devices = cuda_devices();
  if (device < 0 || device >= devices) {
    throw std::invalid_argument("CUDA device " + std::to_string(device) + " is not there: this machine has " +
                                std::to_string(devices) + " that CUDA can use");
  }
  return std::make_unique<cuda::CudaExecutor>(device, threads);
}

}  // namespace thinwire
