#pragma once
// Inputs for kernel tests: sizes around vector and word boundaries, and values that are easy to get wrong.

#include <array>
#include <cstdint>
#include <random>
#include <vector>

namespace thinwire {

inline constexpr std::array<std::size_t, 9> kTestSizes = {0, 1, 15, 63, 64, 65, 1000, 4097, 200'003};

/// Normal values with zeros, negative zeros and denormals among them.
inline std::vector<float> test_values(std::size_t count, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (auto& value : values) {
    switch (random() % 16) {
      case 0:
        value = 0.0f;
        break;
      case 1:
        value = -0.0f;
        break;
      case 2:
        value = -1e-42f;
        break;
      default:
        value = normal(random);
    }
  }
  return values;
}

}  // namespace thinwire
