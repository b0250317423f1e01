#pragma once
// What running one system on one workload yields, and its JSON: the same keys whether it was timed on a real
// engine (bench) or on a virtual one (simulate).

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "thinwire/report.h"
#include "thinwire/row_sparse.h"
#include "thinwire/span.h"

namespace thinwire::apps {

/// Steps before those that count, unless asked for otherwise. In the first one systems agree on sizes; zen
/// takes four to measure before it predicts which scheme is faster.
constexpr int kWarmUpSteps = 5;

/// One rank's part; travels between ranks as it lies. Bytes, messages and seconds
/// are per step, over all buckets.
struct RankMeasurement {
  double wire_bytes_sent = 0;
  double wire_bytes_received = 0;
  double frame_header_bytes = 0;
  double formula_bytes = 0;
  double messages = 0;
  double host_bytes_sent = 0;  ///< See StepReport.
  double seconds_compress = 0;
  double seconds_communicate = 0;
  double seconds_decompress = 0;
  double seconds_wait = 0;
  double imbalance_push = -1;  ///< As in StepReport: the worst of all buckets and steps.
  double imbalance_pull = -1;
  double residual_norm = -1;  ///< Of the last step, as residual_deviation: over all buckets.
  double residual_deviation = -1;
  std::uint64_t hash = kHashSeed;  ///< Of the last step's means.

  static constexpr std::uint64_t kHashSeed = 0xcbf29ce484222325u;

  void begin_step();
  /// One bucket's step.
  void add(const StepReport& report);
  /// Turns sums over steps into means.
  void divide(int steps);
  void hash_in(Span<const float> mean);
  void hash_in(const RowSparse& mean);
};

struct Measurement {
  std::string spec;
  std::string canonical_spec;
  std::string engine;
  int workers = 1;
  std::uint64_t elements = 0;
  std::uint64_t row_width = 1;
  double density_in = 0;
  double density_out = 0;
  int steps = 0;
  std::uint64_t seed = 0;
  std::vector<RankMeasurement> ranks;
  std::vector<double> step_seconds;  ///< Of the slowest rank, by its clock.
  bool virtual_clock = false;        ///< Then a rank's share of the wall's clock means nothing.
  std::optional<double> modelled_seconds{};
  std::optional<double> relative_error{};
  std::optional<double> conservation_error{};  ///< Nothing where a part is lost by design.
  std::optional<double> seconds_copy{};        ///< memcpy of the bucket, the fastest of a rank's steps.

  bool ranks_agree() const;
};

/// One object of the JSON contract.
nlohmann::ordered_json to_json(const Measurement& measurement);

/// The value in the middle; the upper one of two. `values` is not empty.
double median(std::vector<double> values);

double norm(Span<const float> values);
/// -0 counts as zero.
std::size_t count_non_zeros(Span<const float> values);

}  // namespace thinwire::apps
