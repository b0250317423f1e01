#include "torch/kept_groups.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <vector>

namespace thinwire {

void keep_for_good(const c10::intrusive_ptr<c10d_compat::Group>& group) {
  static std::mutex mutex;
  static auto& kept = *new std::vector<c10::intrusive_ptr<c10d_compat::Group>>;
  leave_threads_behind();
  const std::lock_guard lock(mutex);
  kept.push_back(group);
}

void leave_threads_behind() {
#ifdef __GLIBC__
  // The last handler that is registered is the first to run.
  [[maybe_unused]] static const int registered = on_exit(
      [](int status, void*) {
        std::fflush(nullptr);
        _exit(status);
      },
      nullptr);
#endif
}

}  // namespace thinwire
