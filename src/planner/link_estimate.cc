#include "planner/link_estimate.h"

#include <algorithm>

namespace thinwire {

void LinkEstimate::end_step(double seconds) {
  if (exchanges_.empty()) return;
  const std::size_t buckets = exchanges_.size();
  const double first = exchanges_.front().began;
  const double rest = std::max(0.0, seconds - (exchanges_.back().ended - first));
  const bool other_buckets = compute_.ready.size() != buckets;
  if (other_buckets) {
    costs_.clear();
    compute_.ready.assign(buckets, seconds);
    compute_.rest = rest;
  }
  compute_.rest = std::min(compute_.rest, rest);
  std::vector<BucketCost>& costs = costs_[candidate_];
  const bool is_new = costs.empty();
  costs.resize(buckets);
  for (std::size_t i = 0; i < buckets; ++i) {
    compute_.ready[i] = std::min(compute_.ready[i], exchanges_[i].began - first);
    const double before = costs[i].codec_seconds;
    costs[i] = exchanges_[i].cost;
    if (!is_new) costs[i].codec_seconds = std::min(costs[i].codec_seconds, before);
  }
  compute_.backward_end = compute_.ready.back();
}

std::optional<double> LinkEstimate::seconds(std::size_t candidate) const {
  const auto found = costs_.find(candidate);
  if (found == costs_.end()) return {};
  const StepResources resources{
      .bytes_per_second = link_.bytes_per_second / static_cast<double>(sharing_),
      .latency_seconds = link_.latency_seconds,
      .lanes = 1,
  };
  return step_cost(found->second, compute_, resources).step;
}

}  // namespace thinwire
