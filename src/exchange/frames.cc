#include "exchange/frames.h"

#include <string>

#include "thinwire/errors.h"
#include "wire/crc32c.h"

namespace thinwire {

FrameHeaders::FrameHeaders(BucketId bucket, Step& step)
    : step_(step),
      bucket_(bucket),
      world_(static_cast<std::size_t>(step.communicator.size())),
      self_(static_cast<std::size_t>(step.communicator.rank())) {}

FrameHeader FrameHeaders::header(std::size_t source, const FrameContents& contents) const {
  FrameHeader header;
  header.type = contents.type;
  header.bucket = bucket_;
  header.step = step_.index;
  header.source = static_cast<std::uint32_t>(source);
  header.workers = contents.workers;
  header.first = contents.first;
  header.count = contents.count;
  header.payload_bytes = contents.payload_bytes;
  header.width = contents.width;
  return header;
}

FrameHeader FrameHeaders::own_header(const FrameContents& contents) const {
  FrameHeader own = header(self_, contents);
  own.flags = finite_ ? std::uint16_t{0} : FrameHeader::kNonFinite;
  return own;
}

void FrameHeaders::seal(Span<std::byte> frame, const FrameContents& contents) const {
  write_frame_header(frame, own_header(contents));
}

void FrameHeaders::seal_alone(Span<std::byte> header, const FrameContents& contents,
                              Span<const std::byte> payload) const {
  FrameHeader own = own_header(contents);
  own.payload_checksum = crc32c(payload);
  write_frame_header(header, own);
}

void FrameHeaders::check(Span<const std::byte> frame, std::size_t source, const FrameContents& contents) {
  note(!expect_frame(frame, header(source, contents)).non_finite());
}

FrameHeader FrameHeaders::read_alone(Span<const std::byte> header, std::size_t source) const {
  try {
    return read_frame_header(header, PayloadPlace::next_message);
  } catch (const CorruptFrame& error) {
    throw CorruptFrame(std::string(error.what()) + "; awaited from " + whose(this->header(source, {})));
  }
}

void FrameHeaders::check_alone(Span<const std::byte> header, std::size_t source,
                               const FrameContents& contents) {
  note(!expect_frame(header, this->header(source, contents), PayloadPlace::next_message).non_finite());
}

Frames::Frames(BucketId bucket, Step& step)
    : FrameHeaders(bucket, step), receives_(step.workspace, world()), sends_(step.workspace, 2 * world()) {}

void Frames::send(std::size_t peer, MessageTag tag, Span<const std::byte> frame) {
  count();
  sends_.push(step_.communicator.send(static_cast<int>(peer), tag, frame));
}

void Frames::send_to_all(MessageTag tag, Span<const std::byte> frame, Turns& turns,
                         FunctionRef<void(std::size_t peer)> await) {
  for (std::size_t shift = 1; shift < world(); ++shift) {
    turns.before(shift, frame.size(), await);
    send(peer_at(shift), tag, frame);
  }
}

void Frames::receive(std::size_t peer, MessageTag tag, Span<std::byte> frame) {
  receives_[peer] = step_.communicator.receive(static_cast<int>(peer), tag, frame);
}

void Frames::await(std::size_t peer, Span<const std::byte> frame, const FrameContents& contents) {
  receives_[peer].wait();
  check(frame, peer, contents);
}

}  // namespace thinwire
