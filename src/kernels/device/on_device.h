#pragma once
// Who runs a kernel: where one of its operands lies in memory of a CUDA device, that device; the CPU
// otherwise. The header declares the kernel, NAME.cc defines it for the CPU, and its first line is
//
//   THINWIRE_ON_DEVICE(pack_signs, executor, gradient, residual, bits);
//
// NAME.cu defines pack_signs_on_cuda with the same parameters and the same contract. Operands in host memory
// are reached or copied there, and the call returns when the CPU may touch them again. A call whose operands
// all lie on the device and which returns nothing is only submitted, see Executor::wait.

#include <stdexcept>

#include "thinwire/residual_span.h"

namespace thinwire {

/// An argument that is no operand. Structures that hold operands may have an overload of their own.
template <class T>
constexpr bool on_device(const T&) {
  return false;
}

template <class T>
bool on_device(Span<T> operand) {
  return operand.memory() == Memory::cuda && !operand.empty();
}

inline bool on_device(const ResidualSpan& residual) {
  return on_device(residual.after);
}

/// A list in host memory of operands.
template <class T>
bool on_device(Span<const Span<T>> operands) {
  for (const Span<T>& operand : operands) {
    if (on_device(operand)) return true;
  }
  return false;
}

template <class... Arguments>
bool any_on_device(const Arguments&... arguments) {
  return (on_device(arguments) || ...);
}

[[noreturn]] inline void throw_without_cuda() {
  throw std::runtime_error(
      "memory of a CUDA device was given to a build of Thinwire without CUDA: configure it with "
      "-DTHINWIRE_CUDA=ON");
}

}  // namespace thinwire

/// Returns from the calling function with what kernel_on_cuda(arguments...) returns, where one of them lies
/// on a device. That function is declared here, by the kernel's own type.
#ifdef THINWIRE_HAS_CUDA
#define THINWIRE_ON_DEVICE(kernel, ...)                                               \
  do {                                                                                \
    decltype(kernel) kernel##_on_cuda;                                                \
    if (::thinwire::any_on_device(__VA_ARGS__)) return kernel##_on_cuda(__VA_ARGS__); \
  } while (false)
#else
#define THINWIRE_ON_DEVICE(kernel, ...)                                           \
  do {                                                                            \
    if (::thinwire::any_on_device(__VA_ARGS__)) ::thinwire::throw_without_cuda(); \
  } while (false)
#endif
