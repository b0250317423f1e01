#include "wire/payloads.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

#include "thinwire/errors.h"

namespace thinwire::coded_payload_test {
namespace {

TEST(CodedFrame, CodesSurviveTheWireInExactlyTheBytesOfTheFormula) {
  std::mt19937_64 random(1);
  for (std::size_t bits = 1; bits <= kMostCodeBits; ++bits) {
    for (const std::size_t count : {0u, 1u, 7u, 31u, 63u, 64u, 65u, 127u, 200u}) {
      for (const std::size_t floats : {0u, 1u, 2u, 15u, 16u, 17u}) {
        SCOPED_TRACE(testing::Message() << bits << " bits, " << count << " codes, " << floats << " floats");
        Workspace workspace;
        const CodedFrame sent(workspace, floats, count, bits);
        ASSERT_EQ(sent.codes().size(), bits * ((count + 63) / 64));
        ASSERT_EQ(sent.payload_bytes(), 4 * floats + (count * bits + 7) / 8);
        ASSERT_EQ(reinterpret_cast<std::uintptr_t>(sent.codes().data()) % 64, 0u);
        std::vector<std::uint64_t> wanted;
        for (std::size_t group = 0; group * 64 < count; ++group) {
          const std::size_t valid = std::min<std::size_t>(64, count - group * 64);
          for (std::size_t k = 0; k < bits; ++k) {
            const std::uint64_t mask = valid == 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << valid) - 1;
            wanted.push_back(random() & mask);
          }
        }
        std::copy(wanted.begin(), wanted.end(), sent.codes().begin());
        for (std::size_t i = 0; i < floats; ++i) sent.table()[i] = static_cast<float>(i) + 0.5f;

        const CodedFrame received(workspace, floats, count, bits);
        for (auto& word : received.codes()) word = random();  // what the memory held before
        sent.close();
        std::memcpy(received.message().data(), sent.message().data(), sent.message().size());
        received.open();
        sent.open();
        for (std::size_t i = 0; i < wanted.size(); ++i) {
          ASSERT_EQ(received.codes()[i], wanted[i]) << i;
          ASSERT_EQ(sent.codes()[i], wanted[i]) << i;
        }
        for (std::size_t i = 0; i < floats; ++i) {
          ASSERT_EQ(received.table()[i], static_cast<float>(i) + 0.5f);
        }
      }
    }
  }
}

TEST(CodedFrame, HeadersWithImpossibleBitsOrLengthsAreRefused) {
  FrameHeader header;
  header.type = FrameType::codes;
  header.count = 100;
  header.width = 3;
  header.payload_bytes = 38 + 4 * 5;
  auto accepted = [](const FrameHeader& candidate) {
    std::vector<std::byte> frame(FrameHeader::kBytes + candidate.payload_bytes);
    write_frame_header(frame, candidate);
    try {
      read_frame_header(frame);
      return true;
    } catch (const CorruptFrame&) {
      return false;
    }
  };
  EXPECT_TRUE(accepted(header));
  FrameHeader bad = header;
  bad.width = 0;
  EXPECT_FALSE(accepted(bad));
  bad.width = kMostCodeBits + 1;
  EXPECT_FALSE(accepted(bad));
  bad = header;
  bad.payload_bytes = 37;
  EXPECT_FALSE(accepted(bad));
  bad.payload_bytes = 38 + 3;
  EXPECT_FALSE(accepted(bad));
  bad = header;
  bad.count = 1000;
  EXPECT_FALSE(accepted(bad));
}

}  // namespace
}  // namespace thinwire::coded_payload_test
