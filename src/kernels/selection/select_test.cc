#include "kernels/selection/select.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>

#include "kernels/test_executors.h"
#include "kernels/test_vectors.h"

namespace thinwire::select_test {
namespace {

std::vector<float> sum_of(const std::vector<float>& gradient, const std::vector<float>& residual) {
  auto p = gradient;
  for (std::size_t i = 0; i < residual.size(); ++i) p[i] += residual[i];
  return p;
}

/// The definition: sorted by (|p| descending, index ascending), zeros dropped, the first k, by index.
std::vector<std::uint32_t> sorted_largest(const std::vector<float>& p, std::size_t k) {
  std::vector<std::uint32_t> order(p.size());
  std::iota(order.begin(), order.end(), 0u);
  std::erase_if(order, [&](std::uint32_t i) { return p[i] == 0; });
  std::stable_sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
    return magnitude_bits(p[a]) > magnitude_bits(p[b]);
  });
  order.resize(std::min(k, order.size()));
  std::sort(order.begin(), order.end());
  return order;
}

std::vector<std::uint32_t> indices_of(const Selection& selection) {
  return {selection.indices.begin(), selection.indices.end()};
}

void expect_values(const Selection& selection, const std::vector<float>& p) {
  ASSERT_EQ(selection.indices.size(), selection.values.size());
  for (std::size_t k = 0; k < selection.size(); ++k) {
    const float expected = p[selection.indices[k]];
    ASSERT_EQ(std::memcmp(&selection.values[k], &expected, sizeof(float)), 0) << k;
  }
}

/// Values that take few different magnitudes.
std::vector<float> values_with_ties(std::size_t count) {
  auto values = test_values(count, 9);
  for (auto& value : values) value = std::round(2 * value);
  return values;
}

TEST(Select, TheLargestAreThoseOfASort) {
  for (const std::size_t elements : {0u, 1u, 15u, 63u, 64u, 65u, 1000u, 4097u, 70'001u, 300'003u}) {
    const auto normal = test_values(elements, 1);
    const auto residual = test_values(elements, 2);
    const auto ties = values_with_ties(elements);
    const std::vector<float> none;
    for (const auto& [gradient, left] :
         {std::pair{&normal, &none}, std::pair{&normal, &residual}, std::pair{&ties, &none}}) {
      const auto p = sum_of(*gradient, *left);
      for (const std::size_t k :
           {std::size_t{0}, std::size_t{1}, elements / 1000, elements / 10, elements, elements + 5}) {
        // Emulations and sanitizers are slow.
        const bool slow = elements > 100'000 && k != elements / 1000;
        if (kSanitized && slow) continue;
        const auto expected = sorted_largest(p, k);
        for_each_executor([&, gradient = gradient, left = left](Executor& executor, const std::string& name) {
          if (executor.memory() != Memory::host && slow) return;
          SCOPED_TRACE(testing::Message() << name << " n " << elements << " k " << k);
          Placed g(executor, *gradient);
          Placed r(executor, *left);
          Workspace workspace(executor.shared_allocator());
          const Selection largest = select_largest(executor, workspace, g, r, k);
          ASSERT_EQ(indices_of(largest), expected);
          expect_values(largest, p);
          const MagnitudeCut cut = cut_of_largest(executor, g, r, k);
          const Selection candidates = select_at_least(executor, workspace, g, r, cut.bits);
          expect_values(candidates, p);
          ASSERT_EQ(indices_of(apply_cut(candidates, cut)), expected);
        });
      }
    }
  }
}

