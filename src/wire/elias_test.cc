#include "wire/elias.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "thinwire/errors.h"
#include "wire/frame.h"

namespace thinwire::elias_test {
namespace {

std::vector<std::uint64_t> planes_of(const std::vector<std::uint32_t>& counters, std::uint32_t workers) {
  const SignSums sums{workers, counters.size()};
  std::vector<std::uint64_t> planes(sums.words() * static_cast<std::size_t>(vote_planes(workers)));
  for (std::size_t i = 0; i < counters.size(); ++i) {
    for (std::size_t k = 0; k < static_cast<std::size_t>(vote_planes(workers)); ++k) {
      planes[k * sums.words() + i / 64] |= std::uint64_t{counters[i] >> k & 1u} << (i % 64);
    }
  }
  return planes;
}

std::string complaint_about(const SignSums& sums, const std::vector<std::byte>& codes) {
  std::vector<std::uint64_t> planes(sums.words() * static_cast<std::size_t>(vote_planes(sums.workers)));
  try {
    read_elias(sums, codes, planes);
  } catch (const CorruptFrame& error) {
    return error.what();
  }
  return "";
}

TEST(Elias, SmallSumsHaveTheShortestCodes) {
  // Sums of 4 workers, as their bytes are: 0 is number 1, and 2, -2, 4, -4 are numbers 2 to 5.
  const std::vector<std::pair<std::uint32_t, unsigned>> expected = {
      {2, 0b1}, {3, 0b010}, {1, 0b110}, {4, 0b00100}, {0, 0b01100}};
  for (const auto& [counter, bits] : expected) {
    std::vector<std::byte> codes(2);
    const auto planes = planes_of({counter}, 4);
    ASSERT_EQ(write_elias({4, 1}, planes, codes), 1u);
    EXPECT_EQ(std::to_integer<unsigned>(codes[0]), bits) << counter;
  }
}

TEST(Elias, WhatIsWrittenIsRead) {
  std::mt19937 random(5);
  for (const std::uint32_t workers : {1u, 2u, 3u, 4u, 7u, 8u, 15u, 16u, 100u, 1000u}) {
    for (const std::size_t count : {0u, 1u, 63u, 64u, 1000u}) {
      std::vector<std::uint32_t> counters(count);
      for (std::size_t i = 0; i < count; ++i) {
        counters[i] = i % 7 == 0   ? 0
                      : i % 7 == 1 ? workers
                                   : static_cast<std::uint32_t>(random()) % (workers + 1);
      }
      const auto planes = planes_of(counters, workers);
      std::vector<std::byte> codes(32 * count + 8);
      const std::size_t bytes = write_elias({workers, count}, planes, codes);
      codes.resize(bytes);
      std::vector<std::uint64_t> read(planes.size(), 77);
      read_elias({workers, count}, codes, read);
      EXPECT_EQ(read, planes) << workers << " workers, " << count;
      if (bytes == 0) continue;
      std::vector<std::byte> tight(bytes);
      EXPECT_EQ(write_elias({workers, count}, planes, tight), bytes);
      tight.resize(bytes - 1);
      EXPECT_EQ(write_elias({workers, count}, planes, tight), 0u) << "no room";
    }
  }
}

TEST(Elias, CodesThatCannotBeAreRefused) {
  const SignSums sums{4, 3};
  std::vector<std::byte> codes(8);
  const auto planes = planes_of({2, 3, 0}, 4);
  codes.resize(write_elias(sums, planes, codes));
  EXPECT_EQ(complaint_about(sums, codes), "");
  auto longer = codes;
  longer.push_back(std::byte{0});
  EXPECT_NE(complaint_about(sums, longer).find("3 bytes, expected 2"), std::string::npos);
  EXPECT_NE(complaint_about(sums, {codes[0]}).find("end too soon"), std::string::npos);
  auto set = codes;
  set[1] |= std::byte{0x80};
  EXPECT_NE(complaint_about(sums, set).find("a bit is set behind the last"), std::string::npos);
  EXPECT_NE(complaint_about({4, 1}, {std::byte{0b11100}}).find("number 7, at most 5"), std::string::npos);
  EXPECT_NE(complaint_about({4, 1}, std::vector<std::byte>(9)).find("over 31 zeros"), std::string::npos);
}

/// The recursive code itself, as digits.
std::string omega(std::uint64_t number) {
  std::string code = "0";
  while (number > 1) {
    std::string group;
    for (std::uint64_t rest = number; rest != 0; rest /= 2) group.insert(0, 1, rest % 2 == 1 ? '1' : '0');
    code.insert(0, group);
    number = group.size() - 1;
  }
  return code;
}

TEST(EliasOmega, IsAsLongAsItsCode) {
  EXPECT_EQ(omega(1), "0");
  EXPECT_EQ(omega(3), "110");
  EXPECT_EQ(omega(16), "10100100000");  // of Elias's paper: 10 100 10000 0
  for (std::uint64_t number = 1; number < 3000; ++number) {
    ASSERT_EQ(elias_omega_bits(number), static_cast<int>(omega(number).size())) << number;
  }
}

TEST(EliasBits, AreThoseOfQsgdsCodes) {
  // Distances 3, 1 and 4; magnitudes 1, 7 and 2. The zeros behind the last cost nothing.
  const std::vector<std::int32_t> levels = {0, 0, -1, 7, 0, 0, 0, 2, 0};
  const EliasBits bits = elias_bits(levels);
  EXPECT_EQ(bits.gaps, (3u + 1 + 1) + (1u + 1 + 6) + (6u + 1 + 3));
  EXPECT_EQ(bits.each, 6u * 1 + (3 + 1) + (7 + 1) + (3 + 1));
  EXPECT_EQ(elias_bits(Span<const std::int32_t>()).gaps, 0u);
  const std::vector<std::int32_t> zeros(100, 0);
  EXPECT_EQ(elias_bits(zeros).gaps, 0u);
  EXPECT_EQ(elias_bits(zeros).each, 100u);
}

TEST(EntropyBits, AreOfHowOftenSymbolsCome) {
  const auto bits = [](const std::vector<std::uint64_t>& counts) { return entropy_bits(counts); };
  EXPECT_DOUBLE_EQ(bits({5, 5, 5, 5}), 40);
  EXPECT_DOUBLE_EQ(bits({4, 2, 0, 2}), 4 * 1 + 4 * 2);
  EXPECT_DOUBLE_EQ(bits({9}), 0);
  EXPECT_DOUBLE_EQ(bits({}), 0);
}

}  // namespace
}  // namespace thinwire::elias_test
