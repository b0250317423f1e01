#include "planner/step_model.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>

namespace thinwire {
namespace {

constexpr double kForever = std::numeric_limits<double>::infinity();
constexpr double kRounding = 1e-12;

enum class Doing { nothing, compressing, latency, transfer, decompressing };

/// A thread that works buckets off, one after the other.
struct Lane {
  std::size_t bucket = 0;  // the one at hand, or the next
  Doing doing = Doing::nothing;
  double left = 0;   // seconds of the phase at full speed
  double speed = 1;  // what it gets of that

  bool computes() const { return doing == Doing::compressing || doing == Doing::decompressing; }
};

class StepModel {
 public:
  StepModel(const std::vector<BucketCost>& buckets, const StepCompute& compute,
            const StepResources& resources)
      : buckets_(buckets), compute_(compute), resources_(resources), lanes_(resources.lanes) {
    for (std::size_t i = 0; i < lanes_.size(); ++i) lanes_[i].bucket = i;
  }

  StepCost run() {
    cost_.compute = compute_.backward_end + compute_.rest;
    start_lanes();
    while (is_busy() || trained_ < compute_.backward_end) {
      share();
      advance(next_event());
      start_lanes();
    }
    cost_.step = cost_.compute + cost_.exposed();
    return cost_;
  }

 private:
  bool is_busy() const {
    return std::ranges::any_of(lanes_, [](const Lane& lane) { return lane.doing != Doing::nothing; });
  }
  bool any(Doing what) const { return std::ranges::count(lanes_, what, &Lane::doing) != 0; }

  /// Phases without work end as soon as they begin.
  void start_lanes() {
    for (Lane& lane : lanes_) {
      if (lane.doing == Doing::nothing) begin_bucket(lane);
      while (lane.doing != Doing::nothing && lane.left <= 0) next_phase(lane);
    }
  }

  void begin_bucket(Lane& lane) {
    if (lane.bucket >= buckets_.size() || compute_.ready[lane.bucket] > trained_) return;
    lane.doing = Doing::compressing;
    lane.left = buckets_[lane.bucket].codec_seconds / 2;
  }

  void next_phase(Lane& lane) {
    const BucketCost& bucket = buckets_[lane.bucket];
    if (lane.doing == Doing::compressing) {
      lane.doing = Doing::latency;
      lane.left = bucket.rounds * resources_.latency_seconds;
    } else if (lane.doing == Doing::latency) {
      lane.doing = Doing::transfer;
      lane.left = bucket.link_bytes / resources_.bytes_per_second;
    } else if (lane.doing == Doing::transfer) {
      lane.doing = Doing::decompressing;
      lane.left = bucket.codec_seconds / 2;
    } else {
      lane.doing = Doing::nothing;
      lane.bucket += lanes_.size();
      begin_bucket(lane);
    }
  }

  /// Of cores each thread that computes gets the same share. Training alone has been timed with these cores,
  /// so its threads together want no more than these.
  void share() {
    double transfers = 0;
    double threads = 0;
    for (const Lane& lane : lanes_) {
      transfers += lane.doing == Doing::transfer ? 1 : 0;
      threads += lane.computes() ? 1 : 0;
    }
    double codec = threads > 0 ? std::min(1.0, resources_.cores / threads) : 1;
    training_speed_ = 1;
    if (trained_ < compute_.backward_end && compute_.threads > 0) {
      const double wants = std::min(1.0, resources_.cores / compute_.threads);  // each of its threads
      const double even = resources_.cores / (threads + compute_.threads);
      // What a thread that wants less than an even share leaves is the codecs'.
      const double gets = std::min(wants, even);
      training_speed_ = gets / wants;
      if (threads > 0) codec = std::min(1.0, (resources_.cores - gets * compute_.threads) / threads);
    }
    for (Lane& lane : lanes_) {
      lane.speed = lane.computes() ? codec : 1;
      if (lane.doing == Doing::transfer) lane.speed = 1 / transfers;
    }
  }

  double next_event() const {
    double seconds = kForever;
    for (const Lane& lane : lanes_) {
      if (lane.doing != Doing::nothing) seconds = std::min(seconds, lane.left / lane.speed);
      const bool waits = lane.doing == Doing::nothing && lane.bucket < buckets_.size();
      if (waits) seconds = std::min(seconds, (compute_.ready[lane.bucket] - trained_) / training_speed_);
    }
    if (trained_ < compute_.backward_end)
      seconds = std::min(seconds, (compute_.backward_end - trained_) / training_speed_);
    return seconds;
  }

  void advance(double seconds) {
    attribute(seconds);
    // What an event was computed for is set, not added up: sums of rounded numbers would not meet it.
    if (trained_ < compute_.backward_end) {
      trained_ += seconds * training_speed_;
      for (const double mark : compute_.ready) trained_ = snap(trained_, mark);
      trained_ = snap(trained_, compute_.backward_end);
    }
    for (Lane& lane : lanes_) {
      if (lane.doing == Doing::nothing) continue;
      lane.left -= seconds * lane.speed;
      if (lane.left < kRounding) lane.left = 0;
    }
  }

  static double snap(double value, double mark) {
    return std::abs(value - mark) <= kRounding * std::max(1.0, mark) ? mark : value;
  }

  /// To the part of the step's time that is seen.
  void attribute(double seconds) {
    if (trained_ < compute_.backward_end) {
      cost_.codec += seconds * (1 - training_speed_);
    } else if (any(Doing::transfer)) {
      cost_.wire += seconds;
    } else if (any(Doing::compressing) || any(Doing::decompressing)) {
      cost_.codec += seconds;
    } else {
      cost_.wait += seconds;
    }
  }

  const std::vector<BucketCost>& buckets_;
  const StepCompute& compute_;
  const StepResources& resources_;
  std::vector<Lane> lanes_;
  double trained_ = 0;  // seconds of training's own, as if nothing disturbed it
  double training_speed_ = 1;
  StepCost cost_;
};

void require(bool right, const char* name, double value, const char* wanted) {
  if (!right)
    throw std::invalid_argument(std::string(name) + " = " + std::to_string(value) + ": " + wanted +
                                " is needed");
}

void require_seconds(const char* name, double value) {
  require(std::isfinite(value) && value >= 0, name, value, "a finite number that is not negative");
}

}  // namespace

StepCost step_cost(const std::vector<BucketCost>& buckets, const StepCompute& compute,
                   const StepResources& resources) {
  require(compute.ready.size() == buckets.size(), "times of readiness",
          static_cast<double>(compute.ready.size()), "one for each bucket");
  double before = 0;
  for (const double ready : compute.ready) {
    require(ready >= before && ready <= compute.backward_end, "ready", ready,
            "a time not before the bucket before and not after the end of backward");
    before = ready;
  }
  require_seconds("backward_end", compute.backward_end);
  require_seconds("rest", compute.rest);
  require_seconds("threads", compute.threads);
  for (const BucketCost& bucket : buckets) {
    require_seconds("codec_seconds", bucket.codec_seconds);
    require_seconds("link_bytes", bucket.link_bytes);
    require_seconds("rounds", bucket.rounds);
  }
  require(resources.bytes_per_second > 0, "bytes_per_second", resources.bytes_per_second, "more than 0");
  require_seconds("latency_seconds", resources.latency_seconds);
  require(resources.cores > 0 && std::isfinite(resources.cores), "cores", resources.cores, "more than 0");
  require(resources.lanes > 0, "lanes", 0, "1 or more");
  return StepModel(buckets, compute, resources).run();
}

}  // namespace thinwire
