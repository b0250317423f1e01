#include "kernels/rows/nonzeros.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "kernels/test_executors.h"
#include "kernels/test_vectors.h"

namespace thinwire::nonzeros_test {
namespace {

struct Found {
  std::vector<std::uint32_t> indices;
  std::vector<float> values;
};

/// The definition.
Found scalar_find(const std::vector<float>& gradient, const std::vector<float>& residual) {
  Found found;
  for (std::size_t i = 0; i < gradient.size(); ++i) {
    const float p = residual.empty() ? gradient[i] : gradient[i] + residual[i];
    if (p == 0) continue;
    found.indices.push_back(static_cast<std::uint32_t>(i));
    found.values.push_back(p);
  }
  return found;
}

void expect_same(const Found& found, const Found& wanted, const std::string& where) {
  ASSERT_EQ(found.indices, wanted.indices) << where;
  ASSERT_EQ(found.values.size(), wanted.values.size()) << where;
  ASSERT_EQ(0, found.values.empty() ? 0
                                    : std::memcmp(found.values.data(), wanted.values.data(),
                                                  found.values.size() * sizeof(float)))
      << where;
}

void expect_found(Executor& executor, const std::vector<float>& gradient, const std::vector<float>& residual,
                  const std::string& name) {
  const std::string where = name + ", " + std::to_string(gradient.size()) + " elements";
  const Found wanted = scalar_find(gradient, residual);
  Placed g(executor, gradient);
  Placed r(executor, residual);
  Workspace workspace(executor.shared_allocator());
  const Elements listed = find_nonzeros(executor, g, r, workspace);
  expect_same({{listed.indices.begin(), listed.indices.end()}, {listed.values.begin(), listed.values.end()}},
              wanted, where);
}

TEST(FindNonzeros, AgreesWithALoopForEveryDensity) {
  for_each_executor([&](Executor& executor, const std::string& name) {
    for (const std::size_t size : kTestSizes) {
      for (const std::uint32_t every : {1u, 2u, 50u, 1'000'000u}) {
        if (executor.memory() == Memory::cuda && size > 10'000 && every != 50) continue;
        auto gradient = test_values(size, 1);
        for (std::size_t i = 0; i < size; ++i) {
          if (i * 7919 % every != 0) gradient[i] = i % 2 == 0 ? 0.0f : -0.0f;
        }
        expect_found(executor, gradient, {}, name);
        auto residual = test_values(size, 2);
        for (std::size_t i = 0; i < size; i += 3) residual[i] = -gradient[i];  // cancels
        expect_found(executor, gradient, residual, name);
      }
    }
  });
}

TEST(FindNonzeros, NanAndInfinityAreFound) {
  for_each_executor([&](Executor& executor, const std::string& name) {
    std::vector<float> gradient(100, 0.0f);
    gradient[3] = std::numeric_limits<float>::quiet_NaN();
    gradient[99] = std::numeric_limits<float>::infinity();
    expect_found(executor, gradient, {}, name);
  });
}

TEST(FindNonzeros, TakesFromADevicesWorkspaceOnlyWhatIsThere) {
  for_each_executor([&](Executor& executor, const std::string&) {
    if (executor.memory() == Memory::host) return;
    std::vector<float> gradient(100'000, 0.0f);
    gradient[77] = 1;
    Workspace workspace(executor.shared_allocator());
    find_nonzeros(executor, Placed(executor, gradient), {}, workspace);
    EXPECT_LT(workspace.capacity_bytes(), gradient.size() * sizeof(float));
  });
}

}  // namespace
}  // namespace thinwire::nonzeros_test
