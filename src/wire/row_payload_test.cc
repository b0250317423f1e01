#include "wire/payloads.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "thinwire/errors.h"

namespace thinwire::row_payload_test {
namespace {

FrameHeader header_of(FrameType type, std::uint64_t count, std::uint32_t width, std::uint64_t bytes) {
  FrameHeader header;
  header.type = type;
  header.count = count;
  header.width = width;
  header.payload_bytes = bytes;
  return header;
}

/// Bytes that are aligned as payloads are.
struct Payload {
  explicit Payload(std::size_t bytes) : words((bytes + 7) / 8), size(bytes) {}
  Span<std::byte> bytes() { return {reinterpret_cast<std::byte*>(words.data()), size}; }
  std::vector<std::uint64_t> words;
  std::size_t size;
};

TEST(RowList, WhatIsWrittenIsRead) {
  const FrameHeader header = header_of(FrameType::row_list, 3, 2, row_list_bytes(3, 2));
  EXPECT_EQ(header.payload_bytes, 36u);
  Payload payload(header.payload_bytes);
  const RowList list = row_list_in(payload.bytes(), 3, 2);
  const std::vector<std::uint32_t> indices = {1, 5, 6};
  const std::vector<float> values = {1, 2, 3, 4, 5, 6};
  std::copy(indices.begin(), indices.end(), list.indices.begin());
  std::copy(values.begin(), values.end(), list.values.begin());
  const ReceivedRowList read = read_row_list(header, payload.bytes(), 7);
  EXPECT_TRUE(std::equal(indices.begin(), indices.end(), read.indices.begin(), read.indices.end()));
  EXPECT_TRUE(std::equal(values.begin(), values.end(), read.values.begin(), read.values.end()));
}

TEST(RowList, IndicesThatRepeatOrFallOrLieBeyondTheTableAreRefused) {
  for (const std::vector<std::uint32_t>& indices :
       {std::vector<std::uint32_t>{1, 1, 2}, {3, 2, 4}, {1, 2, 9}, {0, 1, 4'000'000'000u}}) {
    const FrameHeader header = header_of(FrameType::row_list, 3, 1, row_list_bytes(3, 1));
    Payload payload(header.payload_bytes);
    std::copy(indices.begin(), indices.end(), row_list_in(payload.bytes(), 3, 1).indices.begin());
    EXPECT_THROW(read_row_list(header, payload.bytes(), 9), CorruptFrame);
  }
}

TEST(RowList, EmptyIsFine) {
  const FrameHeader header = header_of(FrameType::row_list, 0, 4, 0);
  EXPECT_TRUE(read_row_list(header, {}, 0).indices.empty());
}

TEST(RowBitmap, WhatIsWrittenIsReadForEveryNumberOfPlaces) {
  for (const std::size_t slots : {0u, 1u, 7u, 8u, 63u, 64u, 65u, 200u}) {
    std::vector<std::uint64_t> bits((slots + 63) / 64, 0);
    std::vector<float> values;
    for (std::size_t i = 0; i < slots; i += 3) {
      bits[i / 64] |= std::uint64_t{1} << (i % 64);
      values.push_back(static_cast<float>(i));
      values.push_back(-1);
    }
    const FrameHeader header =
        header_of(FrameType::row_bitmap, slots, 2, row_bitmap_bytes(slots, values.size() / 2, 2));
    EXPECT_EQ(frame_rows(header), values.size() / 2);
    Payload payload(header.payload_bytes);
    const RowBitmap written = row_bitmap_in(payload.bytes(), values.size() / 2, 2, slots);
    std::copy(values.begin(), values.end(), written.values.begin());
    const auto bytes = as_bytes(Span<const std::uint64_t>(bits));
    std::copy_n(bytes.begin(), written.bits.size(), written.bits.begin());
    std::vector<std::uint64_t> read_bits(bits.size(), ~std::uint64_t{0});
    const auto read = read_row_bitmap(header, payload.bytes(), read_bits);
    EXPECT_EQ(read_bits, bits);
    EXPECT_TRUE(std::equal(values.begin(), values.end(), read.begin(), read.end()));
  }
}

TEST(RowBitmap, BitsThatDoNotFitTheValuesAreRefused) {
  const FrameHeader header = header_of(FrameType::row_bitmap, 10, 1, row_bitmap_bytes(10, 2, 1));
  std::vector<std::uint64_t> read_bits(1);
  for (const std::uint64_t bits : {std::uint64_t{0b1}, std::uint64_t{0b111}, std::uint64_t{0x8001}}) {
    Payload payload(header.payload_bytes);
    std::memcpy(payload.bytes().data() + 8, &bits, 2);
    EXPECT_THROW(read_row_bitmap(header, payload.bytes(), read_bits), CorruptFrame) << bits;
  }
}

TEST(RowFrames, LengthsThatNoNumberOfRowsCanHaveAreRefused) {
  auto refused = [](FrameType type, std::uint64_t count, std::uint32_t width, std::uint64_t bytes) {
    std::vector<std::byte> frame(FrameHeader::kBytes);
    write_frame_header(frame, header_of(type, count, width, bytes));
    try {
      read_frame_header(frame, PayloadPlace::next_message);
    } catch (const CorruptFrame&) {
      return true;
    }
    return false;
  };
  EXPECT_FALSE(refused(FrameType::row_list, 3, 2, 36));
  EXPECT_TRUE(refused(FrameType::row_list, 3, 2, 35));
  EXPECT_TRUE(refused(FrameType::row_list, 3, 0, 12));
  EXPECT_TRUE(refused(FrameType::row_list, 3, (1u << 28) + 1, 36));
  EXPECT_FALSE(refused(FrameType::row_bitmap, 10, 3, 2 + 12 * 10));
  EXPECT_TRUE(refused(FrameType::row_bitmap, 10, 3, 2 + 12 * 11));
  EXPECT_TRUE(refused(FrameType::row_bitmap, 10, 3, 1));
  EXPECT_TRUE(refused(FrameType::row_bitmap, 10, 3, 2 + 13));
  EXPECT_TRUE(refused(FrameType::sign_bits, 8, 1, 1));
}

}  // namespace
}  // namespace thinwire::row_payload_test
