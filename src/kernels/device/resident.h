#pragma once
// Operands that kernels reach in no order, or more than once.

#include <memory>
#include <type_traits>

#include "cuda/executor.h"

namespace thinwire::cuda {

/// As Operand, but host memory is always copied to the device, pinned or not, and back unless T is const:
/// over the bus it then goes once and in order.
template <class T>
class Resident {
 public:
  /// `load`: whether kernels need what the span holds.
  Resident(CudaExecutor& executor, Span<T> span, bool load = true)
      : executor_(executor), span_(span), data_(span.empty() ? nullptr : span.data()) {
    if (span.empty() || span.memory() == Memory::cuda) return;
    copy_ = std::make_unique<Scratch<std::remove_const_t<T>>>(executor, span.size());
    data_ = copy_->data();
    if (load) transfer(span.data(), copy_->data(), span.size());
  }
  /// After the kernels were submitted, before finish(): all, or the first `count` elements.
  void write_back() { write_back(span_.size()); }
  void write_back(std::size_t count) {
    if constexpr (!std::is_const_v<T>) {
      if (copy_ != nullptr && !written_) transfer(copy_->data(), span_.data(), count);
      written_ = true;
    }
  }

  T* data() const { return data_; }
  bool on_host() const { return copy_ != nullptr; }

 private:
  void transfer(const T* from, std::remove_const_t<T>* to, std::size_t count) {
    submit_copy(executor_, from, to, count, "an operand could not be copied");
  }

  CudaExecutor& executor_;
  Span<T> span_;
  T* data_;
  std::unique_ptr<Scratch<std::remove_const_t<T>>> copy_;
  bool written_ = false;
};

}  // namespace thinwire::cuda
