#pragma once
// A model's buckets for `thinwire plan`, from as much as is known of it.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "planner/step_model.h"
#include "thinwire/state.h"

namespace thinwire::apps {

struct PlanLayoutOptions {
  std::optional<std::uint64_t> elements{};
  std::vector<std::string>
      shapes{};  ///< "512x2048*24": so many parameters of this shape, in the model's order.
  std::vector<std::uint64_t>
      buckets{};                 ///< Elements of each, in the order in which backward makes them ready.
  std::uint64_t width = 512;     ///< Of the square matrices that stand for parameters without a shape.
  double bucket_megabytes = 25;  ///< Of every bucket but the first, which has 1 MB, as DDP's have.
};

struct PlanLayout {
  std::vector<BucketLayout> buckets{};
  std::string assumed{};  ///< What was assumed of shapes, for people; empty: nothing.
};

/// Throws std::invalid_argument where nothing or too much is said, and for sizes that do not fit each other.
PlanLayout plan_layout(const PlanLayoutOptions& options);

/// A step of `seconds` without synchronization: a third is forward, the rest backward, which makes elements
/// ready at an even pace.
StepCompute even_compute(const std::vector<BucketLayout>& buckets, double seconds, double threads);

}  // namespace thinwire::apps
