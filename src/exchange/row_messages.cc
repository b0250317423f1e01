#include "exchange/row_messages.h"

#include <string>

#include "thinwire/errors.h"

namespace thinwire {

RowMessages::RowMessages(BucketId bucket, MessageTag tag, std::size_t width, Step& step)
    : frames_(bucket, step), tag_(tag), width_(width), step_(step) {}

Span<const std::byte> RowMessages::seal(FrameContents contents, Span<const std::byte> payload) {
  const auto bytes = step_.workspace.take<std::byte>(FrameHeader::kBytes);
  contents.width = static_cast<std::uint32_t>(width_);
  frames_.seal_alone(bytes, contents, payload);
  return bytes;
}

Span<const std::byte> RowMessages::seal_table(Span<const std::byte> payload) {
  const auto bytes = step_.workspace.take<std::byte>(FrameHeader::kBytes);
  frames_.seal_alone(
      bytes, {.type = FrameType::floats, .count = table_rows_ * width_, .payload_bytes = payload.size()},
      payload);
  return bytes;
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

void RowMessages::send(std::size_t peer, Span<const std::byte> sealed, Span<const std::byte> payload) {
  const int to = static_cast<int>(peer);
  sends_.push(step_.communicator.send(to, tag_, sealed));
  if (!payload.empty()) sends_.push(step_.communicator.send(to, tag_, payload));
  frames_.count();
}

void RowMessages::exchange(FunctionRef<Outgoing(std::size_t peer)> frame_for,
                           FunctionRef<void(std::size_t peer)> await_one) {
  for (std::size_t shift = 1; shift < world(); ++shift) {
    const std::size_t peer = frames_.peer_at(shift);
    const auto [sealed, payload] = frame_for(peer);
    turns_.before(shift, payload.size(), [&](std::size_t earlier) {
      await_one(earlier);
      wait_for_payload(earlier);
    });
    send(peer, sealed, payload);
  }
  turns_.rest(await_one);
}

void RowMessages::expect(std::size_t peer) {
  headers_[peer] = step_.communicator.receive(static_cast<int>(peer), tag_, header_bytes_of(peer));
}

const FrameHeader& RowMessages::await_header(std::size_t peer, std::uint64_t most_rows, std::size_t workers) {
  headers_[peer].wait();
  Incoming& incoming = incoming_[peer];
  const FrameHeader expected = frames_.header(peer, {});
  incoming.header = frames_.read_alone(header_bytes_of(peer), peer);
  const FrameHeader& header = incoming.header;
  require_field(header, "bucket", header.bucket, expected.bucket);
  require_field(header, "step", header.step, expected.step);
  require_field(header, "source rank", header.source, expected.source);
  require_field(header, "workers", header.workers, workers);
  const bool is_table = table_rows_ != 0 && header.type == FrameType::floats;
  // Of other types the number of rows says nothing about the payload's length, which is about to be
  // allocated.
  if (header.type != FrameType::row_bitmap && !is_table) {
    require_field(header, "type", static_cast<std::uint64_t>(header.type),
                  static_cast<std::uint64_t>(FrameType::row_list));
  }
  if (is_table) {
    require_field(header, "count", header.count, table_rows_ * width_);
  } else {
    require_field(header, "row width", header.width, width_);
  }
  if (!is_table && header.count > most_rows) {
    throw CorruptFrame("frame of rows from rank " + std::to_string(peer) + " refused: count is " +
                       std::to_string(header.count) + ", at most " + std::to_string(most_rows) +
                       " are possible");
  }
  frames_.note(!header.non_finite());
  incoming.payload = step_.workspace.take<std::byte>(header.payload_bytes);
  incoming.is_here = false;
  if (!incoming.payload.empty()) {
    payloads_[peer] = step_.communicator.receive(static_cast<int>(peer), tag_, incoming.payload);
  }
  return header;
}

const FrameHeader& RowMessages::await_list_header(std::size_t peer, std::uint64_t most_rows) {
  const FrameHeader& header = await_header(peer, most_rows, 1);
  if (table_rows_ != 0 && header.type == FrameType::floats) return header;
  require_field(header, "type", static_cast<std::uint64_t>(header.type),
                static_cast<std::uint64_t>(FrameType::row_list));
  return header;
}

void RowMessages::wait_for_payload(std::size_t peer) {
  payloads_[peer].wait();
  if (!std::exchange(incoming_[peer].is_here, true)) turns_.arrived(incoming_[peer].payload.size());
}

Span<const std::byte> RowMessages::await_payload(std::size_t peer) {
  wait_for_payload(peer);
  check_payload(incoming_[peer].header, incoming_[peer].payload);
  return incoming_[peer].payload;
}

ReceivedRowList RowMessages::await_list(std::size_t peer, std::uint64_t limit) {
  const auto payload = await_payload(peer);
  return read_row_list(header_of(peer), payload, limit);
}

void require_field(const FrameHeader& header, const char* field, std::uint64_t got, std::uint64_t expected) {
  if (got == expected) return;
  throw CorruptFrame("frame of rows from rank " + std::to_string(header.source) + " refused: " + field +
                     " is " + std::to_string(got) + ", expected " + std::to_string(expected));
}

}  // namespace thinwire
