#pragma once
// Frames of rows between ranks. How many rows a rank has is known to nobody else, so a frame goes as two
// messages: its header, which everyone can await, and then its payload.

#include "exchange/frames.h"
#include "wire/payloads.h"

namespace thinwire {

/// One exchange among ranks: at most one frame from each peer.
class RowMessages {
 public:
  /// width: of every rank's rows.
  RowMessages(BucketId bucket, MessageTag tag, std::size_t width, Step& step);

  std::size_t world() const { return frames_.world(); }
  std::size_t self() const { return frames_.self(); }
  bool finite() const { return frames_.finite(); }
  void note(bool finite) { frames_.note(finite); }
  template <class Body>
  void for_peers(Body body) const {
    frames_.for_peers(body);
  }

  /// This rank's header for the finished payload, ready to be sent to any number of peers; its width is the
  /// exchange's.
  Span<const std::byte> seal(FrameContents contents, Span<const std::byte> payload);
  /// Contents of a frame that lists `rows` rows.
  FrameContents list_contents(std::size_t rows) const;
  /// The rows as the payload of such a frame, in the workspace.
  Span<const std::byte> list_payload(const RowSparse& rows);
  /// The header of a whole table: its payload is the values of all rows. Behind accept_tables().
  Span<const std::byte> seal_table(Span<const std::byte> payload);
  /// From now on peers may send their whole tables of so many rows instead of lists.
  void accept_tables(std::uint64_t rows) { table_rows_ = rows; }
  /// Starts sending; payload stays untouched until finish(). Counts the header in the report.
  void send(std::size_t peer, Span<const std::byte> sealed, Span<const std::byte> payload);

  /// A header and its payload, as send() takes them.
  struct Outgoing {
    Span<const std::byte> sealed;
    Span<const std::byte> payload;
  };
  /// Sends frame_for(peer) to all others, long payloads in turns, and awaits the header of everyone's.
  /// await_one(peer): calls await_header or await_list_header, and may check what it returns.
  void exchange(FunctionRef<Outgoing(std::size_t peer)> frame_for,
                FunctionRef<void(std::size_t peer)> await_one);

  /// Announces that a frame from `peer` will come. Before send() where both happen.
  void expect(std::size_t peer);
  /// Waits for the peer's header, checks it (bucket, step, sender, workers, row width), hears whether all is
  /// finite and starts receiving the payload. most_rows: what count may at most be. workers: how many ranks'
  /// data it stands for, so that nobody's part is taken for a result. Throws CorruptFrame, CommError.
  const FrameHeader& await_header(std::size_t peer, std::uint64_t most_rows, std::size_t workers);
  /// The same for a frame that must be a list of one rank's rows, or a whole table where these are accepted.
  const FrameHeader& await_list_header(std::size_t peer, std::uint64_t most_rows);
  /// What await_header returned.
  const FrameHeader& header_of(std::size_t peer) const { return incoming_[peer].header; }
  /// Waits for the payload of the header that await_header returned, and checks that it is the header's.
  Span<const std::byte> await_payload(std::size_t peer);
  /// The same for a list of rows, whose indices are below `limit`.
  ReceivedRowList await_list(std::size_t peer, std::uint64_t limit);

  /// Waits until everything has been sent.
  void finish() { sends_.wait_all(); }

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
  std::size_t width_;
  Step& step_;
  std::uint64_t table_rows_ = 0;  // 0: tables are refused
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
