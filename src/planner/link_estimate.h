#pragma once
// How long steps would take over another link than the one at hand, from steps that were run on this one.

#include <cstddef>
#include <map>
#include <set>
#include <vector>

#include "planner/step_model.h"
#include "thinwire/virtual_network.h"

namespace thinwire {

/// Of a session on one rank. What its machine computes is measured, and the network's part is replaced.
class LinkEstimate {
 public:
  /// What the exchange of one bucket took. Times are of one clock.
  struct Exchange {
    double began = 0;
    double ended = 0;
    BucketCost cost{};
  };

  /// sharing: sessions of the rank that use the link at the same time, each for a part of the model.
  LinkEstimate(const VirtualLink& link, std::size_t sharing) : link_(link), sharing_(sharing) {}

  void begin_step(std::size_t candidate) {
    candidate_ = candidate;
    exchanges_.clear();
  }
  /// In the order of the buckets.
  void add(const Exchange& exchange) { exchanges_.push_back(exchange); }
  /// The step that began last took so many seconds, until the next one's first exchange. A step that is not
  /// ended says nothing. usual: it stands for the candidate's steps; else it is known for what training does.
  /// replaced: another system had some of it, so the candidate's steps before the first such one say nothing.
  void end_step(double seconds, bool usual, bool replaced = false);

  /// Of each of the candidate's usual steps: what it would have taken over the link.
  std::vector<double> seconds(std::size_t candidate) const;

 private:
  VirtualLink link_;
  std::size_t sharing_;
  std::size_t candidate_ = 0;
  std::vector<Exchange> exchanges_;  // of this step
  // Of the steps so far. A bucket comes late where the one before it was long under way, and training waits
  // for the last one. So the shortest times that any step has shown are training's own.
  StepCompute compute_{.threads = 0};
  std::map<std::size_t, std::vector<std::vector<BucketCost>>> costs_;  // of each step, by candidate
  std::set<std::size_t> replaced_;                                     // candidates
};

}  // namespace thinwire
