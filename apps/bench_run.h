#pragma once
// One system timed on one bucket, on any engine.

#include <string>

#include "apps/gradients/gradient_source.h"
#include "apps/measurement.h"
#include "thinwire/communicator.h"

namespace thinwire::apps {

struct BenchRunOptions {
  int warm_up = kWarmUpSteps;
  int steps = 10;  ///< Measured, after those.
  int threads = 1;
  std::uint64_t seed = 1;
  /// What else must be the same on all ranks.
  std::string configuration;
};

/// The gradient of step 0 in every step. Collective; every rank gets the same measurement but for densities,
/// which are its own.
Measurement bench_run(const std::string& spec, const GradientSource& source, Communicator& communicator,
                      const BenchRunOptions& options);

}  // namespace thinwire::apps
