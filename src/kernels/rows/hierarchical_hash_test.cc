#include "kernels/rows/hash_partition.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <thread>

#include "kernels/test_executors.h"

namespace thinwire::hierarchical_hash_test {
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
      expect_lossless(HierarchicalHashParameters{}.shape(count, owners), count, 1);
      expect_lossless(HierarchicalHashParameters{}.shape(count, owners), count, 4);
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
  HierarchicalHash table(HierarchicalHashParameters{}.shape(kCount, 1), kStream);
  for (std::uint32_t i = 0; i < kCount; ++i) table.insert(i, 0);
  // Three tries at a load of at most one half: below (1/2)^3 of the indices at the very end, so below 1/24 of
  // all.
  EXPECT_GT(table.serial_count(0), 0u);
  EXPECT_LT(table.serial_count(0), kCount / 24);
}

TEST(HierarchicalHash, IndexZeroIsNotMistakenForAnEmptySlot) {
  HierarchicalHash table(HierarchicalHashParameters{}.shape(1, 1), kStream);
  table.insert(0, 0);
  EXPECT_EQ(table.extract(0), std::vector<std::uint32_t>{0});
}

// --- Of positions, on every executor.

/// Every index once, to the owner that the first-level hash names, in order: whatever the memory, and with as
/// many in the serial area as the definition puts there.
TEST(SplitPositionsByHash, GivesEveryIndexOnceToItsOwner) {
  for_each_executor([&](Executor& executor, const std::string& name) {
    const bool in_turn = name.find("1 thread") != std::string::npos;
    for (const std::size_t count : {0u, 1u, 65u, 20'011u}) {
      for (const std::size_t owners : {1u, 3u, 16u}) {
        const auto paper = HierarchicalHashParameters{}.shape(count, owners);
        for (const auto& [slots, rounds] : {std::pair{paper.slots, 3},
                                            {paper.slots, 6},
                                            {std::size_t{5}, 1},
                                            {std::size_t{5}, 3},
                                            {std::size_t{0}, 3}}) {
          HierarchicalHashShape shape = paper;
          shape.slots = slots;
          shape.rounds = rounds;
          std::vector<std::uint32_t> indices(count), positions(count), serial(count);
          std::vector<std::uint32_t> table(owners * slots, 77);  // memory of another step
          std::vector<std::uint16_t> owner_of(count);
          std::vector<std::size_t> counts(owners, 0), cursors(owners);
          HierarchicalHash definition(shape, kStream);
          for (std::size_t k = 0; k < count; ++k) {
            indices[k] = static_cast<std::uint32_t>((k * 7919) % 1'000'003);
            owner_of[k] = static_cast<std::uint16_t>(k % 5 % owners);
            ++counts[owner_of[k]];
            definition.insert(indices[k], owner_of[k]);
          }
          std::size_t overflow = 0;
          {
            Placed placed_table(executor, table), placed_serial(executor, serial);
            Placed placed(executor, positions);
            overflow = split_positions_by_hash(
                executor, shape, kStream, Placed(executor, indices), Placed(executor, owner_of), counts,
                {.slots = placed_table, .serial = placed_serial, .cursors = cursors}, placed);
            positions = placed.read();
          }
          std::vector<std::uint32_t> wanted(count);
          std::iota(wanted.begin(), wanted.end(), 0u);
          std::stable_sort(wanted.begin(), wanted.end(),
                           [&](std::uint32_t a, std::uint32_t b) { return owner_of[a] < owner_of[b]; });
          ASSERT_EQ(positions, wanted) << name << " " << count << " " << owners << " " << slots;
          std::size_t least = 0;  // what no slot can be there for
          for (const std::size_t own : counts) least += own - std::min(own, slots);
          ASSERT_GE(overflow, least) << name;
          ASSERT_LE(overflow, count) << name;
          if (!in_turn) continue;  // who comes first decides who overflows
          std::size_t defined = 0;
          for (std::size_t p = 0; p < owners; ++p) defined += definition.serial_count(p);
          ASSERT_EQ(overflow, defined) << name << " " << count << " " << owners << " " << slots;
        }
      }
    }
  });
}

/// How many of these, all of one owner, find no slot.
std::size_t overflow_of(Executor& executor, const HierarchicalHashShape& shape,
                        const std::vector<std::uint32_t>& indices) {
  const std::vector<std::uint16_t> owner_of(indices.size(), 0);
  const std::vector<std::uint32_t> room(indices.size()), slots(shape.slots);
  const std::vector<std::size_t> counts = {indices.size()};
  std::vector<std::size_t> cursors(1);
  Placed placed_slots(executor, slots), placed_serial(executor, room), positions(executor, room);
  return split_positions_by_hash(
      executor, shape, kStream, Placed(executor, indices), Placed(executor, owner_of), counts,
      {.slots = placed_slots, .serial = placed_serial, .cursors = cursors}, positions);
}

TEST(SplitPositionsByHash, TriesEverySlotThatTheHashesGive) {
  // With few slots and many hashes the slots fill up; one index alone always finds its first slot.
  for_each_executor([&](Executor& executor, const std::string& name) {
    std::vector<std::uint32_t> indices(300);
    std::iota(indices.begin(), indices.end(), 0u);
    EXPECT_EQ(overflow_of(executor, {.owners = 1, .slots = 10, .rounds = 9}, indices), 290u) << name;
    EXPECT_EQ(overflow_of(executor, {.owners = 1, .slots = 10, .rounds = 1}, {4}), 0u) << name;
  });
}

TEST(SplitPositionsByHash, SaysWhenTheSerialAreaIsTooSmall) {
  // One slot and one hash: all but one index find none, and the split succeeds with room for exactly these.
  for_each_executor([&](Executor& executor, const std::string& name) {
    const HierarchicalHashShape shape{.owners = 1, .slots = 1, .rounds = 1};
    const std::vector<std::uint32_t> indices = {5, 9, 2, 7};
    const std::vector<std::uint16_t> owner_of(4, 0);
    const std::vector<std::size_t> counts = {4};
    std::vector<std::size_t> cursors(1);
    for (const std::size_t room : {0u, 2u, 3u}) {
      Placed slots(executor, std::vector<std::uint32_t>(1, 77));
      Placed serial(executor, std::vector<std::uint32_t>(room + 1, 77));
      Placed positions(executor, std::vector<std::uint32_t>(4));
      const Span<std::uint32_t> all = serial;
      EXPECT_EQ(split_positions_by_hash(
                    executor, shape, kStream, Placed(executor, indices), Placed(executor, owner_of), counts,
                    {.slots = slots, .serial = all.first(room), .cursors = cursors}, positions),
                3u)
          << name << " " << room;
      EXPECT_EQ(serial.read()[room], 77u) << "nothing is written behind the area; " << name;
      if (room == 3) {
        EXPECT_EQ(positions.read(), (std::vector<std::uint32_t>{0, 1, 2, 3})) << name;
      }
    }
  });
}

TEST(HierarchicalHashParameters, AreThePapersMemory) {
  const auto paper = HierarchicalHashParameters{}.shape(1000, 16);
  EXPECT_EQ(paper.slots, 125u);  // r1 = 2 nnz over 16 owners
  EXPECT_EQ(paper.serial_room, 12u);
  EXPECT_EQ(paper.rounds, 3);
  const auto other = HierarchicalHashParameters{.hashes = 5, .slots = 0.5, .serial = 1}.shape(1001, 2);
  EXPECT_EQ(other.slots, 251u);
  EXPECT_EQ(other.serial_room, 251u);
  EXPECT_EQ(other.rounds, 5);
  EXPECT_EQ(HierarchicalHashParameters{}.shape(0, 4).slots, 0u);
}

// --- What the paper holds against it.

TEST(FindOwnersByThresholds, IsADefinitionByCounting) {
  const std::vector<std::uint32_t> slots = {0, 3, 4, 5, 9, 40, 41, 99};
  for (const std::vector<std::uint32_t>& thresholds :
       {std::vector<std::uint32_t>{}, {0}, {100}, {4}, {4, 4, 42}, {0, 0, 0}, {1, 41, 99, 100}}) {
    std::vector<std::uint16_t> owner_of(slots.size(), 77);
    std::vector<std::size_t> counts(thresholds.size() + 1, 77), wanted(counts.size());
    find_owners_by_thresholds(slots, thresholds, owner_of, counts);
    for (std::size_t k = 0; k < slots.size(); ++k) {
      const auto owner =
          std::ranges::count_if(thresholds, [&](std::uint32_t begin) { return begin <= slots[k]; });
      ASSERT_EQ(owner_of[k], owner) << k;
      ++wanted[static_cast<std::size_t>(owner)];
    }
    ASSERT_EQ(counts, wanted);
  }
  std::vector<std::size_t> counts(3, 77);
  const std::vector<std::uint32_t> two = {1, 2};
  find_owners_by_thresholds({}, two, {}, counts);
  EXPECT_EQ(counts, std::vector<std::size_t>(3, 0));
}

TEST(CutEvenly, GivesEveryOwnerAsManyOfTheUnion) {
  for (const std::size_t owners : {1u, 2u, 3u, 16u}) {
    for (const std::size_t count : {1u, 2u, 15u, 16u, 1001u}) {
      std::vector<std::uint32_t> slots(count);
      for (std::size_t k = 0; k < count; ++k) slots[k] = static_cast<std::uint32_t>(k * k + 5);
      std::vector<std::uint32_t> thresholds(owners - 1);
      cut_evenly(slots, thresholds);
      std::vector<std::uint16_t> owner_of(count);
      std::vector<std::size_t> counts(owners);
      find_owners_by_thresholds(slots, thresholds, owner_of, counts);
      for (const std::size_t one : counts) {
        EXPECT_GE(one, count / owners);
        EXPECT_LE(one, (count + owners - 1) / owners);
      }
    }
  }
}

/// Algorithm 3 as the paper writes it, index by index, in maps.
TEST(SplitByLossyHash, LosesWhatIsOverwritten) {
  for (const int threads : {1, 3}) {
    const auto executor = make_cpu_executor(threads);
    for (const std::size_t owners : {1u, 3u, 16u}) {
      for (const std::size_t slots : {1u, 40u, 1000u, 20'000u}) {
        constexpr std::size_t kCount = 20'011;
        std::vector<std::uint32_t> indices(kCount), memory(owners * slots, 77), split(kCount);
        std::map<std::pair<std::size_t, std::size_t>, std::vector<std::uint32_t>> written;
        for (std::size_t k = 0; k < kCount; ++k) {
          indices[k] = static_cast<std::uint32_t>((k * 7919) % 1'000'003);  // 0 among them
          const std::size_t h = lossy_hash_place(kStream, indices[k], owners * slots);
          ASSERT_LT(h, owners * slots);
          written[{h / slots, h % slots}].push_back(indices[k]);
        }
        std::vector<std::size_t> counts(owners, 77), wanted(owners);
        const std::size_t survivors = split_by_lossy_hash(*executor, kStream, indices, memory, split, counts);
        ASSERT_EQ(survivors, written.size());
        std::size_t at = 0;
        for (const auto& [place, candidates] : written) {
          ++wanted[place.first];
          if (threads == 1) {
            ASSERT_EQ(split[at], candidates.back());
          } else {
            ASSERT_NE(std::ranges::find(candidates, split[at]), candidates.end());
          }
          ++at;
        }
        ASSERT_EQ(counts, wanted);
      }
    }
  }
}

/// m indices in r entries: r (1 - (1 - 1/r)^m) of them survive on average.
TEST(SplitByLossyHash, LosesTheShareThatChanceGives) {
  const auto executor = make_cpu_executor(1);
  constexpr std::size_t kCount = 100'000;
  std::vector<std::uint32_t> indices(kCount), split(kCount);
  for (std::size_t k = 0; k < kCount; ++k) indices[k] = static_cast<std::uint32_t>(3 * k);
  for (const auto& [entries, lost] :
       {std::pair{100'000u, 0.36788}, {250'000u, 0.17580}, {1'000'000u, 0.04837}}) {
    std::vector<std::uint32_t> memory(entries);
    std::vector<std::size_t> counts(16);
    memory.resize(entries / 16 * 16);
    const auto survivors =
        static_cast<double>(split_by_lossy_hash(*executor, kStream, indices, memory, split, counts));
    EXPECT_NEAR(1 - survivors / kCount, lost, 0.004) << entries;
  }
}

TEST(SplitByLossyHash, RefusesMemoryThatOwnersCannotShare) {
  const auto executor = make_cpu_executor(1);
  std::vector<std::uint32_t> memory(7), split(1);
  const std::vector<std::uint32_t> indices = {4};
  std::vector<std::size_t> counts(2);
  EXPECT_THROW(split_by_lossy_hash(*executor, kStream, indices, memory, split, counts),
               std::invalid_argument);
  EXPECT_THROW(split_by_lossy_hash(*executor, kStream, indices, {}, split, counts), std::invalid_argument);
}

}  // namespace
}  // namespace thinwire::hierarchical_hash_test
