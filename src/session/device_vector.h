#pragma once
// For tests: memory of a CUDA device, to be filled and read on the host.

#include <memory>
#include <vector>

#include "thinwire/cuda.h"
#include "thinwire/executor.h"
#include "thinwire/span.h"

namespace thinwire {

/// Memory of an executor that is not a session's: what a framework would own.
class DeviceVector {
 public:
  explicit DeviceVector(std::size_t size)
      : executor_(make_cuda_executor(0)),
        size_(size),
        data_(static_cast<float*>(executor_->allocator().allocate(size * sizeof(float)))) {}
  ~DeviceVector() { executor_->allocator().release(data_); }
  DeviceVector(const DeviceVector&) = delete;
  DeviceVector& operator=(const DeviceVector&) = delete;

  Span<float> span() const { return {data_, size_, Memory::cuda}; }
  void write(const std::vector<float>& values) { copy(*executor_, Span<const float>(values), span()); }
  std::vector<float> read(Span<const float> from) {
    std::vector<float> values(from.size());
    copy(*executor_, from, Span<float>(values));
    return values;
  }
  std::vector<float> read() { return read(span()); }

 private:
  std::unique_ptr<Executor> executor_;
  std::size_t size_;
  float* data_;
};

}  // namespace thinwire
