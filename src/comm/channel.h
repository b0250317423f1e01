#pragma once
// Operations of one process's ranks that wait for their counterpart, and where they are kept.

#include <deque>
#include <utility>

namespace thinwire {

/// Sends and receives from one rank to another, oldest first, linked through Operation::next. At any time all
/// of them are sends, or all receives, of each tag.
template <class Operation>
class Channel {
 public:
  void push(Operation* operation) {
    operation->next = nullptr;
    (last_ == nullptr ? first_ : last_->next) = operation;
    last_ = operation;
  }
  /// Removes and returns the oldest one of the same tag and the other direction; nullptr if there is none.
  Operation* take_counterpart(const Operation& of) {
    return take([&](const Operation& o) { return o.tag == of.tag && o.sending != of.sending; });
  }
  void remove(const Operation* operation) {
    take([&](const Operation& o) { return &o == operation; });
  }

 private:
  template <class Predicate>
  Operation* take(Predicate wanted) {
    Operation* previous = nullptr;
    for (Operation* o = first_; o != nullptr; previous = o, o = o->next) {
      if (!wanted(*o)) continue;
      (previous == nullptr ? first_ : previous->next) = o->next;
      if (last_ == o) last_ = previous;
      return o;
    }
    return nullptr;
  }
  Operation* first_ = nullptr;
  Operation* last_ = nullptr;
};

/// Operations that are used again and again, linked through Operation::next.
template <class Operation>
class OperationPool {
 public:
  /// A new one, or one as it was given back.
  Operation* take() {
    return free_ == nullptr ? &operations_.emplace_back() : std::exchange(free_, free_->next);
  }
  void give_back(Operation* operation) noexcept {
    operation->next = free_;
    free_ = operation;
  }

 private:
  std::deque<Operation> operations_;  // stable addresses
  Operation* free_ = nullptr;
};

}  // namespace thinwire