TEST(Select, AResidualInOtherMemoryIsBroughtAndVectorsMayBeginAnywhere) {
  for_each_executor([&](Executor& executor, const std::string& name) {
    Workspace workspace(executor.shared_allocator());
    const auto gradient = test_values(10'000, 1);
    const auto residual = test_values(10'000, 2);
    const auto pinned = workspace.take<float>(residual.size());
    std::copy(residual.begin(), residual.end(), pinned.begin());
    const auto p = sum_of(gradient, residual);
    const auto expected = sorted_largest(p, 100);
    Placed g(executor, gradient);
    EXPECT_EQ(indices_of(select_largest(executor, workspace, g, residual, 100)), expected) << name;
    EXPECT_EQ(indices_of(select_largest(executor, workspace, g, pinned, 100)), expected) << name;
    Workspace pageable;
    EXPECT_EQ(indices_of(select_largest(executor, pageable, g, pinned, 100)), expected) << name;
    const std::vector<float> tail(p.begin() + 3, p.end());
    const auto cut = g.span().subspan(3, tail.size());
    const Selection of_tail = select_largest(executor, workspace, cut, pinned.subspan(3, tail.size()), 100);
    EXPECT_EQ(indices_of(of_tail), sorted_largest(tail, 100)) << name;
    expect_values(of_tail, tail);
  });
}

TEST(Select, NanIsLargestAndInfinityNext) {
  const float infinity = std::numeric_limits<float>::infinity();
  for_each_executor([&](Executor& executor, const std::string& name) {
    Workspace workspace(executor.shared_allocator());
    auto values = test_values(1000, 3);
    values[17] = -infinity;
    values[400] = std::numeric_limits<float>::quiet_NaN();
    values[900] = 3e38f;
    Placed placed(executor, values);
    auto largest = [&](std::size_t k) {
      return indices_of(select_largest(executor, workspace, placed, {}, k));
    };
    EXPECT_EQ(largest(1), (std::vector<std::uint32_t>{400})) << name;
    EXPECT_EQ(largest(2), (std::vector<std::uint32_t>{17, 400})) << name;
    EXPECT_EQ(largest(3), (std::vector<std::uint32_t>{17, 400, 900})) << name;
  });
}

TEST(Select, ADeceptiveSampleChangesNothing) {
  // Nearly everything that is large lies in one place, so that a sample sees too much of it or nothing.
  for (const std::size_t heavy : {100u, 5000u, 299'000u}) {
    auto values = test_values(300'000, 4);
    for (std::size_t i = 0; i < values.size(); ++i) values[i] *= i < heavy ? 1.0f : 1e-3f;
    for (const std::size_t k : {1u, 50u, 3000u, 290'000u}) {
      const auto expected = sorted_largest(values, k);
      for_each_executor([&](Executor& executor, const std::string& name) {
        Workspace workspace(executor.shared_allocator());
        EXPECT_EQ(indices_of(select_largest(executor, workspace, Placed(executor, values), {}, k)), expected)
            << name << " " << heavy << " heavy, k " << k;
      });
    }
  }
}

TEST(Select, AllEqualTakesTheFirst) {
  const std::vector<float> values(300'000, -2.5f);
  const std::vector<float> zeros(300'000, -0.0f);
  for_each_executor([&](Executor& executor, const std::string& name) {
    Workspace workspace(executor.shared_allocator());
    const Selection selection = select_largest(executor, workspace, Placed(executor, values), {}, 1234);
    ASSERT_EQ(selection.size(), 1234u) << name;
    for (std::uint32_t i = 0; i < 1234; ++i) ASSERT_EQ(selection.indices[i], i) << name;
    EXPECT_EQ(select_largest(executor, workspace, Placed(executor, zeros), {}, 1234).size(), 0u) << name;
  });
}

TEST(Select, WhatIsChosenTakesNoMoreMemoryThanThatOnADevice) {
  if (cuda_devices() == 0) GTEST_SKIP() << "no CUDA device";
  const auto executor = make_cuda_executor(0);
  Workspace workspace(executor->shared_allocator());
  const auto values = test_values(300'000, 5);
  select_largest(*executor, workspace, Placed(*executor, values), {}, 100);
  EXPECT_LT(workspace.capacity_bytes(), 100'000u);
}

TEST(Select, ASampledThresholdPassesAboutAsManyAsAskedFor) {
  constexpr std::size_t kElements = 1'000'000;
  Workspace workspace;
  const auto executor = make_cpu_executor(1);
  const auto values = test_values(kElements, 5);
  for (const std::size_t k : {1000u, 10'000u, 250'000u}) {
    // k/100 of the sample pass; their number varies by at most its square root, 4 sigma with fixed seeds.
    const double spread = 4 / std::sqrt(static_cast<double>(k) / 100);
    for (std::uint32_t seed = 0; seed < 20; ++seed) {
      workspace.reset();
      const std::uint32_t threshold =
          sampled_threshold(*executor, workspace, values, {}, k, kElements / 100, 0, seed * 0x01234567);
      const auto passing = std::count_if(values.begin(), values.end(),
                                         [&](float value) { return magnitude_bits(value) >= threshold; });
      const double share = static_cast<double>(passing) / static_cast<double>(k);
      EXPECT_GT(share, 1 - spread) << k;
      EXPECT_LT(share, 1 / std::max(0.1, 1 - spread)) << k;
    }
  }
  EXPECT_EQ(sampled_threshold(*executor, workspace, {}, {}, 1, 10, 0, 0), 0u);
  EXPECT_EQ(sampled_threshold(*executor, workspace, values, {}, kElements, 10, 1, 0), 0u);
}

TEST(Select, ASampledThresholdIsTheSameEverywhere) {
  const auto values = test_values(100'000, 6);
  const auto residual = test_values(100'000, 7);
  std::vector<std::uint32_t> first;
  for_each_executor([&](Executor& executor, const std::string& name) {
    Workspace workspace(executor.shared_allocator());
    Placed g(executor, values);
    Placed r(executor, residual);
    std::vector<std::uint32_t> thresholds;
    for (const std::uint32_t seed : {0u, 0x87654321u}) {
      for (const std::size_t sample : {std::size_t{7}, std::size_t{5000}}) {
        for (const std::size_t k : {std::size_t{1}, std::size_t{30'000}, values.size()}) {
          for (const double safety : {0.0, 4.0}) {
            thresholds.push_back(sampled_threshold(executor, workspace, g, r, k, sample, safety, seed));
          }
        }
      }
    }
    if (first.empty()) first = thresholds;
    EXPECT_EQ(thresholds, first) << name;
  });
}

}  // namespace
}  // namespace thinwire::select_test
