#include "thinwire/span.h"

#include <gtest/gtest.h>

#include <array>
#include <string>
#include <type_traits>
#include <vector>

namespace thinwire::span_test {
namespace {

TEST(Span, TheKindOfMemorySurvivesEveryWayOfCopying) {
  float value = 0;
  Span<float> on_device(&value, 1, Memory::cuda);
  Span<float> copy = on_device;
  Span<const float> readable = on_device;
  const Span<const float> constant = readable;
  Span<const float> again = constant;
  EXPECT_EQ(copy.memory(), Memory::cuda);
  EXPECT_EQ(readable.memory(), Memory::cuda);
  EXPECT_EQ(again.memory(), Memory::cuda);
  EXPECT_EQ(on_device.subspan(0, 1).memory(), Memory::cuda);
  EXPECT_EQ(as_bytes(on_device).memory(), Memory::cuda);
  EXPECT_EQ(as_writable_bytes(on_device).memory(), Memory::cuda);
}

TEST(Span, ContainersAreHostMemory) {
  std::vector<int> vector = {1, 2, 3};
  const std::array<int, 2> array = {4, 5};
  EXPECT_EQ(Span<int>(vector).size(), 3u);
  EXPECT_EQ(Span<const int>(array)[1], 5);
  EXPECT_EQ(Span<const int>(vector).memory(), Memory::host);
  static_assert(!std::is_constructible_v<Span<int>, const std::vector<int>&>, "no writing to what is const");
  static_assert(!std::is_constructible_v<Span<int>, std::vector<int>>, "no span of a temporary");
}

TEST(Span, AnEmptyOneStaysEmptyWhenCut) {
  EXPECT_TRUE(Span<float>().subspan(100, 50).empty());
}

}  // namespace
}  // namespace thinwire::span_test
