#pragma once
// Frames of rows between ranks. How many rows a rank has is known to nobody else, so a frame goes as two
// messages: its header, which everyone can await, and then its payload.

#include <vector>

#include "comm/pending_lease.h"
#include "thinwire/synchronizer.h"
#include "wire/frame.h"

namespace thinwire {

/// Lists of messages that a system keeps between steps, so that they allocate once.
struct RowMessageStorage {
  std::vector<Pending> headers, payloads, sends;
};

/// One exchange among ranks: at most one frame from each peer. Not copied; ends before the storage does.
class RowMessages {
 public:
  RowMessages(RowMessageStorage& storage, BucketId bucket, Communicator::Tag tag, Step& step);

  /// A header with what all frames of this exchange share; type, count, width and payload_bytes are the
  /// caller's.
  FrameHeader header() const;
  /// The bytes of a header, ready to be sent to any number of peers.
  Span<const std::byte> seal(const FrameHeader& header);
  /// Starts sending; payload stays untouched until finish(). Counts the header in the report.
  void send(int peer, Span<const std::byte> sealed, Span<const std::byte> payload);

  /// Announces that a frame from `peer` will come. Before send() where both happen.
  void expect(int peer);
  /// Waits for the peer's header, checks it (bucket, step, sender, row width) and starts receiving its
  /// payload. `most_rows`: what count may at most be. Throws CorruptFrame, CommError.
  const FrameHeader& await_header(int peer, std::size_t width, std::uint64_t most_rows);
  /// What await_header returned.
  const FrameHeader& header_of(int peer) const { return incoming_[static_cast<std::size_t>(peer)].header; }
  /// Waits for the payload of the header that await_header returned.
  Span<const std::byte> await_payload(int peer);

  /// Waits until everything has been sent.
  void finish();

 private:
  struct Incoming {
    FrameHeader header;
    Span<std::byte> payload;
  };

  PendingLease headers_;
  PendingLease payloads_;
  PendingLease sends_;
  BucketId bucket_;
  Communicator::Tag tag_;
  Step& step_;
  Span<std::byte> header_bytes_;
  Span<Incoming> incoming_;
};

}  // namespace thinwire
