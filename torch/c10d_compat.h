#pragma once
// What moved inside c10d between torch 1.13 and 2.x, in one place.
//
//   1.13   ProcessGroup is the interface and ProcessGroupGloo derives from it.
//   2.x    ProcessGroup is what users hold. It hands calls to a Backend per device; ProcessGroupGloo is one.
//
// The calls that we need (send, recv, allreduce, barrier, getRank, getSize, getBackendName) have the same
// signatures in ProcessGroup 1.13, ProcessGroup 2.x and Backend 2.x, so a communicator is written against
// whichever of the two it is handed.

#include <torch/version.h>

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#if TORCH_VERSION_MAJOR >= 2
#include <torch/csrc/distributed/c10d/Backend.hpp>
#endif

namespace thinwire::c10d_compat {

/// Whether Gloo's all-reduce takes bfloat16.
inline constexpr bool kGlooSumsBFloat16 = TORCH_VERSION_MAJOR > 2 ||
                                          (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 4);

#if TORCH_VERSION_MAJOR >= 2
using Group = ::c10d::Backend;

/// The engine behind what torch.distributed handed out, for tensors in host memory.
inline c10::intrusive_ptr<Group> group_of(const c10::intrusive_ptr<::c10d::ProcessGroup>& group) {
  return group->getBackend(c10::DeviceType::CPU);
}
#else
using Group = ::c10d::ProcessGroup;

inline c10::intrusive_ptr<Group> group_of(const c10::intrusive_ptr<::c10d::ProcessGroup>& group) {
  return group;
}
#endif

}  // namespace thinwire::c10d_compat
