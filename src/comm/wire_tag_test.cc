#include "comm/message_tags.h"

#include <gtest/gtest.h>

#include <set>
#include <stdexcept>

namespace thinwire::wire_tag_test {
namespace {

TEST(WireTag, SizesBelowTwoMebibytesHaveNumbersOfTheirOwn) {
  for (const Communicator::Tag tag : {0u, 50u, Communicator::kFirstReservedTag, kSpareWireTag - 1}) {
    for (std::size_t bytes = 0; bytes < kDistinctSizes; ++bytes) {
      const int number = wire_tag(tag, bytes);
      ASSERT_GE(number, 0);
      ASSERT_EQ(static_cast<std::size_t>(number) >> kWireTagBits, bytes);
      ASSERT_EQ(static_cast<Communicator::Tag>(number) % kWireTags, tag);
    }
  }
}

TEST(WireTag, LongerOnesNeverMeetShorterOnesAndRarelyEachOther) {
  std::set<int> longer;
  for (std::size_t bytes = kDistinctSizes; bytes < kDistinctSizes + 100'000; ++bytes) {
    const int number = wire_tag(7, bytes);
    ASSERT_GE(number, 0);
    // The upper half of the sizes' numbers.
    ASSERT_NE(static_cast<unsigned>(number) >> 30, 0u);
    longer.insert(number);
  }
  // Multiplication by an odd number spreads neighbours: nearly all numbers differ.
  EXPECT_GT(longer.size(), 99'000u);
  EXPECT_GE(wire_tag(kSpareWireTag - 1, ~std::size_t{0}), 0);
}

TEST(WireTag, TagsThatDoNotFitAreRefused) {
  EXPECT_THROW(wire_tag(kSpareWireTag, 1), std::invalid_argument);
  EXPECT_THROW(wire_tag(kWireTags, 1), std::invalid_argument);
}

}  // namespace
}  // namespace thinwire::wire_tag_test
