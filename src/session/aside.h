#pragma once
// Work beside the thread that owns it: one task at a time, on a thread that starts with the first one. At the
// end the task under way is done first.

#include <condition_variable>
#include <functional>
#include <mutex>
#include <stop_token>
#include <thread>

namespace thinwire {

class Aside {
 public:
  /// Runs the task, which throws nothing, on the thread; where there can be no thread, here. After wait().
  void start(std::function<void()> task);

  /// Returns when the task is done, and what it wrote can be read. From one thread at a time.
  void wait();

 private:
  void run(const std::stop_token& ended);

  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::function<void()> task_;  // empty: there is nothing to do
  std::jthread thread_;         // last: it uses the others
};

}  // namespace thinwire
