#pragma once
// What a communication should cost by arithmetic, from counted bytes and from what depended on what, without
// simulating when anything happened: the figure that a simulated time is held against.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace thinwire {

/// A message belongs to the stage after the latest stage that its sender had received from; the first is 1.
/// See VirtualInterval::formula_seconds for what stages cost. Bytes are counted as the seconds that they
/// occupy a link.
class StageLedger {
 public:
  explicit StageLedger(std::size_t ranks) : ranks_(ranks) {}

  struct Place {
    std::uint32_t stage = 0;
    double sent_through = 0;  ///< What its sender has sent in the stage, this message included.
  };

  Place sent(std::size_t rank, double seconds) {
    Rank& own = ranks_[rank];
    if (own.latest > 0) own.loads[own.latest - 1].sent_on = true;
    Load& load = load_of(own, own.latest + 1);
    load.sent += seconds;
    return {own.latest + 1, load.sent};
  }

  void received(std::size_t rank, const Place& place, double seconds) {
    Rank& own = ranks_[rank];
    Load& load = load_of(own, place.stage);
    load.received += seconds;
    if (!load.sent_on) load.awaited = std::max({load.awaited, load.received, place.sent_through});
    own.latest = std::max(own.latest, place.stage);
  }

  std::size_t stages() const {
    std::size_t most = 0;
    for (const Rank& rank : ranks_) most = std::max(most, rank.loads.size());
    return most;
  }

  double seconds(double latency) const {
    const std::size_t last = stages();
    double total = 0;
    for (std::size_t stage = 1; stage <= last; ++stage) {
      double slowest = 0;
      for (const Rank& rank : ranks_) {
        if (stage > rank.loads.size()) continue;
        const Load& load = rank.loads[stage - 1];
        double cost = std::max(load.sent, load.received);
        if (stage == last) {
          cost += latency;
        } else if (load.sent_on) {
          cost = std::max(cost, latency + load.awaited);
        }
        slowest = std::max(slowest, cost);
      }
      total += slowest;
    }
    return total;
  }

  void clear() {
    for (Rank& rank : ranks_) {
      rank.latest = 0;
      rank.loads.clear();
    }
  }

 private:
  struct Load {
    double sent = 0;
    double received = 0;
    /// Before anything of the next stage was sent: what was received, or a sender had to send until then.
    double awaited = 0;
    bool sent_on = false;
  };
  struct Rank {
    std::uint32_t latest = 0;  // stage that something was received from
    std::vector<Load> loads;
  };

  static Load& load_of(Rank& rank, std::uint32_t stage) {
    if (rank.loads.size() < stage) rank.loads.resize(stage);
    return rank.loads[stage - 1];
  }

  std::vector<Rank> ranks_;
};

}  // namespace thinwire
