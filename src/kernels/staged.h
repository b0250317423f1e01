#pragma once
// Operands that kernels read more than once, or read and write here and there: in memory of the host, even
// where kernels reach it, each access would go over the bus.

#include <memory>

#include "cuda/executor.h"

namespace thinwire::cuda {

/// As Operand, but always in memory of the device: what lies in host memory of any kind goes there and back
/// as a whole.
template <class T>
class Staged {
 public:
  /// overwritten: the kernels write every element and read none before, so that nothing has to be brought.
  Staged(CudaExecutor& executor, Span<T> span, bool overwritten = false)
      : executor_(executor), span_(span), data_(span.empty() ? nullptr : span.data()) {
    if (span.empty() || span.memory() == Memory::cuda) return;
    copy_ = std::make_unique<Scratch<std::remove_const_t<T>>>(executor, span.size());
    data_ = copy_->data();
    if (!overwritten) transfer(copy_->data(), span.data());
  }
  /// After the kernels were submitted, before finish().
  void write_back() {
    if constexpr (!std::is_const_v<T>) {
      if (copy_ != nullptr) transfer(span_.data(), copy_->data());
    }
  }

  T* data() const { return data_; }
  bool on_host() const { return copy_ != nullptr; }

 private:
  void transfer(void* to, const void* from) {
    check(cudaMemcpyAsync(to, from, span_.size_bytes(), cudaMemcpyDefault, executor_.stream()),
          "an operand could not be copied");
  }

  CudaExecutor& executor_;
  Span<T> span_;
  T* data_;
  std::unique_ptr<Scratch<std::remove_const_t<T>>> copy_;
};

template <class... T>
void finish(CudaExecutor& executor, Staged<T>&... operands) {
  (operands.write_back(), ...);
  if ((operands.on_host() || ...)) executor.wait();
}

}  // namespace thinwire::cuda
