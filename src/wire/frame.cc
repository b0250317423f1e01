#include "wire/frame.h"

#include <bit>
#include <cstring>
#include <limits>
#include <string>
#include <string_view>

#include "thinwire/errors.h"
#include "wire/crc32c.h"

namespace thinwire {
namespace {

static_assert(std::endian::native == std::endian::little,
              "fields are copied as they lie: little-endian only");

// Offsets of the fields. Everything is naturally aligned and little-endian.
constexpr std::size_t kMagicAt = 0;
constexpr std::size_t kVersionAt = 4;
constexpr std::size_t kTypeAt = 5;
constexpr std::size_t kFlagsAt = 6;
constexpr std::size_t kBucketAt = 8;
constexpr std::size_t kSourceAt = 12;
constexpr std::size_t kStepAt = 16;
constexpr std::size_t kFirstAt = 24;
constexpr std::size_t kCountAt = 32;
constexpr std::size_t kPayloadBytesAt = 40;
constexpr std::size_t kWorkersAt = 48;
constexpr std::size_t kWidthAt = 52;
constexpr std::size_t kPayloadChecksumAt = 56;
constexpr std::size_t kChecksumAt = 60;

template <class T>
void put(Span<std::byte> frame, std::size_t at, T value) {
  std::memcpy(frame.data() + at, &value, sizeof value);
}

template <class T>
T get(Span<const std::byte> frame, std::size_t at) {
  T value;
  std::memcpy(&value, frame.data() + at, sizeof value);
  return value;
}

/// Of the header's other fields. Not against malice, which checks of each field must withstand, but it tells
/// a torn or misaligned message from a wrong one.
std::uint32_t checksum(Span<const std::byte> frame) {
  return crc32c(frame.first(kChecksumAt));
}

CorruptFrame refusal(const char* field, std::uint64_t got, std::string_view expected) {
  return CorruptFrame(std::string("frame refused: ") + field + " is " + std::to_string(got) + ", expected " +
                      std::string(expected));
}

/// Leaves nothing to be destroyed while the exception travels, nor do its callers: a fuzzer's inputs are
/// refused more often than not.
[[noreturn]] void corrupt(const char* field, std::uint64_t got, std::string_view expected) {
  throw refusal(field, got, expected);
}

CorruptFrame refusal(const char* field, std::uint64_t got, std::uint64_t expected) {
  return refusal(field, got, std::to_string(expected));
}

[[noreturn]] void unequal(const char* field, std::uint64_t got, std::uint64_t expected) {
  throw refusal(field, got, expected);
}

void require_equal(const char* field, std::uint64_t got, std::uint64_t expected) {
  if (got != expected) unequal(field, got, expected);
}

Span<const std::byte> payload_of(Span<const std::byte> frame) {
  return frame.subspan(FrameHeader::kBytes, frame.size() - FrameHeader::kBytes);
}

bool known_type(std::uint8_t type) {
  return type >= static_cast<std::uint8_t>(FrameType::sign_bits) &&
         type <= static_cast<std::uint8_t>(FrameType::levels);
}

bool has_rows(FrameType type) {
  return type == FrameType::row_list || type == FrameType::row_bitmap;
}

/// That the payload's length is one that this many rows can have.
void check_rows(const FrameHeader& header) {
  constexpr std::uint32_t kWidthLimit = 1u << 28;  // keeps the products below inside 64 bits
  if (header.width == 0 || header.width > kWidthLimit) {
    corrupt("row width", header.width, "1 to " + std::to_string(kWidthLimit));
  }
  if (header.type == FrameType::row_list) {
    require_equal("payload length for the count", header.payload_bytes,
                  row_list_bytes(header.count, header.width));
    return;
  }
  const std::uint64_t bits = (header.count + 7) / 8;
  const std::uint64_t row_bytes = 4 * std::uint64_t{header.width};
  if (header.payload_bytes < bits || (header.payload_bytes - bits) % row_bytes != 0 ||
      (header.payload_bytes - bits) / row_bytes > header.count) {
    corrupt("payload length for the count", header.payload_bytes,
            std::to_string(bits) + " and " + std::to_string(row_bytes) + " for each of at most " +
                std::to_string(header.count) + " rows");
  }
}

/// That codes of this many bits fit, with whole floats in front.
void check_codes(const FrameHeader& header) {
  if (header.width == 0 || header.width > kMostCodeBits) {
    corrupt("bits per code", header.width, "1 to " + std::to_string(kMostCodeBits));
  }
  const std::uint64_t codes = code_bytes(header.count, header.width);
  if (header.payload_bytes < codes || (header.payload_bytes - codes) % sizeof(float) != 0) {
    corrupt("payload length for the count", header.payload_bytes,
            std::to_string(codes) + " and 4 for each float of the table");
  }
}

/// That it is no longer than the counters themselves. A code has at least a bit.
void check_sums(const FrameHeader& header) {
  require_equal("row width", header.width, 0);
  const std::uint64_t least = frame_payload_bytes(FrameType::sign_bits, header.count, header.workers);
  const std::uint64_t most = frame_payload_bytes(FrameType::sign_votes, header.count, header.workers);
  if (header.payload_bytes < least || header.payload_bytes > most) {
    corrupt("payload length for the count", header.payload_bytes,
            std::to_string(least) + " to " + std::to_string(most));
  }
}

/// That it is no longer than 16 bits for each level, 12 bytes for each 65536 of them, a byte for each 128 of
/// them, and a step.
void check_levels(const FrameHeader& header) {
  const std::uint64_t blocks = (header.count + 127) / 128;
  const std::uint64_t most =
      header.count == 0 ? 0
                        : 4 + blocks + blocks % 2 + 2 * header.count + 12 * ((header.count + 65535) / 65536);
  if (header.payload_bytes > most) {
    corrupt("payload length for the count", header.payload_bytes, "at most " + std::to_string(most));
  }
}

}  // namespace

int vote_planes(std::uint32_t workers) {
  return static_cast<int>(std::bit_width(workers));
}

std::uint64_t frame_payload_bytes(FrameType type, std::uint64_t count, std::uint32_t workers) {
  const std::uint64_t bits = count / 8 + (count % 8 != 0);
  switch (type) {
    case FrameType::sign_bits:
      return bits;
    case FrameType::sign_votes:
      return bits * static_cast<std::uint64_t>(vote_planes(workers));
    case FrameType::scaled_sign_bits:
      return 8 + bits;
    case FrameType::half_fp16:
    case FrameType::half_bf16:
      return 2 * count;
    case FrameType::floats:
      return 4 * count;
    case FrameType::row_list:
    case FrameType::row_bitmap:
    case FrameType::codes:
    case FrameType::sign_sums:
    case FrameType::levels:
      break;  // depends on more than the count: check_rows, check_codes, check_sums, check_levels
  }
  return 0;
}

std::uint64_t frame_rows(const FrameHeader& header) {
  if (header.type == FrameType::row_list) return header.count;
  return (header.payload_bytes - (header.count + 7) / 8) / (4 * std::uint64_t{header.width});
}

void write_frame_header(Span<std::byte> frame, const FrameHeader& header) {
  const bool alone = frame.size() == FrameHeader::kBytes;
  put(frame, kMagicAt, FrameHeader::kMagic);
  put(frame, kVersionAt, FrameHeader::kVersion);
  put(frame, kTypeAt, static_cast<std::uint8_t>(header.type));
  put(frame, kFlagsAt, header.flags);
  put(frame, kBucketAt, header.bucket);
  put(frame, kSourceAt, header.source);
  put(frame, kStepAt, header.step);
  put(frame, kFirstAt, header.first);
  put(frame, kCountAt, header.count);
  put(frame, kPayloadBytesAt, header.payload_bytes);
  put(frame, kWorkersAt, header.workers);
  put(frame, kWidthAt, header.width);
  put(frame, kPayloadChecksumAt, alone ? header.payload_checksum : crc32c(payload_of(frame)));
  put(frame, kChecksumAt, checksum(frame));
}

void seal_as_it_is(Span<std::byte> header, Span<const std::byte> payload) {
  put(header, kMagicAt, FrameHeader::kMagic);
  put(header, kVersionAt, FrameHeader::kVersion);
  put(header, kPayloadChecksumAt, crc32c(payload));
  put(header, kChecksumAt, checksum(header));
}

FrameHeader read_frame_header(Span<const std::byte> frame, PayloadPlace place) {
  if (frame.size() < FrameHeader::kBytes) {
    static_assert(FrameHeader::kBytes == 64);
    corrupt("size", frame.size(), "at least 64 bytes");
  }
  require_equal("magic", get<std::uint32_t>(frame, kMagicAt), FrameHeader::kMagic);
  // The version first: it says where the checksum is.
  const auto version = get<std::uint8_t>(frame, kVersionAt);
  if (version != FrameHeader::kVersion) {
    corrupt("version", version,
            std::to_string(FrameHeader::kVersion) + "; install the same thinwire on every rank");
  }
  require_equal("checksum", get<std::uint32_t>(frame, kChecksumAt), checksum(frame));
  const auto type = get<std::uint8_t>(frame, kTypeAt);
  if (!known_type(type)) corrupt("type", type, "a known frame type");
  FrameHeader header;
  header.type = static_cast<FrameType>(type);
  header.flags = get<std::uint16_t>(frame, kFlagsAt);
  if ((header.flags & ~FrameHeader::kNonFinite) != 0) corrupt("flags", header.flags, "only known bits");
  header.bucket = get<std::uint32_t>(frame, kBucketAt);
  header.source = get<std::uint32_t>(frame, kSourceAt);
  header.step = get<std::uint64_t>(frame, kStepAt);
  header.first = get<std::uint64_t>(frame, kFirstAt);
  header.count = get<std::uint64_t>(frame, kCountAt);
  header.payload_bytes = get<std::uint64_t>(frame, kPayloadBytesAt);
  header.workers = get<std::uint32_t>(frame, kWorkersAt);
  header.width = get<std::uint32_t>(frame, kWidthAt);
  header.payload_checksum = get<std::uint32_t>(frame, kPayloadChecksumAt);
  if (place == PayloadPlace::behind_header) {
    require_equal("payload length", header.payload_bytes, frame.size() - FrameHeader::kBytes);
  } else {
    require_equal("size", frame.size(), FrameHeader::kBytes);
  }
  if (header.workers == 0) corrupt("workers", 0, "at least 1");
  constexpr std::uint64_t kElementLimit = std::numeric_limits<std::uint32_t>::max();
  // What `first` means in a frame of rows depends on the exchange, which holds it against the table.
  const std::uint64_t end = has_rows(header.type) ? header.count : header.first + header.count;
  if (header.first > kElementLimit || header.count > kElementLimit || end > kElementLimit) {
    corrupt("count", header.count, "a range inside a bucket of less than 2^32 elements");
  }
  if (has_rows(header.type)) {
    check_rows(header);
  } else if (header.type == FrameType::codes) {
    check_codes(header);
  } else if (header.type == FrameType::sign_sums) {
    check_sums(header);
  } else if (header.type == FrameType::levels) {
    check_levels(header);
  } else {
    require_equal("row width", header.width, 0);
    require_equal("payload length for the count", header.payload_bytes,
                  frame_payload_bytes(header.type, header.count, header.workers));
  }
  if (place == PayloadPlace::behind_header) check_payload(header, payload_of(frame));
  return header;
}

void check_payload(const FrameHeader& header, Span<const std::byte> payload) {
  const std::uint32_t found = crc32c(payload);
  if (found == header.payload_checksum) return;
  throw CorruptFrame("frame refused: the checksum of the payload is " + std::to_string(found) +
                     ", the header says " + std::to_string(header.payload_checksum) + " (" + whose(header) +
                     "): bytes changed on the way");
}

std::string whose(const FrameHeader& header) {
  return "rank " + std::to_string(header.source) + ", bucket " + std::to_string(header.bucket) + ", step " +
         std::to_string(header.step);
}

namespace {

FrameHeader expect(Span<const std::byte> frame, const FrameHeader& expected, PayloadPlace place) {
  const FrameHeader header = read_frame_header(frame, place);
  require_equal("type", static_cast<std::uint64_t>(header.type), static_cast<std::uint64_t>(expected.type));
  require_equal("bucket", header.bucket, expected.bucket);
  require_equal("step", header.step, expected.step);
  require_equal("source rank", header.source, expected.source);
  require_equal("workers", header.workers, expected.workers);
  require_equal("first element", header.first, expected.first);
  require_equal("count", header.count, expected.count);
  require_equal("row width", header.width, expected.width);
  require_equal("payload length", header.payload_bytes, expected.payload_bytes);
  return header;
}

}  // namespace

FrameHeader expect_frame(Span<const std::byte> frame, const FrameHeader& expected, PayloadPlace place) {
  try {
    return expect(frame, expected, place);
  } catch (const CorruptFrame& error) {
    throw CorruptFrame(std::string(error.what()) + "; awaited from " + whose(expected));
  }
}

}  // namespace thinwire
