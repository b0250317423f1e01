#include "wire/frame.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <cstring>
#include <limits>
#include <vector>

#include "thinwire/errors.h"
#include "wire/payloads.h"

namespace thinwire::frame_test {
namespace {

FrameHeader sample_header() {
  FrameHeader header;
  header.type = FrameType::sign_bits;
  header.bucket = 7;
  header.step = 1'000'000'000'000;
  header.source = 3;
  header.workers = 2;
  header.first = 1'000'000;
  header.count = 100;
  header.payload_bytes = 13;
  return header;
}

std::vector<std::byte> frame_of(const FrameHeader& header) {
  std::vector<std::byte> frame(FrameHeader::kBytes + static_cast<std::size_t>(header.payload_bytes));
  write_frame_header(frame, header);
  return frame;
}

bool refused(const FrameHeader& header) {
  const auto frame = frame_of(header);
  try {
    read_frame_header(frame);
  } catch (const CorruptFrame&) {
    return true;
  }
  return false;
}

TEST(Frame, HeaderSurvivesTheWire) {
  rc::check("read(write(header)) = header", [] {
    FrameHeader header;
    header.type = *rc::gen::element(FrameType::sign_bits, FrameType::sign_votes, FrameType::scaled_sign_bits,
                                    FrameType::half_fp16, FrameType::half_bf16, FrameType::floats);
    header.flags = *rc::gen::element<std::uint16_t>(0, FrameHeader::kNonFinite);
    header.bucket = *rc::gen::arbitrary<std::uint32_t>();
    header.step = *rc::gen::arbitrary<std::uint64_t>();
    header.source = *rc::gen::arbitrary<std::uint32_t>();
    header.workers = *rc::gen::inRange<std::uint32_t>(1, 5000);
    header.first = *rc::gen::inRange<std::uint64_t>(0, 1u << 31);
    header.count = *rc::gen::inRange<std::uint64_t>(0, 10'000);
    header.payload_bytes = frame_payload_bytes(header.type, header.count, header.workers);
    const auto frame = frame_of(header);
    const FrameHeader read = expect_frame(frame, header);
    RC_ASSERT(read.flags == header.flags);
    RC_ASSERT(read.non_finite() == (header.flags == FrameHeader::kNonFinite));
  });
}

TEST(Frame, EveryFlippedBitOfTheHeaderIsNoticed) {
  const auto good = frame_of(sample_header());
  for (std::size_t bit = 0; bit < FrameHeader::kBytes * 8; ++bit) {
    auto bad = good;
    bad[bit / 8] ^= static_cast<std::byte>(1u << (bit % 8));
    EXPECT_THROW(read_frame_header(bad), CorruptFrame) << "bit " << bit;
  }
}

TEST(Frame, EveryFlippedBitOfThePayloadIsNoticedAndItsFrameNamed) {
  const auto good = frame_of(sample_header());
  for (std::size_t bit = FrameHeader::kBytes * 8; bit < good.size() * 8; ++bit) {
    auto bad = good;
    bad[bit / 8] ^= static_cast<std::byte>(1u << (bit % 8));
    std::string complaint = "accepted";
    try {
      expect_frame(bad, sample_header());
    } catch (const CorruptFrame& error) {
      complaint = error.what();
    }
    EXPECT_NE(complaint.find("rank 3, bucket 7, step 1000000000000"), std::string::npos) << complaint;
  }
}

TEST(Frame, HeadersOfRowsOfALargeTableAreAccepted) {
  // A push says in `first` how many rows its sender has in all: as many as it lists, or more.
  constexpr std::uint64_t kMost = std::numeric_limits<std::uint32_t>::max();
  for (const std::uint64_t count : {std::uint64_t{1}, kMost / 2 + 1, kMost}) {
    FrameHeader header = sample_header();
    header.type = FrameType::row_list;
    header.first = kMost;
    header.count = count;
    header.width = 1;
    header.payload_bytes = row_list_bytes(count, 1);
    std::vector<std::byte> frame(FrameHeader::kBytes);
    write_frame_header(frame, header);
    EXPECT_EQ(read_frame_header(frame, PayloadPlace::next_message).count, count);
    header.first = kMost + 1;
    write_frame_header(frame, header);
    EXPECT_THROW(read_frame_header(frame, PayloadPlace::next_message), CorruptFrame);
  }
}

TEST(Frame, CodedSumsAreNoLongerThanTheirPlanes) {
  // 100 counters of 5 workers: 3 planes of 13 bytes; a code has at least a bit.
  const auto read = [](std::uint64_t payload_bytes, std::uint32_t width) {
    FrameHeader header = sample_header();
    header.type = FrameType::sign_sums;
    header.count = 100;
    header.workers = 5;
    header.width = width;
    header.payload_bytes = payload_bytes;
    std::vector<std::byte> frame(FrameHeader::kBytes);
    write_frame_header(frame, header);
    return read_frame_header(frame, PayloadPlace::next_message).payload_bytes;
  };
  EXPECT_EQ(read(13, 0), 13u);
  EXPECT_EQ(read(39, 0), 39u);
  EXPECT_THROW(read(12, 0), CorruptFrame);
  EXPECT_THROW(read(40, 0), CorruptFrame);
  EXPECT_THROW(read(20, 1), CorruptFrame);
}

TEST(Frame, LevelsHaveALongestPayload) {
  const auto read = [](std::uint64_t count, std::uint64_t payload_bytes, std::uint32_t width) {
    FrameHeader header = sample_header();
    header.type = FrameType::levels;
    header.count = count;
    header.width = width;
    header.payload_bytes = payload_bytes;
    std::vector<std::byte> frame(FrameHeader::kBytes);
    write_frame_header(frame, header);
    return read_frame_header(frame, PayloadPlace::next_message).payload_bytes;
  };
  EXPECT_EQ(read(0, 0, 0), 0u);
  EXPECT_EQ(read(100, 218, 0), 218u);
  EXPECT_THROW(read(100, 219, 0), CorruptFrame);
  EXPECT_THROW(read(0, 1, 0), CorruptFrame);
  EXPECT_EQ(read(100, 100, 1), 100u);  // a digest, which the receiver compares
}

TEST(Frame, EveryLengthButTheRightOneIsRefused) {
  const auto good = frame_of(sample_header());
  for (std::size_t size = 0; size < good.size(); ++size) {
    EXPECT_THROW(read_frame_header(Span<const std::byte>(good).first(size)), CorruptFrame) << size;
  }
  auto longer = good;
  longer.push_back(std::byte{});
  EXPECT_THROW(read_frame_header(longer), CorruptFrame);
}

TEST(Frame, WhatTheReceiverDoesNotExpectIsRefusedAndNamed) {
  const FrameHeader header = sample_header();
  const auto frame = frame_of(header);
  auto complaint = [&](const FrameHeader& expected) -> std::string {
    try {
      expect_frame(frame, expected);
    } catch (const CorruptFrame& error) {
      return error.what();
    }
    return "accepted";
  };
  EXPECT_EQ(complaint(header), "accepted");
  FrameHeader other = header;
  other.bucket = 8;
  EXPECT_NE(complaint(other).find("bucket is 7, expected 8"), std::string::npos) << complaint(other);
  other = header;
  other.step = 2;
  EXPECT_NE(complaint(other).find("step"), std::string::npos);
  other = header;
  other.source = 2;
  EXPECT_NE(complaint(other).find("source rank"), std::string::npos);
  other = header;
  other.workers = 1;
  EXPECT_NE(complaint(other).find("workers"), std::string::npos);
  other = header;
  other.first = 0;
  EXPECT_NE(complaint(other).find("first element"), std::string::npos);
  other = header;
  other.count = 99;
  EXPECT_NE(complaint(other).find("count"), std::string::npos);
  other = header;
  other.type = FrameType::sign_votes;
  EXPECT_NE(complaint(other).find("type"), std::string::npos);
}

TEST(Frame, CountsThatDoNotFitThePayloadOrTheBucketAreRefused) {
  FrameHeader header = sample_header();
  header.count = 105;  // would need 14 bytes
  EXPECT_TRUE(refused(header));
  header = sample_header();
  header.first = 0xFFFFFFFF;
  EXPECT_TRUE(refused(header));
  header = sample_header();
  header.workers = 0;
  EXPECT_TRUE(refused(header));
}

TEST(Frame, SealingMakesWhatIsThereReadable) {
  auto frame = frame_of(sample_header());
  frame[0] ^= std::byte{1};
  frame[8] = std::byte{9};  // the bucket
  frame.back() ^= std::byte{1};
  EXPECT_THROW(read_frame_header(frame), CorruptFrame);
  const Span<std::byte> all(frame);
  seal_as_it_is(all.first(FrameHeader::kBytes), all.subspan(FrameHeader::kBytes, 13));
  EXPECT_EQ(read_frame_header(frame).bucket, 9u);
}

TEST(Frame, VotePlanesGrowWithTheWorkers) {
  EXPECT_EQ(vote_planes(1), 1);
  EXPECT_EQ(vote_planes(2), 2);
  EXPECT_EQ(vote_planes(3), 2);
  EXPECT_EQ(vote_planes(4), 3);
  EXPECT_EQ(vote_planes(7), 3);
  EXPECT_EQ(vote_planes(8), 4);
  EXPECT_EQ(frame_payload_bytes(FrameType::sign_votes, 9, 3), 4u);
}

TEST(ScaledSigns, BadScalesAreRefused) {
  FrameHeader header;
  header.type = FrameType::scaled_sign_bits;
  header.count = 8;
  header.payload_bytes = 9;
  auto frame = frame_of(header);
  write_scale(frame, 1.5f);
  EXPECT_EQ(read_scale(frame), 1.5f);
  for (const float scale :
       {-1.0f, std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    write_scale(frame, scale);
    EXPECT_THROW(read_scale(frame), CorruptFrame) << scale;
  }
  write_scale(frame, 1.0f);
  frame[FrameHeader::kBytes + 5] = std::byte{1};
  EXPECT_THROW(read_scale(frame), CorruptFrame);
}

}  // namespace
}  // namespace thinwire::frame_test
