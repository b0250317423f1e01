#include "session/aside.h"

#include <system_error>
#include <utility>

namespace thinwire {

void Aside::start(std::function<void()> task) {
  if (!thread_.joinable()) {
    try {
      thread_ = std::jthread([this](const std::stop_token& ended) { run(ended); });
    } catch (const std::system_error&) {
      task();
      return;
    }
  }
  {
    const std::lock_guard lock(mutex_);
    task_ = std::move(task);
  }
  changed_.notify_all();
}

void Aside::wait() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return !task_; });
}

void Aside::run(const std::stop_token& ended) {
  std::unique_lock lock(mutex_);
  while (changed_.wait(lock, ended, [this] { return static_cast<bool>(task_); })) {
    lock.unlock();
    task_();
    lock.lock();
    task_ = nullptr;
    changed_.notify_all();
  }
}

}  // namespace thinwire
