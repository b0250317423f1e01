#pragma once
// CPU time, which other processes do not add to.

#include <ctime>

namespace thinwire {

/// Of the calling thread, or what else clock_gettime has a clock for.
inline double cpu_seconds(clockid_t clock = CLOCK_THREAD_CPUTIME_ID) {
  timespec time{};
  clock_gettime(clock, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

}  // namespace thinwire
