#pragma once
// The payloads of frames that are more than bits or floats: scaled_sign_bits, row_list and row_bitmap, codes.
//
// Codes lie as bit planes: 64 elements take `bits` words, word k holds bit k of each code, element e at bit
// e. Comparing a vector with a threshold yields such a word, and a word selects between two vectors, so
// neither side shifts single codes into place. Where the last group has fewer than 64 elements, its planes
// travel one behind the other without a gap.

#include <cmath>
#include <cstring>
#include <string>

#include "thinwire/errors.h"
#include "thinwire/span.h"
#include "thinwire/workspace.h"
#include "wire/frame.h"

namespace thinwire {

// scaled_sign_bits: float32 scale, 4 zero bytes, bits from byte 8 on.

inline constexpr std::size_t kScaledSignBitsAt = FrameHeader::kBytes + 8;

inline void write_scale(Span<std::byte> frame, float scale) {
  const std::uint32_t zero = 0;
  std::memcpy(frame.data() + FrameHeader::kBytes, &scale, sizeof scale);
  std::memcpy(frame.data() + FrameHeader::kBytes + 4, &zero, sizeof zero);
}

/// table: the payload's first eight bytes. Throws CorruptFrame unless the scale is finite and not negative
/// and the bytes behind it are zero. Returns the scale.
inline float require_scale(Span<const float> table) {
  std::uint32_t zero = 0;
  std::memcpy(&zero, &table[1], sizeof zero);
  if (!std::isfinite(table[0]) || table[0] < 0) {
    throw CorruptFrame("frame refused: scale is " + std::to_string(table[0]) +
                       ", expected finite and not negative");
  }
  if (zero != 0) throw CorruptFrame("frame refused: the bytes behind the scale are not zero");
  return table[0];
}

inline float read_scale(Span<const std::byte> frame) {
  float table[2];
  std::memcpy(table, frame.data() + FrameHeader::kBytes, sizeof table);
  return require_scale(table);
}

inline Span<std::uint64_t> scaled_sign_words(Span<std::byte> frame, std::size_t elements) {
  return {reinterpret_cast<std::uint64_t*>(frame.data() + kScaledSignBitsAt), (elements + 63) / 64};
}

// row_list and row_bitmap: what another rank says about which rows it sends.

/// A row_list payload of `listed` rows in place: u32 indices [listed], then float32 values [listed * width].
struct RowList {
  Span<std::uint32_t> indices;
  Span<float> values;
};
RowList row_list_in(Span<std::byte> payload, std::size_t listed, std::size_t width);

/// Views a received row_list. payload: header.payload_bytes, aligned to 4. Throws CorruptFrame, naming the
/// position, unless indices ascend strictly and are below `limit`.
struct ReceivedRowList {
  Span<const std::uint32_t> indices;
  Span<const float> values;
};
ReceivedRowList read_row_list(const FrameHeader& header, Span<const std::byte> payload, std::uint64_t limit);

/// A row_bitmap payload in place: values [listed * width], then one bit per place in (slots + 7) / 8 bytes,
/// those of a bitmap (kernels/rows/bitmap.h) as far as they go.
struct RowBitmap {
  Span<float> values;
  Span<std::byte> bits;
};
RowBitmap row_bitmap_in(Span<std::byte> payload, std::size_t listed, std::size_t width, std::size_t slots);

/// Reads a row_bitmap: copies its bits to `bits` [bitmap words of header.count slots] and views its values.
/// Throws CorruptFrame unless as many bits are set as there are rows of values, none behind the last slot.
Span<const float> read_row_bitmap(const FrameHeader& header, Span<const std::byte> payload,
                                  Span<std::uint64_t> bits);

// codes: a table of float32 that gives the codes their meaning, then one code of a few bits per element.

/// Words that codes of `bits` bits take in memory.
constexpr std::size_t code_words(std::size_t count, std::size_t bits) {
  return (count + 63) / 64 * bits;
}

/// One frame's memory, from a workspace. The codes are aligned to 64 bytes and padded like every span of a
/// workspace; the message begins where that puts it.
class CodedFrame {
 public:
  CodedFrame() = default;
  /// bits: 1 to kMostCodeBits.
  CodedFrame(Workspace& workspace, std::size_t table_floats, std::size_t count, std::size_t bits);

  Span<std::byte> message() const { return message_; }
  Span<float> table() const { return table_; }
  /// code_words(count, bits) words.
  Span<std::uint64_t> codes() const { return codes_; }
  std::uint64_t payload_bytes() const { return message_.size() - FrameHeader::kBytes; }

  /// Brings the last group into the form in which it travels. Codes are not readable until open().
  void close() const;
  /// The reverse, for a frame that has arrived or was sent.
  void open() const;

 private:
  Span<std::byte> message_;
  Span<float> table_;
  Span<std::uint64_t> codes_;
  std::size_t count_ = 0;
  std::size_t bits_ = 0;
};

/// Frames of a bucket that travels in chunks, laid out so that a kernel writes a chunk's payload straight
/// behind its header and the message goes out as it lies: no copy between packing and sending.
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
