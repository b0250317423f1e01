#pragma once
// Work beside the thread that owns it: one task at a time, on a thread that starts with the first one.

#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

namespace thinwire {

class Aside {
 public:
  Aside() = default;
  /// The task under way is done first.
  ~Aside();
  Aside(const Aside&) = delete;
  Aside& operator=(const Aside&) = delete;

  /// Runs the task, which throws nothing, on the thread; where there can be no thread, here. After wait().
  void start(std::function<void()> task);

  /// Returns when the task is done, and what it wrote can be read. From one thread at a time.
  void wait();

 private:
  void run();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::function<void()> task_;  // empty: there is nothing to do
  bool closed_ = false;
  std::thread thread_;
};

}  // namespace thinwire
