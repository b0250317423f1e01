#pragma once
// What every exchange of frames does with its messages: builds their headers, sends and receives them, checks
// what arrives, and carries from rank to rank that somebody's data holds inf or NaN.

#include <new>
#include <utility>

#include "comm/message_tags.h"
#include "core/turns.h"
#include "thinwire/synchronizer.h"
#include "wire/frame.h"

namespace thinwire {

/// What a frame says beside bucket, step and sender; see FrameHeader.
struct FrameContents {
  FrameType type = FrameType::sign_bits;
  std::uint32_t workers = 1;
  std::uint64_t first = 0;
  std::uint64_t count = 0;
  std::uint64_t payload_bytes = 0;
  std::uint32_t width = 0;
};

/// The headers of one bucket's frames in one step: builds them, checks them, and knows what they tell of inf
/// and NaN.
class FrameHeaders {
 public:
  FrameHeaders(BucketId bucket, Step& step);

  std::size_t world() const { return world_; }
  std::size_t self() const { return self_; }

  /// Whether all data that this rank has seen or heard of is finite.
  bool finite() const { return finite_; }
  /// Frames that are sealed from now on carry the news if `finite` is false.
  void note(bool finite) { finite_ = finite_ && finite; }

  /// The header of a frame of rank `source`.
  FrameHeader header(std::size_t source, const FrameContents& contents) const;
  /// Writes this rank's header in front of the finished payload. Before the frame goes to anyone: a message
  /// under way may not be written to.
  void seal(Span<std::byte> frame, const FrameContents& contents) const;
  /// The same for a payload that goes in a message of its own; header: 64 bytes.
  void seal_alone(Span<std::byte> header, const FrameContents& contents, Span<const std::byte> payload) const;
  /// Throws CorruptFrame unless the frame is `source`'s with these contents; hears whether all is finite.
  void check(Span<const std::byte> frame, std::size_t source, const FrameContents& contents);
  /// The header of rank `source` whose payload follows in a message of its own; nothing of it is compared
  /// with what this rank expects. Throws CorruptFrame, which says whose frame was awaited.
  FrameHeader read_alone(Span<const std::byte> header, std::size_t source) const;
  /// check() for such a header. check_payload() is for what follows.
  void check_alone(Span<const std::byte> header, std::size_t source, const FrameContents& contents);
  /// Counts a header that is about to be sent.
  void count() { step_.report.frame_header_bytes += FrameHeader::kBytes; }

  /// Peer self + shift. Sends go in the order of shifts from 1 on: no rank is everybody's first target.
  std::size_t peer_at(std::size_t shift) const { return (self_ + shift) % world_; }
  /// Calls body(peer) for all others in that order.
  template <class Body>
  void for_peers(Body body) const {
    for (std::size_t shift = 1; shift < world_; ++shift) body(peer_at(shift));
  }

 protected:
  Step& step_;

 private:
  FrameHeader own_header(const FrameContents& contents) const;

  BucketId bucket_;
  std::size_t world_;
  std::size_t self_;
  bool finite_ = true;
};

/// Messages under way during one exchange of a step. They lie in the step's workspace, so an exchange
/// allocates nothing; on an exception they are abandoned while their communicator still exists.
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

/// The frames themselves, from each rank to each. At most one message from each peer is awaited at a time.
class Frames : public FrameHeaders {
 public:
  Frames(BucketId bucket, Step& step);

  /// Sends a sealed frame, which stays untouched until finish().
  void send(std::size_t peer, MessageTag tag, Span<const std::byte> frame);
  /// Sends a sealed frame to all others, in turns where it is long; await(peer): waits for the peer's frame.
  void send_to_all(MessageTag tag, Span<const std::byte> frame, Turns& turns,
                   FunctionRef<void(std::size_t peer)> await);
  /// Where the next frame of `peer` shall arrive.
  void receive(std::size_t peer, MessageTag tag, Span<std::byte> frame);
  /// Waits for the frame of `peer` and checks it.
  void await(std::size_t peer, Span<const std::byte> frame, const FrameContents& contents);
  /// Waits until everything has been sent.
  void finish() { sends_.wait_all(); }

 private:
  Pendings receives_;
  Pendings sends_;
};

}  // namespace thinwire
