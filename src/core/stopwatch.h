#pragma once
// Wall-clock seconds between two points of one thread, for reports.

#include <chrono>

namespace thinwire {

class Stopwatch {
 public:
  double seconds() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }

 private:
  using Clock = std::chrono::steady_clock;
  const Clock::time_point start_ = Clock::now();
};

}  // namespace thinwire
