#pragma once
// Messages under way during one exchange of a step. They lie in the step's workspace, so an exchange
// allocates nothing; on an exception they are abandoned while their communicator still exists.

#include <new>
#include <utility>

#include "thinwire/communicator.h"
#include "thinwire/workspace.h"

namespace thinwire {

class Pendings {
 public:
  /// `size` empty entries.
  Pendings(Workspace& workspace, std::size_t size) : size_(size) {
    pendings_ = reinterpret_cast<Pending*>(workspace.take<std::byte>(size * sizeof(Pending)).data());
    for (std::size_t i = 0; i < size_; ++i) new (pendings_ + i) Pending();
  }
  ~Pendings() {
    for (std::size_t i = 0; i < size_; ++i) pendings_[i].~Pending();
  }
  Pendings(const Pendings&) = delete;
  Pendings& operator=(const Pendings&) = delete;

  Pending& operator[](std::size_t index) { return pendings_[index]; }
  /// Puts a message into the next entry, in a circle. Waits for the one that lies there, so a circle has room
  /// for all that is sent before their receivers can take any of it.
  void push(Pending pending) {
    Pending& entry = pendings_[next_++ % size_];
    entry.wait();
    entry = std::move(pending);
  }
  void wait_all() {
    for (std::size_t i = 0; i < size_; ++i) pendings_[i].wait();
  }

 private:
  std::size_t size_;
  std::size_t next_ = 0;
  Pending* pendings_;
};

}  // namespace thinwire
