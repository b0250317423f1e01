#include "wire/crc32c.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <string_view>
#include <vector>

namespace thinwire::crc32c_test {
namespace {

/// The definition: bit by bit.
std::uint32_t crc_by_bits(Span<const std::byte> bytes) {
  std::uint32_t crc = ~std::uint32_t{0};
  for (const std::byte byte : bytes) {
    crc ^= std::to_integer<std::uint32_t>(byte);
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ ((crc & 1u) != 0 ? 0x82F63B78u : 0);
  }
  return ~crc;
}

std::vector<std::byte> random_bytes(std::size_t count) {
  std::mt19937 random(3);
  std::vector<std::byte> bytes(count);
  for (auto& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

TEST(Crc32c, PublishedValues) {
  const std::string_view digits = "123456789";
  const Span<const std::byte> text(reinterpret_cast<const std::byte*>(digits.data()), digits.size());
  EXPECT_EQ(crc32c(text), 0xE3069283u);
  EXPECT_EQ(crc32c_by_words(text), 0xE3069283u);
  EXPECT_EQ(crc32c_by_tables(text), 0xE3069283u);
  const std::vector<std::byte> zeros(32);
  EXPECT_EQ(crc32c(zeros), 0x8A9136AAu);  // RFC 3720, B.4
  const std::vector<std::byte> ones(32, std::byte{0xFF});
  EXPECT_EQ(crc32c(ones), 0x62A8AB43u);
  EXPECT_EQ(crc32c({}), 0u);
}

TEST(Crc32c, EveryLengthAndAlignmentIsTheDefinitions) {
  const auto bytes = random_bytes(70'000);
  for (const std::size_t size : {0u, 1u, 7u, 8u, 9u, 63u, 511u, 512u, 513u, 767u, 768u, 775u, 1537u, 12'288u,
                                 12'289u, 13'063u, 69'000u}) {
    for (const std::size_t first : {0u, 1u, 5u}) {
      const auto part = Span<const std::byte>(bytes).subspan(first, size);
      const std::uint32_t expected = crc_by_bits(part);
      EXPECT_EQ(crc32c(part), expected) << size << " bytes from " << first;
      EXPECT_EQ(crc32c_by_words(part), expected) << size << " bytes from " << first;
      EXPECT_EQ(crc32c_by_tables(part), expected) << size << " bytes from " << first;
      EXPECT_EQ(crc32c(part.subspan(size / 3, size - size / 3), crc32c(part.first(size / 3))), expected);
    }
  }
}

TEST(Crc32c, EveryFlippedBitShows) {
  auto bytes = random_bytes(900);
  const std::uint32_t sound = crc32c(bytes);
  for (std::size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
    bytes[bit / 8] ^= static_cast<std::byte>(1u << bit % 8);
    EXPECT_NE(crc32c(bytes), sound) << "bit " << bit;
    bytes[bit / 8] ^= static_cast<std::byte>(1u << bit % 8);
  }
}

}  // namespace
}  // namespace thinwire::crc32c_test
