#pragma once
// Runs a kernel test once per way to run kernels: each instruction set of this machine with one thread and
// with several, and a CUDA device where there is one (or the emulation of one). All are held against the same
// scalar definition.

#include <gtest/gtest.h>
#include <hwy/targets.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "tests/sanitized.h"
#include "thinwire/cuda.h"
#include "thinwire/executor.h"

namespace thinwire {

/// Calls body(name of the instruction set) for each supported one; dispatch goes there for the duration.
template <class Body>
void for_each_target(Body body) {
  for (std::int64_t remaining = hwy::SupportedTargets(); remaining != 0; remaining &= remaining - 1) {
    const std::int64_t target = remaining & -remaining;
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    body(std::string(hwy::TargetName(target)));
    hwy::SetSupportedTargetsForTest(0);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  }
}

/// Calls body(executor, its name).
template <class Body>
void for_each_executor(Body body) {
  const char* wanted = std::getenv("THINWIRE_TEST_EXECUTORS");  // "cuda": no CPU
  if (wanted == nullptr || std::string(wanted) != "cuda") {
    // Kept: some tests come here thousands of times, and threads take longer to start than they work.
    static const auto alone = make_cpu_executor(1);
    static const auto together = make_cpu_executor(3);
    for_each_target([&](const std::string& target) {
      // A sanitizer sees all code with several threads already.
      if (!kSanitized) body(*alone, target + ", 1 thread");
      body(*together, target + ", 3 threads");
    });
  } else if (cuda_devices() == 0) {
    GTEST_SKIP() << "no CUDA device";
  }
  if (cuda_devices() == 0) return;
  const auto executor = make_cuda_executor(0);
  body(*executor, std::string("CUDA"));
}

/// A vector in the memory that an executor's kernels work on.
template <class T>
class Placed {
 public:
  Placed(Executor& executor, const std::vector<T>& values)
      : executor_(&executor),
        size_(values.size()),
        data_(static_cast<T*>(executor.allocator().allocate(std::max<std::size_t>(size_, 1) * sizeof(T)))) {
    copy(executor, Span<const T>(values), span());
  }
  ~Placed() { executor_->allocator().release(data_); }
  Placed(const Placed&) = delete;
  Placed& operator=(const Placed&) = delete;

  Span<T> span() { return {data_, size_, executor_->memory()}; }
  operator Span<T>() { return span(); }
  operator Span<const T>() { return span(); }

  std::vector<T> read() {
    std::vector<T> values(size_);
    copy(*executor_, Span<const T>(span()), Span<T>(values));
    return values;
  }

 private:
  Executor* executor_;
  std::size_t size_;
  T* data_;
};

}  // namespace thinwire
