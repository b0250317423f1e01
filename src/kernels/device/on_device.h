#pragma once
// Who runs a kernel: where one of its operands lies in memory of a CUDA device, that device; the CPU
// otherwise. A function that has both versions opens with
//
//   if (on_device(gradient)) THINWIRE_ON_DEVICE(pack_signs(executor, gradient, residual, bits));
//
// and declares the other one in namespace cuda, with the same contract. Those operands that lie in host
// memory are reached or copied, and the call returns when the CPU may touch them again; a call whose operands
// all lie on the device and which returns nothing is only submitted, see Executor::wait.

#include <stdexcept>

#include "thinwire/span.h"

namespace thinwire {

template <class... T>
bool on_device(const Span<T>&... operands) {
  return ((operands.memory() == Memory::cuda && !operands.empty()) || ...);
}

[[noreturn]] inline void throw_without_cuda() {
  throw std::runtime_error(
      "memory of a CUDA device was given to a build of Thinwire without CUDA: configure it with "
      "-DTHINWIRE_CUDA=ON");
}

}  // namespace thinwire

#ifdef THINWIRE_HAS_CUDA
#define THINWIRE_ON_DEVICE(call) return ::thinwire::cuda::call
#else
// The call is checked, though never made.
#define THINWIRE_ON_DEVICE(call) \
  (static_cast<void>(noexcept(::thinwire::cuda::call)), ::thinwire::throw_without_cuda())
#endif
