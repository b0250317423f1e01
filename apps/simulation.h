#pragma once
// One system on one workload over a virtual network: how long a step would take
// with so many workers on this link.

#include <cstdint>
#include <string>
#include <vector>

#include "apps/codec.h"
#include "apps/gradients/gradient_source.h"
#include "apps/measurement.h"
#include "thinwire/virtual_network.h"

namespace thinwire::apps {

struct SimulationOptions {
  int workers = 4;
  /// Its scale is also the codec's: an element takes so many times as long.
  VirtualLink link{};
  /// With several ranks per host these act as one worker of the system, and the link is a host's. Its inside
  /// has the link's scale.
  VirtualHosts hosts{};
  CodecModel codec{};
  int warm_up = kWarmUpSteps;
  int steps = 1;
  std::uint64_t seed = 1;
  /// Whether to compare every measured step's mean with the exact one; the last one's error is always there.
  bool errors = false;
};

struct Simulation {
  Measurement measurement;
  /// See VirtualInterval; of the step whose time is the median.
  double formula_seconds = 0;
  std::size_t stages = 0;
  /// Elements that are not zero in some rank, divided by those of one rank, of the last step; a listed row's
  /// elements all count.
  double gamma = 1;
  /// |mean - exact| / |exact| of every measured step over all buckets, exact being the mean of gradient +
  /// residual; empty unless asked for.
  std::vector<double> relative_errors{};
  /// Of the same steps: of the elements whose exact mean is not 0, the share whose mean has its sign.
  std::vector<double> sign_agreements{};
};

/// The keys of the measurement, and `gamma`, `formula_seconds`, `stages`, `relative_errors`,
/// `sign_agreements`.
nlohmann::ordered_json to_json(const Simulation& simulation);

/// Throws what the system throws.
Simulation simulate(const std::string& spec, const GradientSource& source, const SimulationOptions& options);

}  // namespace thinwire::apps
