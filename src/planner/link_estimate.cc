#include "planner/link_estimate.h"

#include <algorithm>
#include <utility>

namespace thinwire {

void LinkEstimate::end_step(double seconds, bool usual, bool replaced) {
  if (exchanges_.empty()) return;
  const std::size_t buckets = exchanges_.size();
  const double first = exchanges_.front().began;
  const double rest = std::max(0.0, seconds - (exchanges_.back().ended - first));
  if (compute_.ready.size() != buckets) {
    costs_.clear();
    compute_.ready.assign(buckets, seconds);
    compute_.rest = rest;
  }
  compute_.rest = std::min(compute_.rest, rest);
  std::vector<BucketCost> costs;
  for (std::size_t i = 0; i < buckets; ++i) {
    compute_.ready[i] = std::min(compute_.ready[i], exchanges_[i].began - first);
    costs.push_back(exchanges_[i].cost);
  }
  compute_.backward_end = compute_.ready.back();
  if (usual && replaced && replaced_.insert(candidate_).second) costs_[candidate_].clear();
  if (usual) costs_[candidate_].push_back(std::move(costs));
}

std::vector<double> LinkEstimate::seconds(std::size_t candidate) const {
  const StepResources resources{
      .bytes_per_second = link_.bytes_per_second / static_cast<double>(sharing_),
      .latency_seconds = link_.latency_seconds,
      .lanes = 1,
  };
  std::vector<double> seconds;
  const auto found = costs_.find(candidate);
  if (found == costs_.end()) return seconds;
  for (const auto& costs : found->second) seconds.push_back(step_cost(costs, compute_, resources).step);
  return seconds;
}

}  // namespace thinwire
