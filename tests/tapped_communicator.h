#pragma once
// An engine with a tap: every message that one rank receives can be seen, and changed, before the rank sees
// it.

#include <cstddef>
#include <deque>
#include <functional>
#include <map>
#include <string>
#include <utility>

#include "thinwire/communicator.h"

namespace thinwire {

/// Where a message stands among all that a rank receives.
struct MessagePlace {
  int peer = -1;
  Communicator::Tag tag = 0;
  std::size_t index = 0;  ///< Among the messages of this peer and tag, from 0.

  auto operator<=>(const MessagePlace&) const = default;
};

/// Everything goes through `engine`, which outlives it. Collectives are those of the base class, so that each
/// of their messages passes by.
class TappedCommunicator final : public Communicator {
 public:
  using Tap = std::function<void(const MessagePlace&, Span<std::byte>)>;

  using SendTap = std::function<void(int peer, Tag tag, Span<const std::byte>)>;

  /// tap: called when a message has arrived, by the thread that waits for it. sends: called for every message
  /// that this rank sends, before it does. passes: where it says that it has no more long messages.
  TappedCommunicator(Communicator& engine, Tap tap, SendTap sends = {}, std::function<void()> passes = {})
      : Communicator(engine.rank(), engine.size()),
        engine_(engine),
        tap_(std::move(tap)),
        sends_(std::move(sends)),
        passes_(std::move(passes)) {
    set_deadline(engine.deadline());
  }

  std::string engine() const override { return engine_.engine(); }

 protected:
  void* start_send(int peer, Tag tag, Span<const std::byte> bytes) override {
    if (sends_) sends_(peer, tag, bytes);
    return &operations_.emplace_back(Operation{engine_.send(peer, tag, bytes), {}, {}, false});
  }
  void* start_receive(int peer, Tag tag, Span<std::byte> bytes) override {
    const MessagePlace place{peer, tag, next_[{peer, tag}]++};
    return &operations_.emplace_back(Operation{engine_.receive(peer, tag, bytes), place, bytes, true});
  }
  void finish(void* operation, int) override {
    auto& own = *static_cast<Operation*>(operation);
    own.pending.wait();
    if (own.receives) tap_(own.place, own.target);
  }
  void pass_turn() override {
    if (passes_) passes_();
  }
  void abandon(void* operation) noexcept override { static_cast<Operation*>(operation)->pending = Pending(); }

 private:
  struct Operation {
    Pending pending;
    MessagePlace place;
    Span<std::byte> target;
    bool receives = false;
  };

  Communicator& engine_;
  Tap tap_;
  SendTap sends_;
  std::function<void()> passes_;
  std::deque<Operation> operations_;  // all of them, done or not: a test has few
  std::map<std::pair<int, Tag>, std::size_t> next_;
};

}  // namespace thinwire
