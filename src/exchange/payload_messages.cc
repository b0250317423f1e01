#include "exchange/payload_messages.h"

#include <string>

#include "thinwire/errors.h"

namespace thinwire {

PayloadMessages::PayloadMessages(BucketId bucket, MessageTag tag, Step& step)
    : step_(step), frames_(bucket, step), tag_(tag) {}

Span<const std::byte> PayloadMessages::seal(const FrameContents& contents, Span<const std::byte> payload) {
  const auto bytes = step_.workspace.take<std::byte>(FrameHeader::kBytes);
  frames_.seal_alone(bytes, contents, payload);
  return bytes;
}

void PayloadMessages::send(std::size_t peer, Span<const std::byte> sealed, Span<const std::byte> payload) {
  const int to = static_cast<int>(peer);
  sends_.push(step_.communicator.send(to, tag_, sealed));
  if (!payload.empty()) sends_.push(step_.communicator.send(to, tag_, payload));
  frames_.count();
}

void PayloadMessages::exchange(FunctionRef<Outgoing(std::size_t peer)> frame_for,
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

void PayloadMessages::expect(std::size_t peer) {
  headers_[peer] = step_.communicator.receive(static_cast<int>(peer), tag_, header_bytes_of(peer));
}

const FrameHeader& PayloadMessages::await_header(std::size_t peer, std::size_t workers,
                                                 FunctionRef<void(const FrameHeader& header)> check) {
  headers_[peer].wait();
  Incoming& incoming = incoming_[peer];
  const FrameHeader expected = frames_.header(peer, {});
  incoming.header = frames_.read_alone(header_bytes_of(peer), peer);
  const FrameHeader& header = incoming.header;
  require_field(header, "bucket", header.bucket, expected.bucket);
  require_field(header, "step", header.step, expected.step);
  require_field(header, "source rank", header.source, expected.source);
  require_field(header, "workers", header.workers, workers);
  check(header);
  frames_.note(!header.non_finite());
  incoming.payload = step_.workspace.take<std::byte>(header.payload_bytes);
  incoming.is_here = false;
  if (!incoming.payload.empty()) {
    payloads_[peer] = step_.communicator.receive(static_cast<int>(peer), tag_, incoming.payload);
  }
  return header;
}

void PayloadMessages::wait_for_payload(std::size_t peer) {
  payloads_[peer].wait();
  if (!std::exchange(incoming_[peer].is_here, true)) turns_.arrived(incoming_[peer].payload.size());
}

Span<const std::byte> PayloadMessages::await_payload(std::size_t peer) {
  wait_for_payload(peer);
  check_payload(incoming_[peer].header, incoming_[peer].payload);
  return incoming_[peer].payload;
}

void require_field(const FrameHeader& header, const char* field, std::uint64_t got, std::uint64_t expected) {
  if (got == expected) return;
  throw CorruptFrame("frame from rank " + std::to_string(header.source) + " refused: " + field + " is " +
                     std::to_string(got) + ", expected " + std::to_string(expected));
}

}  // namespace thinwire
