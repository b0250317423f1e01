#pragma once
// Frames of a bucket that travels in chunks, laid out so that a kernel writes a chunk's payload straight
// behind its header and the message goes out as it lies: no copy between packing and sending.

#include "thinwire/span.h"
#include "thinwire/workspace.h"
#include "wire/frame.h"

namespace thinwire {

class ChunkFrames {
 public:
  /// Room for every chunk of `elements` elements cut into `parts` parts and these into chunks of
  /// `chunk_elements` (a multiple of 64), with at most `most_payload_bytes` of payload per chunk.
  ChunkFrames(Workspace& workspace, std::size_t elements, std::size_t parts, std::size_t chunk_elements,
              std::size_t most_payload_bytes)
      : stride_(FrameHeader::kBytes + (most_payload_bytes + 63) / 64 * 64),
        per_part_((elements / parts + 1 + chunk_elements - 1) / chunk_elements),
        bytes_(workspace.take<std::byte>(parts * per_part_ * stride_)) {}

  /// Header and payload of chunk `index` of part `part`.
  Span<std::byte> frame(std::size_t part, std::size_t index, std::size_t payload_bytes) const {
    return bytes_.subspan((part * per_part_ + index) * stride_, FrameHeader::kBytes + payload_bytes);
  }
  /// The payload as words. Behind its last byte lies padding up to the next multiple of 64 bytes.
  Span<std::uint64_t> words(std::size_t part, std::size_t index, std::size_t count) const {
    return {reinterpret_cast<std::uint64_t*>(bytes_.data() + (part * per_part_ + index) * stride_ +
                                             FrameHeader::kBytes),
            count};
  }

 private:
  std::size_t stride_;
  std::size_t per_part_;
  Span<std::byte> bytes_;
};

/// The words behind a received frame's header. The buffer is padded to whole words.
inline Span<const std::uint64_t> payload_words(Span<const std::byte> frame, std::size_t count) {
  return {reinterpret_cast<const std::uint64_t*>(frame.data() + FrameHeader::kBytes), count};
}

}  // namespace thinwire
