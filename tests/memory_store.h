#pragma once
// For the tests of boards: a rendezvous store in memory that can die and freeze.

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>

#include "comm/fault_board.h"

namespace thinwire::testing {

/// What all ranks' boards share; dead: every operation throws; frozen: none comes back until it is thawed.
class MemoryStore : public FaultBoard::Store {
 public:
  ~MemoryStore() override { thaw(); }
  void set(const std::string& key, const std::string& value) override {
    std::unique_lock lock(mutex_);
    pass(lock);
    values_[key] = value;
  }
  std::optional<std::string> get(const std::string& key) override {
    std::unique_lock lock(mutex_);
    pass(lock);
    ++gets_;
    ++gets_of_kind_[key.substr(0, key.find_first_of("0123456789"))];
    const auto found = values_.find(key);
    return found == values_.end() ? std::nullopt : std::optional(found->second);
  }
  std::string set_if_absent(const std::string& key, const std::string& value) override {
    std::unique_lock lock(mutex_);
    pass(lock);
    // The first of `together_` callers waits for the others: all of them have seen the key absent.
    ++setting_;
    all_set_.notify_all();
    all_set_.wait(lock, [&] { return setting_ >= together_; });
    return values_.try_emplace(key, value).first->second;
  }
  std::int64_t add(const std::string& key, std::int64_t number) override {
    std::unique_lock lock(mutex_);
    pass(lock);
    return numbers_[key] += number;
  }
  void erase(const std::string& key) {
    std::lock_guard lock(mutex_);
    values_.erase(key);
  }
  void let_conclude_together(int ranks) {
    std::lock_guard lock(mutex_);
    together_ = ranks;
  }
  std::size_t gets() {
    std::lock_guard lock(mutex_);
    return gets_;
  }
  /// Of the keys that are this with a number behind it.
  std::size_t gets(const std::string& kind) {
    std::lock_guard lock(mutex_);
    return gets_of_kind_[kind];
  }
  void die() {
    std::lock_guard lock(mutex_);
    dead_ = true;
  }
  void revive() {
    std::lock_guard lock(mutex_);
    dead_ = false;
  }
  /// Operations that were asked of it while it was dead.
  std::size_t refused() {
    std::lock_guard lock(mutex_);
    return refused_;
  }
  void freeze() {
    std::lock_guard lock(mutex_);
    frozen_ = true;
  }
  void thaw() {
    std::lock_guard lock(mutex_);
    frozen_ = false;
    thawed_.notify_all();
  }

 private:
  void pass(std::unique_lock<std::mutex>& lock) {
    thawed_.wait(lock, [&] { return !frozen_; });
    if (!dead_) return;
    ++refused_;
    throw std::runtime_error("connection reset");
  }
  std::mutex mutex_;
  std::condition_variable thawed_;
  std::condition_variable all_set_;
  int setting_ = 0;
  std::size_t gets_ = 0;
  std::size_t refused_ = 0;
  int together_ = 1;
  std::map<std::string, std::string> values_;
  std::map<std::string, std::int64_t> numbers_;
  std::map<std::string, std::size_t> gets_of_kind_;
  bool dead_ = false;
  bool frozen_ = false;
};

/// Until it holds; false when it never does.
template <class Condition>
bool eventually(Condition condition) {
  for (int i = 0; i < 4000; ++i) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return false;
}

}  // namespace thinwire::testing
