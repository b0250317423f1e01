#include "core/philox.h"

#include <gtest/gtest.h>

#include <set>

namespace thinwire::philox_test {
namespace {

// Known answers published with the authors' Random123 library (kat_vectors, philox 4x32 10).
TEST(Philox, PublishedVectors) {
  EXPECT_EQ(philox4x32({0, 0, 0, 0}, {0, 0}),
            (PhiloxCounter{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox4x32({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}),
            (PhiloxCounter{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (PhiloxCounter{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Philox, EveryPartOfTheNameChangesTheStream) {
  std::set<PhiloxCounter> blocks;
  auto add = [&](std::uint64_t seed, std::uint64_t step, std::uint32_t bucket, RandomPurpose purpose,
                 std::uint32_t rank, std::uint32_t hop) {
    blocks.insert(random_stream(seed, step, bucket, purpose, rank, hop).block(0, 0));
  };
  add(1, 2, 3, RandomPurpose::merge, 4, 5);
  add(1 + (1ull << 40), 2, 3, RandomPurpose::merge, 4, 5);
  add(2, 2, 3, RandomPurpose::merge, 4, 5);
  add(1, 3, 3, RandomPurpose::merge, 4, 5);
  add(1, 2 + (1ull << 40), 3, RandomPurpose::merge, 4, 5);
  add(1, 2, 4, RandomPurpose::merge, 4, 5);
  add(1, 2, 3, RandomPurpose::tie, 4, 5);
  add(1, 2, 3, RandomPurpose::merge, 5, 5);
  add(1, 2, 3, RandomPurpose::merge, 4, 6);
  EXPECT_EQ(blocks.size(), 9u);
}

static_assert(philox4x32({0, 0, 0, 0}, {0, 0})[0] == 0x6627e8d5, "usable at compile time");

}  // namespace
}  // namespace thinwire::philox_test
