#include "exchange/row_messages.h"

#include <string>

#include "thinwire/errors.h"

namespace thinwire {

RowMessages::RowMessages(RowMessageStorage& storage, BucketId bucket, Communicator::Tag tag, Step& step)
    : headers_(storage.headers, static_cast<std::size_t>(step.communicator.size())),
      payloads_(storage.payloads, static_cast<std::size_t>(step.communicator.size())),
      sends_(storage.sends),
      bucket_(bucket),
      tag_(tag),
      step_(step),
      header_bytes_(step.workspace.take<std::byte>(static_cast<std::size_t>(step.communicator.size()) *
                                                   FrameHeader::kBytes)),
      incoming_(step.workspace.take<Incoming>(static_cast<std::size_t>(step.communicator.size()))) {}

FrameHeader RowMessages::header() const {
  FrameHeader header;
  header.bucket = bucket_;
  header.step = step_.index;
  header.source = static_cast<std::uint32_t>(step_.communicator.rank());
  return header;
}

Span<const std::byte> RowMessages::seal(const FrameHeader& header) {
  const auto bytes = step_.workspace.take<std::byte>(FrameHeader::kBytes);
  write_frame_header(bytes, header);
  return bytes;
}

void RowMessages::send(int peer, Span<const std::byte> sealed, Span<const std::byte> payload) {
  sends_.push(step_.communicator.send(peer, tag_, sealed));
  if (!payload.empty()) sends_.push(step_.communicator.send(peer, tag_, payload));
  step_.report.frame_header_bytes += sealed.size();
}

void RowMessages::expect(int peer) {
  const auto at = static_cast<std::size_t>(peer);
  headers_[at] = step_.communicator.receive(
      peer, tag_, header_bytes_.subspan(at * FrameHeader::kBytes, FrameHeader::kBytes));
}

const FrameHeader& RowMessages::await_header(int peer, std::size_t width, std::uint64_t most_rows) {
  const auto at = static_cast<std::size_t>(peer);
  headers_[at].wait();
  Incoming& incoming = incoming_[at];
  incoming.header = read_frame_header(header_bytes_.subspan(at * FrameHeader::kBytes, FrameHeader::kBytes),
                                      PayloadPlace::next_message);
  const FrameHeader& header = incoming.header;
  auto require = [&](const char* field, std::uint64_t got, std::uint64_t expected) {
    if (got == expected) return;
    throw CorruptFrame(std::string("frame of rows from rank ") + std::to_string(peer) + " refused: " + field +
                       " is " + std::to_string(got) + ", expected " + std::to_string(expected));
  };
  require("bucket", header.bucket, bucket_);
  require("step", header.step, step_.index);
  require("source rank", header.source, static_cast<std::uint64_t>(peer));
  require("row width", header.width, width);
  if (header.count > most_rows) {
    throw CorruptFrame("frame of rows from rank " + std::to_string(peer) + " refused: count is " +
                       std::to_string(header.count) + ", at most " + std::to_string(most_rows) +
                       " are possible");
  }
  incoming.payload = step_.workspace.take<std::byte>(header.payload_bytes);
  if (!incoming.payload.empty()) payloads_[at] = step_.communicator.receive(peer, tag_, incoming.payload);
  return header;
}

Span<const std::byte> RowMessages::await_payload(int peer) {
  const auto at = static_cast<std::size_t>(peer);
  payloads_[at].wait();
  return incoming_[at].payload;
}

void RowMessages::finish() {
  sends_.wait_all();
}

}  // namespace thinwire
