#pragma once
// Where the time of a step goes. Whoever works says once which phase begins; the communicator switches the
// clock over by itself while it sends and waits.

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <utility>

namespace thinwire {

enum class Phase : std::uint8_t {
  compress,    ///< Kernels before the exchange and inside its hops.
  decompress,  ///< Kernels that turn what arrived into the mean.
  exchange,    ///< Handing messages to the engine.
  wait,        ///< Blocked on the network; of sums, which engines add up on the way, all.
};

/// Of one thread. A step begins in Phase::compress.
class StepClock {
 public:
  /// From now on time is charged to `phase`. Returns the phase that ends here.
  Phase enter(Phase phase) {
    const auto now = Clock::now();
    seconds_[index(phase_)] += std::chrono::duration<double>(now - std::exchange(since_, now)).count();
    return std::exchange(phase_, phase);
  }

  /// Seconds charged to the phase up to the last call of enter().
  double seconds(Phase phase) const { return seconds_[index(phase)]; }

  /// Another phase for as long as this object lives, then again the one before. `clock` may be null.
  class During {
   public:
    During(StepClock* clock, Phase phase) : clock_(clock) {
      if (clock_ != nullptr) before_ = clock_->enter(phase);
    }
    ~During() {
      if (clock_ != nullptr) clock_->enter(before_);
    }
    During(const During&) = delete;
    During& operator=(const During&) = delete;

   private:
    StepClock* clock_;
    Phase before_ = Phase::compress;
  };

 private:
  using Clock = std::chrono::steady_clock;
  static std::size_t index(Phase phase) { return static_cast<std::size_t>(phase); }

  Phase phase_ = Phase::compress;
  Clock::time_point since_ = Clock::now();
  std::array<double, 4> seconds_{};
};

}  // namespace thinwire
