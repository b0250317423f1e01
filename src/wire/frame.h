#pragma once
// Every message of a system is a frame: a header of 64 bytes and a payload. The header says what the payload
// is and whom it stands for. So a message from a wrong step, a wrong bucket or a broken peer is refused
// before a byte of it is used. docs/wire_formats.md has the table and a worked example.

#include <string>

#include "thinwire/span.h"

namespace thinwire {

/// What the payload is; part of the format, never renumbered.
enum class FrameType : std::uint8_t {
  sign_bits = 1,         ///< One bit per element, set for non-negative.
  sign_votes = 2,        ///< Bit planes of counters of positive signs, least significant plane first.
  scaled_sign_bits = 3,  ///< float32 scale, 4 zero bytes, then one bit per element.
  half_fp16 = 4,         ///< One IEEE binary16 per element.
  half_bf16 = 5,         ///< One bfloat16 per element.
  row_list = 6,          ///< Rows as coordinates: ascending u32 indices, then float32 values.
  row_bitmap = 7,        ///< float32 values of the rows whose bit is set, then one bit per row of the range.
  codes = 8,             ///< float32 table, then codes of `width` bits as planes (payloads.h).
  floats = 9,            ///< One float32 per element.
  sign_sums = 10,        ///< Counters of positive signs in Elias's code (elias.h), shorter than sign_votes.
  levels = 11,           ///< float32 steps, then levels as kernels/codes/entropy_code.h has them.
};

struct FrameHeader {
  static constexpr std::size_t kBytes = 64;
  static constexpr std::uint32_t kMagic = 0x52495754;  // "TWIR"
  static constexpr std::uint8_t kVersion = 2;
  /// Some rank whose data this frame stands for had inf or NaN.
  static constexpr std::uint16_t kNonFinite = 1;

  FrameType type = FrameType::sign_bits;
  std::uint16_t flags = 0;
  std::uint32_t bucket = 0;
  std::uint64_t step = 0;
  std::uint32_t source = 0;   ///< Rank that sent it.
  std::uint32_t workers = 1;  ///< Number of ranks whose data has been reduced into it.
  std::uint64_t first = 0;    ///< First element of the bucket that it covers; rows: first slot of the range.
  std::uint64_t count = 0;    ///< Elements covered; row_list: rows listed; row_bitmap: slots in the range.
  std::uint64_t payload_bytes = 0;
  std::uint32_t width = 0;  ///< Values per row, bits per code, or a digest of what levels mean; 0: none.
  std::uint32_t payload_checksum = 0;  ///< CRC-32C of the payload.

  bool non_finite() const { return (flags & kNonFinite) != 0; }
};

/// Writes the header into frame[0, 64). frame: with the finished payload behind the header, whose checksum is
/// taken then; or 64 bytes alone, for a payload in a message of its own, whose checksum
/// header.payload_checksum is.
void write_frame_header(Span<std::byte> frame, const FrameHeader& header);

/// Makes magic, version and checksums right for whatever the header's other fields and the payload are now:
/// how tests and fuzzers play a rank that lies. header: 64 bytes; payload: of the same frame.
void seal_as_it_is(Span<std::byte> header, Span<const std::byte> payload);

/// Where a frame's payload is: behind the header, or in a message of its own that follows, where the receiver
/// cannot know how long it is.
enum class PayloadPlace : std::uint8_t { behind_header, next_message };

/// Reads and checks everything that does not depend on the receiver: size, magic, version, type, known flags,
/// checksum of the header, payload length against the frame's size, count against the payload length for the
/// type, checksum of the payload. With PayloadPlace::next_message, frame is the header alone, and
/// check_payload() is for what follows. Throws CorruptFrame, saying which field.
FrameHeader read_frame_header(Span<const std::byte> frame, PayloadPlace place = PayloadPlace::behind_header);

/// read_frame_header, then compares with what the receiver expects: type, bucket, step, source, workers,
/// first, count and payload length must all be equal; flags may differ. Throws CorruptFrame naming the field,
/// both values, and whose frame it is. Returns the header, for its flags.
FrameHeader expect_frame(Span<const std::byte> frame, const FrameHeader& expected,
                         PayloadPlace place = PayloadPlace::behind_header);

/// Throws CorruptFrame unless `payload` is the one that the header was written for.
void check_payload(const FrameHeader& header, Span<const std::byte> payload);

/// "rank 2, bucket 1, step 77": whose frame an error is about.
std::string whose(const FrameHeader& header);

/// Rows whose values a frame of rows carries. Its header has been read.
std::uint64_t frame_rows(const FrameHeader& header);

/// Payload bytes of `listed` rows, as a list and as bits over `slots`.
constexpr std::uint64_t row_list_bytes(std::uint64_t listed, std::uint64_t width) {
  return listed * (4 + 4 * width);
}
constexpr std::uint64_t row_bitmap_bytes(std::uint64_t slots, std::uint64_t listed, std::uint64_t width) {
  return listed * 4 * width + (slots + 7) / 8;
}

/// Payload bytes of `count` elements of a `type` without rows and codes, reduced over `workers` ranks.
std::uint64_t frame_payload_bytes(FrameType type, std::uint64_t count, std::uint32_t workers);

/// Bytes of `count` codes of `bits` bits each, without a table.
constexpr std::uint64_t code_bytes(std::uint64_t count, std::uint64_t bits) {
  return (count * bits + 7) / 8;
}
/// Most bits that a code may have.
inline constexpr std::uint32_t kMostCodeBits = 16;

/// Bit planes that count 0 to `workers` positive signs: ceil(log2(workers + 1)).
int vote_planes(std::uint32_t workers);

}  // namespace thinwire
