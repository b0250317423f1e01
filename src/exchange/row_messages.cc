#include "exchange/row_messages.h"

#include <string>

#include "thinwire/errors.h"

namespace thinwire {

RowMessages::RowMessages(BucketId bucket, MessageTag tag, std::size_t width, Step& step)
    : PayloadMessages(bucket, tag, step), width_(width) {}

Span<const std::byte> RowMessages::seal(FrameContents contents, Span<const std::byte> payload) {
  contents.width = static_cast<std::uint32_t>(width_);
  return PayloadMessages::seal(contents, payload);
}

Span<const std::byte> RowMessages::seal_table(Span<const std::byte> payload) {
  return PayloadMessages::seal(
      {.type = FrameType::floats, .count = table_rows_ * width_, .payload_bytes = payload.size()}, payload);
}

FrameContents RowMessages::list_contents(std::size_t rows) const {
  return {.type = FrameType::row_list, .count = rows, .payload_bytes = row_list_bytes(rows, width_)};
}

Span<const std::byte> RowMessages::list_payload(const RowSparse& rows) {
  const auto payload = step_.workspace.take<std::byte>(row_list_bytes(rows.size(), width_));
  const RowList list = row_list_in(payload, rows.size(), width_);
  copy(step_.executor, rows.row_indices, list.indices);
  copy(step_.executor, rows.values, list.values);
  return payload;
}

void RowMessages::check_rows(const FrameHeader& header, std::uint64_t most_rows) const {
  if (table_rows_ != 0 && header.type == FrameType::floats) {
    return require_field(header, "count", header.count, table_rows_ * width_);
  }
  // Of other types the number of rows says nothing about the payload's length.
  if (header.type != FrameType::row_bitmap) {
    require_field(header, "type", static_cast<std::uint64_t>(header.type),
                  static_cast<std::uint64_t>(FrameType::row_list));
  }
  require_field(header, "row width", header.width, width_);
  if (header.count > most_rows) {
    throw CorruptFrame("frame of rows from rank " + std::to_string(header.source) + " refused: count is " +
                       std::to_string(header.count) + ", at most " + std::to_string(most_rows) +
                       " are possible");
  }
}

const FrameHeader& RowMessages::await_header(std::size_t peer, std::uint64_t most_rows, std::size_t workers) {
  return PayloadMessages::await_header(peer, workers,
                                       [&](const FrameHeader& header) { check_rows(header, most_rows); });
}

const FrameHeader& RowMessages::await_list_header(std::size_t peer, std::uint64_t most_rows) {
  const FrameHeader& header = await_header(peer, most_rows, 1);
  if (table_rows_ != 0 && header.type == FrameType::floats) return header;
  require_field(header, "type", static_cast<std::uint64_t>(header.type),
                static_cast<std::uint64_t>(FrameType::row_list));
  return header;
}

ReceivedRowList RowMessages::await_list(std::size_t peer, std::uint64_t limit) {
  const auto payload = await_payload(peer);
  return read_row_list(header_of(peer), payload, limit);
}

}  // namespace thinwire
