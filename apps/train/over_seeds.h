#pragma once
// One system trained with several seeds: what it yields on average, and by how much chance moves it. A
// difference between two systems that is smaller than their spread says nothing.

#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "apps/train/results.h"

namespace thinwire::train {

struct Spread {
  std::size_t count = 0;
  double mean = -1;       ///< -1: of no values.
  double deviation = -1;  ///< Standard deviation of the sample (divided by count - 1); -1: of fewer than two.
};

Spread spread_of(const std::vector<double>& values);

/// The runs of one system, in the order in which they were trained; at least one.
struct OverSeeds {
  std::vector<const RunResult*> runs;
};

/// By label, in the order of their first runs. The results must outlive what is returned.
std::vector<OverSeeds> over_seeds(const std::vector<RunResult>& results);

/// Test accuracy, or of a text perplexity, after the last epoch, of runs that did not fail: "0.9012", "0.9012
/// +- 0.0031", "diverged", "diverged (1 of 3)".
std::string measure_of(const OverSeeds& system);

/// Keys seeds, finished (how many runs did not fail) and, over these, mean and deviation of test_accuracy and
/// perplexity; null where there is none.
nlohmann::ordered_json to_json(const OverSeeds& system);

}  // namespace thinwire::train
