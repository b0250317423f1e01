#pragma once
// Gradients drawn at random, the same in every run.

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

namespace thinwire {

inline std::vector<float> normal_values(std::size_t count, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (auto& value : values) value = normal(random);
  return values;
}

/// Normal times log-normal: most are far below the largest.
inline std::vector<float> heavy_tailed(std::size_t count, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (auto& value : values) value = 1e-3f * normal(random) * std::exp(1.5f * normal(random));
  return values;
}

}  // namespace thinwire
