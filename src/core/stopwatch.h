#pragma once
// Wall-clock seconds between two points of one thread, for reports.

#include <chrono>
#include <utility>

namespace thinwire {

class Stopwatch {
 public:
  void restart() { start_ = Clock::now(); }
  double seconds() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }
  /// Seconds since the start or the last lap; starts the next one.
  double lap() {
    const auto now = Clock::now();
    return std::chrono::duration<double>(now - std::exchange(start_, now)).count();
  }

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point start_ = Clock::now();
};

}  // namespace thinwire
