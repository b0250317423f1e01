#pragma once
// What `thinwire simulate` does: systems times workers, densities and gammas, each held against dense.

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "apps/gradients/synthetic.h"
#include "apps/simulation.h"

namespace thinwire::apps {

struct SweepOptions {
  std::string sync = "dense";
  std::string codec = "off";
  std::string link = "25Gbit:20us";
  double scale = 1;
  int ranks_per_host = 1;  ///< Above 1 the ranks of a host act as one worker, and the link is the host's.
  std::string inside;      ///< Then each rank's link to others of its host.
  std::vector<int> workers = {16, 32, 64, 128};
  std::vector<double> densities = {1};
  std::vector<double> gammas;    ///< Empty: the skew is gradient.zipf.
  SyntheticGradient gradient{};  ///< Density and gamma come from the lists.
  int warm_up = kWarmUpSteps;
  int steps = 1;
  bool errors = false;                      ///< See SimulationOptions.
  std::vector<std::string> gradient_files;  ///< Instead of a synthetic gradient; they say how many workers.
  double bucket_megabytes = 25;             ///< Of the files' dense tensors.
};

/// Runs everything and returns one object per system and point, in order; `show` sees each as it is done. If
/// `sync` does not name dense it comes first, as the yardstick. Throws std::invalid_argument, before anything
/// runs, for specs, links, codecs and points that cannot be.
nlohmann::ordered_json run_sweep(const SweepOptions& options,
                                 const std::function<void(const nlohmann::ordered_json&)>& show);

}  // namespace thinwire::apps
