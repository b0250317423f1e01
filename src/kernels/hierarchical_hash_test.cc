#include "kernels/hierarchical_hash.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <thread>

namespace thinwire {
namespace {

const RandomStream kStream = random_stream(1, 2, 3, RandomPurpose::ownership);

/// Files 0, 7, 14, ... from several threads and checks that every owner has exactly its own.
void expect_lossless(const HierarchicalHashShape& shape, std::uint32_t count, int threads) {
  HierarchicalHash table(shape, kStream);
  std::vector<std::thread> workers;
  for (int t = 0; t < threads; ++t) {
    workers.emplace_back([&, t] {
      for (auto i = static_cast<std::uint32_t>(t); i < count; i += static_cast<std::uint32_t>(threads))
        table.insert(7 * i, 7 * i * 2654435761u % shape.owners);
    });
  }
  for (auto& worker : workers) worker.join();
  std::size_t total = 0;
  for (std::size_t owner = 0; owner < shape.owners; ++owner) {
    auto indices = table.extract(owner);
    std::sort(indices.begin(), indices.end());
    EXPECT_EQ(std::adjacent_find(indices.begin(), indices.end()), indices.end());
    for (const std::uint32_t index : indices) {
      ASSERT_EQ(index % 7, 0u);
      ASSERT_LT(index, 7 * count);
      ASSERT_EQ(index * 2654435761u % shape.owners, owner);
    }
    total += indices.size();
  }
  EXPECT_EQ(total, count);
}

TEST(HierarchicalHash, LosesNothing) {
  for (const std::size_t owners : {1u, 3u, 16u}) {
    for (const std::uint32_t count : {0u, 1u, 100u, 20'000u}) {
      expect_lossless(HierarchicalHashShape::for_nonzeros(count, owners), count, 1);
      expect_lossless(HierarchicalHashShape::for_nonzeros(count, owners), count, 4);
    }
  }
}

TEST(HierarchicalHash, AFullSerialAreaGrows) {
  for (const std::size_t slots : {0u, 1u, 50u}) {
    expect_lossless({.owners = 2, .slots = slots, .serial_room = 3, .rounds = 2}, 5000, 4);
  }
  HierarchicalHash table({.owners = 1, .slots = 10, .serial_room = 2}, kStream);
  for (std::uint32_t i = 0; i < 100; ++i) table.insert(i, 0);
  EXPECT_GE(table.serial_count(0), 90u);
  EXPECT_EQ(table.extract(0).size(), 100u);
}

TEST(HierarchicalHash, ThePapersMemoryLeavesLittleToTheSerialArea) {
  constexpr std::uint32_t kCount = 100'000;
  HierarchicalHash table(HierarchicalHashShape::for_nonzeros(kCount, 1), kStream);
  for (std::uint32_t i = 0; i < kCount; ++i) table.insert(i, 0);
  // Three tries at a load of at most one half: below (1/2)^3 of the indices at the very end, so below 1/24 of
  // all.
  EXPECT_GT(table.serial_count(0), 0u);
  EXPECT_LT(table.serial_count(0), kCount / 24);
}

TEST(HierarchicalHash, IndexZeroIsNotMistakenForAnEmptySlot) {
  HierarchicalHash table(HierarchicalHashShape::for_nonzeros(1, 1), kStream);
  table.insert(0, 0);
  EXPECT_EQ(table.extract(0), std::vector<std::uint32_t>{0});
}

}  // namespace
}  // namespace thinwire
