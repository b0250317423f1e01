#include "thinwire/workspace.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>

namespace thinwire::workspace_test {
namespace {

TEST(Workspace, SpansAreAlignedAndDisjoint) {
  Workspace workspace;
  const auto a = workspace.take<float>(100);
  const auto b = workspace.take<std::byte>(1);
  const auto c = workspace.take<std::uint64_t>(1'000'000);
  for (const void* pointer : {static_cast<const void*>(a.data()), static_cast<const void*>(b.data()),
                              static_cast<const void*>(c.data())}) {
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(pointer) % 64, 0u);
  }
  std::memset(a.data(), 1, a.size_bytes());
  std::memset(c.data(), 2, c.size_bytes());
  std::memset(b.data(), 3, 1);
  EXPECT_EQ(reinterpret_cast<const unsigned char*>(a.data())[a.size_bytes() - 1], 1);
  EXPECT_EQ(reinterpret_cast<const unsigned char*>(c.data())[0], 2);
}

TEST(Workspace, SameRequestsAfterResetNeverAllocate) {
  Workspace workspace;
  auto step = [&] {
    workspace.reset();
    for (const std::size_t size : {10u, 70'000u, 64u, 3u, 1'000'000u, 5u}) workspace.take<std::byte>(size);
  };
  step();
  step();  // several blocks have become one
  const std::size_t allocations = workspace.allocations();
  const std::size_t capacity = workspace.capacity_bytes();
  for (int i = 0; i < 10; ++i) step();
  EXPECT_EQ(workspace.allocations(), allocations);
  EXPECT_EQ(workspace.capacity_bytes(), capacity);
}

TEST(Workspace, ALittleMoreThanBeforeFits) {
  Workspace workspace;
  for (const std::size_t size : {100'000u, 200'000u}) workspace.take<std::byte>(size);
  workspace.reset();
  const std::size_t allocations = workspace.allocations();
  for (const std::size_t size : {120'000u, 240'000u}) workspace.take<std::byte>(size);
  workspace.reset();
  EXPECT_EQ(workspace.allocations(), allocations);
}

TEST(Workspace, EmptyRequestIsEmpty) {
  Workspace workspace;
  EXPECT_TRUE(workspace.take<float>(0).empty());
}

}  // namespace
}  // namespace thinwire::workspace_test
