#pragma once
// Process groups that a process must not end, since their end would wait. Gloo ends no transfer that has
// begun, not even by closing its connection. The end of a group waits for its threads, so the process would
// stay until the group's limit.

#include "torch/c10d_compat.h"

namespace thinwire {

/// A group one of whose threads may be in a transfer: it lives as long as the process. For any thread.
void keep_for_good(const c10::intrusive_ptr<c10d_compat::Group>& group);

/// When this process ends, its libraries are not taken apart, which the threads of kept groups still use.
/// Python ends as always before that, and the status is kept. For any thread; may be called again. Does
/// nothing where the C library is not glibc.
void leave_threads_behind();

}  // namespace thinwire
