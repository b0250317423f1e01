#pragma once
// Steps of a session whose gradients follow from rank and step alone: for tests and fuzzers of whole
// exchanges.

#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "thinwire/session.h"

namespace thinwire {

namespace seeded {
inline constexpr std::size_t kElements = 200;
inline constexpr std::size_t kRows = 40;
inline constexpr std::size_t kWidth = 3;
}  // namespace seeded

/// The one bucket of these sessions: a table of rows, or dense.
inline void add_bucket(Session& session, bool rows) {
  using namespace seeded;
  if (rows) {
    session.add_rows("table", kRows, kWidth);
  } else {
    session.add_bucket({{"a", 120, 12}, {"b", kElements - 120}});
  }
}

/// One step of a rank with a gradient of its own; the mean as floats.
inline std::vector<float> run_step(Session& session, bool rows) {
  using namespace seeded;
  const auto seed = static_cast<std::uint32_t>(session.step() * 16 + 1) +
                    static_cast<std::uint32_t>(session.communicator().rank());
  std::minstd_rand random(seed);
  const auto value = [&] { return static_cast<float>(random() % 2048) / 256.0f - 4.0f; };
  std::vector<float> mean;
  if (rows) {
    std::vector<std::uint32_t> indices;
    for (std::uint32_t row = 0; row < kRows; ++row) {
      if (random() % 4 == 0) indices.push_back(row);
    }
    std::vector<float> values(indices.size() * kWidth);
    for (auto& one : values) one = value();
    const RowSparse result = session.synchronize_rows(
        0, {.row_indices = indices, .values = values, .rows = kRows, .width = kWidth});
    for (const std::uint32_t index : result.row_indices) mean.push_back(static_cast<float>(index));
    mean.insert(mean.end(), result.values.begin(), result.values.end());
  } else {
    // Blocks of zeros, for those who look for them.
    mean.resize(kElements);
    for (std::size_t i = 0; i < kElements; ++i) {
      const float one = value();
      mean[i] = i / 20 % 3 == seed % 3 ? 0 : one;
    }
    session.synchronize(0, mean);
  }
  session.next_step();
  return mean;
}

}  // namespace thinwire
