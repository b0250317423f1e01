#pragma once
// Zen's choice between its two schemes (section 2.2): a few steps of push and pull show what both would cost.
// The owners see what every rank pushed. So they can count the unions that Hierarchical Centralization would
// send, without it being run.

#include "exchange/push_pull.h"

namespace thinwire {

struct LinkModel {
  double latency_seconds = 0;
  double bytes_per_second = 0;  ///< 0: measure.
};

/// Seconds that a step's exchange is predicted to take.
struct PredictedSeconds {
  double push_pull = 0;
  double centralization = 0;
};

/// Of one push/pull exchange.
class SchemeProfile {
 public:
  /// Counts the unions that the doubling would send, as far as this rank owns them. After merge().
  SchemeProfile(const PushPull& exchange, std::size_t width, Step& step);

  /// After pull(). The same on all ranks: from everyone's counts, and the means of everyone's measurements
  /// where `link` leaves something to measure; what was measured here is written there, for the next bucket.
  /// Adds what it sends to report.formula_bytes. Collective.
  PredictedSeconds predict(const PushPull& exchange, LinkModel& link);

 private:
  /// What one rank tells the others.
  struct Record {
    double push_sent, push_received, pull_sent, pull_received;  // bytes
    double latency_seconds, bytes_per_second;
  };

  void count_unions(const PushPull& exchange);
  Record record_of(const PushPull& exchange, LinkModel& link);
  PredictedSeconds seconds_of(Span<const Record> records) const;

  Step& step_;
  std::size_t width_;
  std::size_t world_;
  std::size_t self_;
  std::size_t power_;
  /// |union| of every group of ranks that the recursive doubling merges, here as far as this rank owns it:
  /// the power_ groups of level 0 (a rank and the one folded into it), then half as many of level 1, ...
  Span<float> group_rows_;
  /// Rows that each rank holds; of this rank only, the others' entries are 0 until summed.
  Span<float> rank_rows_;
  std::size_t push_received_ = 0;  ///< Rows from other ranks.
};

}  // namespace thinwire
