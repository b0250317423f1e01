#include "core/hashes.h"

#include <gtest/gtest.h>

#include <set>
#include <vector>

namespace thinwire::content_hash_test {
namespace {

std::uint64_t hash_of(const std::vector<std::byte>& bytes, std::uint64_t seed = 0) {
  return content_hash(Span<const std::byte>(bytes.data(), bytes.size()), seed);
}

TEST(ContentHash, EveryBitLengthAndSeedCounts) {
  std::set<std::uint64_t> hashes;
  std::size_t count = 0;
  for (const std::size_t size : {0u, 1u, 7u, 8u, 31u, 32u, 33u, 100u}) {
    std::vector<std::byte> bytes(size);
    for (const std::uint64_t seed : {0u, 1u}) {
      hashes.insert(hash_of(bytes, seed));
      ++count;
      for (std::size_t bit = 0; bit < 8 * size; ++bit) {
        bytes[bit / 8] ^= std::byte{1} << (bit % 8);
        hashes.insert(hash_of(bytes, seed));
        ++count;
        bytes[bit / 8] ^= std::byte{1} << (bit % 8);
      }
    }
  }
  EXPECT_EQ(hashes.size(), count);
}

TEST(ContentHash, PlacesCount) {
  std::vector<std::byte> one(96);
  std::vector<std::byte> other(96);
  one[3] = other[35] = std::byte{1};
  EXPECT_NE(hash_of(one), hash_of(other));
}

}  // namespace
}  // namespace thinwire::content_hash_test
