#pragma once
// What somebody who waits sees on stderr: on a terminal one line that is
// redrawn, elsewhere one line per epoch.

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>

#include "apps/train/results.h"

namespace thinwire::train {

class Progress {
 public:
  /// Draws on `stream`, live if that is a terminal.
  explicit Progress(std::FILE* stream);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// A system begins, after `done_steps` of `epochs * steps_per_epoch` if it was resumed.
  void begin(std::string label, std::uint64_t epochs, std::uint64_t steps_per_epoch,
             std::uint64_t done_steps);
  /// A step is done. `loss` is rank 0's.
  void step(double loss, std::uint64_t bytes_sent);
  void epoch(const EpochResult& result);
  /// A line of its own.
  void note(const std::string& text);

 private:
  using Clock = std::chrono::steady_clock;
  void draw(double loss, std::uint64_t bytes_sent);
  void erase();

  std::FILE* stream_;
  bool live_;
  bool drawn_ = false;
  std::string label_;
  std::uint64_t epochs_ = 0;
  std::uint64_t steps_per_epoch_ = 1;
  std::uint64_t first_step_ = 0;
  std::uint64_t steps_ = 0;
  std::string measured_;  // after the newest epoch
  Clock::time_point begun_;
  Clock::time_point last_drawn_;
};

}  // namespace thinwire::train
