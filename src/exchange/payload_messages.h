#pragma once
// Frames whose lengths their senders alone know. Such a frame goes as two messages: its header, which
// everyone can await, and then its payload.

#include "exchange/frames.h"

namespace thinwire {

/// One exchange among ranks: at most one frame from each peer.
class PayloadMessages {
 public:
  PayloadMessages(BucketId bucket, MessageTag tag, Step& step);

  std::size_t world() const { return frames_.world(); }
  std::size_t self() const { return frames_.self(); }
  bool finite() const { return frames_.finite(); }
  void note(bool finite) { frames_.note(finite); }
  template <class Body>
  void for_peers(Body body) const {
    frames_.for_peers(body);
  }

  /// This rank's header for the finished payload, ready to be sent to any number of peers.
  Span<const std::byte> seal(const FrameContents& contents, Span<const std::byte> payload);
  /// Starts sending; payload stays untouched until finish(). Counts the header in the report.
  void send(std::size_t peer, Span<const std::byte> sealed, Span<const std::byte> payload);

  /// A header and its payload, as send() takes them.
  struct Outgoing {
    Span<const std::byte> sealed;
    Span<const std::byte> payload;
  };
  /// Sends frame_for(peer) to all others, long payloads in turns, and awaits the header of everyone's.
  /// await_one(peer): calls await_header, or what a derived class has for that.
  void exchange(FunctionRef<Outgoing(std::size_t peer)> frame_for,
                FunctionRef<void(std::size_t peer)> await_one);

  /// Announces that a frame from `peer` will come. Before send() where both happen.
  void expect(std::size_t peer);
  /// Waits for the peer's header, checks it (bucket, step, sender, workers, then by check(header)), hears
  /// whether all is finite and starts receiving the payload. workers: how many ranks' data it stands for, so
  /// that nobody's part is taken for a result. check: throws CorruptFrame for what the exchange does not
  /// allow; the payload's length, which is about to be allocated, above all. Throws CorruptFrame, CommError.
  const FrameHeader& await_header(std::size_t peer, std::size_t workers,
                                  FunctionRef<void(const FrameHeader& header)> check);
  /// What await_header returned.
  const FrameHeader& header_of(std::size_t peer) const { return incoming_[peer].header; }
  /// Waits for the payload of the header that await_header returned, and checks that it is the header's.
  Span<const std::byte> await_payload(std::size_t peer);

  /// Waits until everything has been sent.
  void finish() { sends_.wait_all(); }

 protected:
  Step& step_;

 private:
  struct Incoming {
    FrameHeader header;
    Span<std::byte> payload;
    bool is_here = false;
  };
  void wait_for_payload(std::size_t peer);
  Span<std::byte> header_bytes_of(std::size_t peer) const {
    return header_bytes_.subspan(peer * FrameHeader::kBytes, FrameHeader::kBytes);
  }

  FrameHeaders frames_;
  MessageTag tag_;
  Turns turns_{step_.communicator};
  Pendings headers_{step_.workspace, frames_.world()};
  Pendings payloads_{step_.workspace, frames_.world()};
  Pendings sends_{step_.workspace, 2 * frames_.world()};
  Span<std::byte> header_bytes_ = step_.workspace.take<std::byte>(frames_.world() * FrameHeader::kBytes);
  Span<Incoming> incoming_ = step_.workspace.take<Incoming>(frames_.world());
};

/// Throws CorruptFrame, naming the sender and the field, unless both values are equal.
void require_field(const FrameHeader& header, const char* field, std::uint64_t got, std::uint64_t expected);

}  // namespace thinwire
