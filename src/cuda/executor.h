#pragma once
// A stream of a CUDA device with the memory that its kernels need beside their operands.

#include <memory>

#include "cuda/runtime.h"
#include "thinwire/cuda.h"
#include "thinwire/residual_span.h"

namespace thinwire::cuda {

class CudaExecutor final : public Executor {
 public:
  CudaExecutor(int device, int threads);
  ~CudaExecutor() override;

  Memory memory() const override { return Memory::cuda; }
  int concurrency() const override { return host_->concurrency(); }
  Allocator& allocator() override { return device_memory_; }
  Allocator& shared_allocator() override { return pinned_memory_; }
  void copy(Span<const std::byte> from, Span<std::byte> to) override;
  void parallel_for(std::size_t count, std::size_t grain,
                    FunctionRef<void(std::size_t, std::size_t)> body) override {
    host_->parallel_for(count, grain, body);
  }
  void wait() override;

  cudaStream_t stream() const { return stream_; }
  /// What kernels leave for the host: pinned memory that they reach, `bytes` at least, valid until the next
  /// call. Aligned to 64 bytes.
  void* results(std::size_t bytes);
  /// What a library of device code keeps for this executor, such as its handle: empty until it puts something
  /// there, released before the stream.
  std::shared_ptr<void>& library_state() { return library_state_; }
  /// The executor that does what is done on the host.
  Executor& host() { return *host_; }

  /// Makes the device the calling thread's current one: threads of the caller's own come and go.
  void enter() const { check(cudaSetDevice(device_), "the device cannot be used"); }

 private:
  class DeviceAllocator final : public Allocator {
   public:
    explicit DeviceAllocator(const CudaExecutor& owner) : owner_(owner) {}
    void* allocate(std::size_t bytes) override;
    void release(void* pointer) noexcept override;
    Memory memory() const override { return Memory::cuda; }

   private:
    const CudaExecutor& owner_;
  };
  class PinnedAllocator final : public Allocator {
   public:
    explicit PinnedAllocator(const CudaExecutor& owner) : owner_(owner) {}
    void* allocate(std::size_t bytes) override;
    void release(void* pointer) noexcept override;

   private:
    const CudaExecutor& owner_;
  };

  int device_;
  std::unique_ptr<Executor> host_;
  cudaStream_t stream_{};
  std::shared_ptr<void> library_state_;
  DeviceAllocator device_memory_{*this};
  PinnedAllocator pinned_memory_{*this};
  void* results_ = nullptr;
  std::size_t results_bytes_ = 0;
};

/// The executor behind a span of device memory. Throws std::invalid_argument for one of the CPU, which cannot
/// work on it.
CudaExecutor& executor_on_device(Executor& executor);

/// Where a kernel that knows one residual only changes it in place.
inline Span<float> in_place(CudaExecutor& executor, const ResidualSpan& residual) {
  if (!residual.in_place()) copy(executor, residual.before, residual.after);
  return residual.after;
}

/// Temporary memory of the device, from CUDA's pool in the order of the stream.
template <class T>
class Scratch {
 public:
  Scratch(CudaExecutor& executor, std::size_t count) : stream_(executor.stream()) {
    void* pointer = nullptr;
    check(cudaMallocAsync(&pointer, (count == 0 ? 1 : count) * sizeof(T), stream_), "no temporary memory");
    data_ = static_cast<T*>(pointer);
  }
  ~Scratch() { cudaFreeAsync(data_, stream_); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  T* data() const { return data_; }

 private:
  T* data_;
  cudaStream_t stream_;
};

/// Submits a copy of `count` values between memories of any kind. error: what is said of one that fails.
template <class T>
void submit_copy(CudaExecutor& executor, const T* from, T* to, std::size_t count, const char* error) {
  if (count == 0) return;
  check(cudaMemcpyAsync(to, from, count * sizeof(T), cudaMemcpyDefault, executor.stream()), error);
}

/// One operand of a kernel where kernels reach it; a null pointer where it is empty. Memory of the device and
/// pinned memory is used as it lies; other memory of the host is copied to the device and, unless T is const,
/// back at the end of the call.
template <class T>
class Operand {
 public:
  Operand(CudaExecutor& executor, Span<T> span)
      : executor_(executor), span_(span), data_(span.empty() ? nullptr : span.data()) {
    if (span.empty() || span.memory() == Memory::cuda) return;
    on_host_ = true;
    cudaPointerAttributes attributes{};
    check(cudaPointerGetAttributes(&attributes, span.data()), "an operand's memory is unknown");
    if (attributes.type != cudaMemoryTypeUnregistered) return;
    copy_ = std::make_unique<Scratch<std::remove_const_t<T>>>(executor, span.size());
    data_ = copy_->data();
    submit_copy<std::remove_const_t<T>>(executor, span.data(), copy_->data(), span.size(),
                                        "an operand could not be copied");
  }
  /// After the kernels were submitted, before finish().
  void write_back() {
    if constexpr (!std::is_const_v<T>) {
      if (copy_ == nullptr) return;
      submit_copy<T>(executor_, copy_->data(), span_.data(), span_.size(), "a result could not be copied");
    }
  }

  T* data() const { return data_; }
  bool on_host() const { return on_host_; }

 private:
  CudaExecutor& executor_;
  Span<T> span_;
  T* data_;
  std::unique_ptr<Scratch<std::remove_const_t<T>>> copy_;
  bool on_host_ = false;
};

/// Ends a call whose kernels were submitted: brings back what lies in memory that they do not reach, and
/// waits where an operand lies in host memory, which the caller may touch next. For Operand and what is like
/// it.
template <class... Operands>
void finish(CudaExecutor& executor, Operands&... operands) {
  (operands.write_back(), ...);
  if ((operands.on_host() || ...)) executor.wait();
}

/// An argument of a kernel as run() hands it over.
template <class T>
struct KernelArgument {
  KernelArgument(CudaExecutor&, const T& argument) : value(argument) {}
  const T& data() const { return value; }
  void write_back() {}
  bool on_host() const { return false; }

  const T& value;
};
template <class T>
struct KernelArgument<Span<T>> : Operand<T> {
  using Operand<T>::Operand;
};

/// A whole call of one kernel: spans become operands, of which the kernel gets the pointers (null where they
/// are empty), everything else is handed over as it is; then finish().
template <class Kernel, class... Arguments>
void run(CudaExecutor& executor, const Grid& grid, Kernel kernel, const Arguments&... arguments) {
  [&](auto&&... operands) {
    launch(executor.stream(), grid, kernel, operands.data()...);
    finish(executor, operands...);
  }(KernelArgument<Arguments>(executor, arguments)...);
}
template <class Kernel, class... Arguments>
void run(Executor& executor, const Grid& grid, Kernel kernel, const Arguments&... arguments) {
  run(executor_on_device(executor), grid, kernel, arguments...);
}

}  // namespace thinwire::cuda
