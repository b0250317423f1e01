#pragma once
// How long something has been silent, without what an interrupted network explains.

#include <algorithm>

namespace thinwire {

class Silence {
 public:
  void heard() { seconds_ = 0; }
  void nothing_for(double seconds) { seconds_ += seconds; }
  /// The other end has been out of reach for so long. TCP's pauses between retransmissions double: what was
  /// lost may come as late after the end of an outage as the outage was long. So that much is excused.
  void out_of_reach_for(double seconds) { seconds_ = std::min(seconds_, -seconds); }
  double seconds() const { return seconds_; }

 private:
  double seconds_ = 0;
};

}  // namespace thinwire
