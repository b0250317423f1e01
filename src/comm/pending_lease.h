#pragma once
// A list of messages under way, in storage that is kept between steps and so allocates once. The list itself
// does not outlive the scope: on an exception its messages are abandoned while their communicator still
// exists.

#include <vector>

#include "thinwire/communicator.h"

namespace thinwire {

class PendingLease {
 public:
  /// `size` empty entries; more can be pushed.
  explicit PendingLease(std::vector<Pending>& storage, std::size_t size = 0) : storage_(storage) {
    storage_.resize(size);
  }
  ~PendingLease() { storage_.clear(); }
  PendingLease(const PendingLease&) = delete;
  PendingLease& operator=(const PendingLease&) = delete;

  Pending& operator[](std::size_t index) { return storage_[index]; }
  void push(Pending pending) { storage_.push_back(std::move(pending)); }
  void wait_all() {
    for (auto& pending : storage_) pending.wait();
  }

 private:
  std::vector<Pending>& storage_;
};

}  // namespace thinwire
