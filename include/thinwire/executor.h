#pragma once
// Who runs a kernel: the threads of a CPU, or a CUDA stream. Kernels are free functions that take an executor
// and spans; systems pass the executor along and never ask what it is.

#include <cstddef>
#include <memory>

#include "thinwire/function_ref.h"
#include "thinwire/span.h"

namespace thinwire {

/// Where memory comes from.
class Allocator {
 public:
  virtual ~Allocator() = default;
  /// Aligned to 64 bytes, uninitialised. Throws std::bad_alloc or std::runtime_error.
  virtual void* allocate(std::size_t bytes) = 0;
  virtual void release(void* pointer) noexcept = 0;
  /// The kind of what it gives.
  virtual Memory memory() const { return Memory::host; }
};

/// Ordinary memory of the host.
Allocator& host_allocator();

class Executor {
 public:
  virtual ~Executor() = default;

  /// Where the large vectors lie that this executor's kernels work on: gradients and residuals.
  virtual Memory memory() const = 0;

  /// Number of ranges that parallel_for works on at the same time.
  virtual int concurrency() const = 0;

  /// Of memory(). Must outlive the executor's last use of the memory, as the executor does.
  virtual Allocator& allocator() { return host_allocator(); }

  /// Of memory that the CPU and the kernels both reach, for frames and everything that systems look at
  /// themselves. A GPU reaches it over its bus.
  virtual Allocator& shared_allocator() { return host_allocator(); }

  /// Copies between memories of any kind, `to` and `from` of the same size and not overlapping. Done when it
  /// returns if either lies in host memory; otherwise in the order of kernels.
  virtual void copy(Span<const std::byte> from, Span<std::byte> to);

  /// Calls body(begin, end) for disjoint ranges that cover [0, count); every begin is a multiple of grain.
  /// Returns when all are done. An exception of a body is rethrown here. Bodies run on any thread, in any
  /// order: results must not depend on how the range was cut. Bodies run on the CPU, also where the executor
  /// is a CUDA device's: they touch host memory only.
  virtual void parallel_for(std::size_t count, std::size_t grain,
                            FunctionRef<void(std::size_t begin, std::size_t end)> body) = 0;

  /// Returns when everything submitted so far is done. On a CPU kernels are done when they return; on a CUDA
  /// device those are that return a value or write to host memory.
  virtual void wait() = 0;
};

/// to[i] = from[i], see Executor::copy.
template <class T>
void copy(Executor& executor, Span<const T> from, Span<T> to) {
  executor.copy(as_bytes(from), as_writable_bytes(to));
}

/// An executor of `threads` CPU threads, the calling one included; 1 runs everything on the caller.
/// Throws std::invalid_argument when threads < 1.
std::unique_ptr<Executor> make_cpu_executor(int threads);

}  // namespace thinwire
