#pragma once
// Who runs a kernel: the threads of a CPU, or a CUDA stream. Kernels are free functions that take an executor
// and spans; systems pass the executor along and never ask what it is.

#include <cstddef>
#include <memory>

#include "thinwire/function_ref.h"
#include "thinwire/span.h"

namespace thinwire {

class Executor {
 public:
  virtual ~Executor() = default;

  /// The memory that this executor's kernels work on.
  virtual Memory memory() const = 0;

  /// Number of ranges that parallel_for works on at the same time.
  virtual int concurrency() const = 0;

  /// Calls body(begin, end) for disjoint ranges that cover [0, count); every begin is a multiple of grain.
  /// Returns when all are done. An exception of a body is rethrown here. Bodies run on any thread, in any
  /// order: results must not depend on how the range was cut. CPU only: a CUDA executor throws
  /// std::logic_error.
  virtual void parallel_for(std::size_t count, std::size_t grain,
                            FunctionRef<void(std::size_t begin, std::size_t end)> body) = 0;

  /// Returns when everything submitted so far is done. On a CPU kernels are done when they return.
  virtual void wait() = 0;
};

/// An executor of `threads` CPU threads, the calling one included; 1 runs everything on the caller.
/// Throws std::invalid_argument when threads < 1.
std::unique_ptr<Executor> make_cpu_executor(int threads);

}  // namespace thinwire
