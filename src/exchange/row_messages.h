#pragma once
// Frames of rows between ranks. How many rows a rank has is known to nobody else.

#include "exchange/payload_messages.h"
#include "wire/payloads.h"

namespace thinwire {

/// One exchange among ranks: at most one frame from each peer.
class RowMessages : public PayloadMessages {
 public:
  /// width: of every rank's rows.
  RowMessages(BucketId bucket, MessageTag tag, std::size_t width, Step& step);

  /// As PayloadMessages::seal(); the frame's width is the exchange's.
  Span<const std::byte> seal(FrameContents contents, Span<const std::byte> payload);
  /// Contents of a frame that lists `rows` rows.
  FrameContents list_contents(std::size_t rows) const;
  /// The rows as the payload of such a frame, in the workspace.
  Span<const std::byte> list_payload(const RowSparse& rows);
  /// The header of a whole table: its payload is the values of all rows. Behind accept_tables().
  Span<const std::byte> seal_table(Span<const std::byte> payload);
  /// From now on peers may send their whole tables of so many rows instead of lists.
  void accept_tables(std::uint64_t rows) { table_rows_ = rows; }

  /// PayloadMessages::await_header() for a frame of rows, or a whole table where these are accepted.
  /// most_rows: what count may at most be.
  const FrameHeader& await_header(std::size_t peer, std::uint64_t most_rows, std::size_t workers);
  /// The same for a frame that must be a list of one rank's rows, or a whole table where these are accepted.
  const FrameHeader& await_list_header(std::size_t peer, std::uint64_t most_rows);
  /// await_payload() for a list of rows, whose indices are below `limit`.
  ReceivedRowList await_list(std::size_t peer, std::uint64_t limit);

 private:
  void check_rows(const FrameHeader& header, std::uint64_t most_rows) const;

  std::size_t width_;
  std::uint64_t table_rows_ = 0;  // 0: tables are refused
};

}  // namespace thinwire
