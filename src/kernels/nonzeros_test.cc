#include "kernels/nonzeros.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "kernels/test_targets.h"
#include "kernels/test_vectors.h"

namespace thinwire {
namespace {

void expect_found(const std::vector<float>& gradient, const std::vector<float>& residual,
                  const std::string& target) {
  std::vector<std::uint32_t> wanted_indices;
  std::vector<float> wanted_values;
  for (std::size_t i = 0; i < gradient.size(); ++i) {
    const float p = residual.empty() ? gradient[i] : gradient[i] + residual[i];
    if (p == 0) continue;
    wanted_indices.push_back(static_cast<std::uint32_t>(i));
    wanted_values.push_back(p);
  }
  for (const int threads : {1, 3}) {
    const auto executor = make_cpu_executor(threads);
    std::vector<std::uint32_t> indices(gradient.size());
    std::vector<float> values(gradient.size());
    const std::size_t found = find_nonzeros(*executor, gradient, residual, indices, values);
    indices.resize(found);
    values.resize(found);
    ASSERT_EQ(indices, wanted_indices) << target << ", " << gradient.size() << " elements";
    ASSERT_EQ(0, found == 0 ? 0 : std::memcmp(values.data(), wanted_values.data(), found * sizeof(float)));
  }
}

TEST(FindNonzeros, AgreesWithALoopForEveryDensity) {
  for_each_target([&](const std::string& target) {
    for (const std::size_t size : kTestSizes) {
      for (const std::uint32_t every : {1u, 2u, 50u, 1'000'000u}) {
        auto gradient = test_values(size, 1);
        for (std::size_t i = 0; i < size; ++i) {
          if (i * 7919 % every != 0) gradient[i] = i % 2 == 0 ? 0.0f : -0.0f;
        }
        expect_found(gradient, {}, target);
        auto residual = test_values(size, 2);
        for (std::size_t i = 0; i < size; i += 3) residual[i] = -gradient[i];  // cancels
        expect_found(gradient, residual, target);
      }
    }
  });
}

TEST(FindNonzeros, NanAndInfinityAreFound) {
  for_each_target([&](const std::string& target) {
    std::vector<float> gradient(100, 0.0f);
    gradient[3] = std::numeric_limits<float>::quiet_NaN();
    gradient[99] = std::numeric_limits<float>::infinity();
    expect_found(gradient, {}, target);
  });
}

}  // namespace
}  // namespace thinwire
