#pragma once
// Which system a training should run, before it runs: what each candidate would cost, by the model of a step
// (planner/step_model.h) and by what the candidates themselves say and do here.
//
//   bytes    by the system's formula, and the headers of its frames
//   rounds   by running it on a network of latency alone (thinwire/virtual_network.h)
//   codec    by running it on a network that costs nothing, on drawn gradients, and timing the CPU
//   sockets  by messages over the loopback device (planner/socket_cost.h)

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "planner/step_model.h"
#include "thinwire/registry.h"
#include "thinwire/state.h"
#include "thinwire/virtual_network.h"

namespace thinwire {

/// The specs among which `auto` chooses, mildest first.
std::vector<std::string> candidates_of_auto(bool lossless = false);

/// What a candidate's computing costs.
struct PlanCodec {
  bool measured = true;
  double elements_per_second = 0;  ///< Where not measured, as in simulations; 0: nothing.
};

/// A training, and what may synchronize it.
struct PlanRequest {
  std::vector<BucketLayout> buckets{};  ///< In the order in which backward makes them ready.
  StepCompute compute{};                ///< `ready` has one for each bucket.
  std::vector<std::string> specs{};  ///< Mildest first. The first one is what the others are compared with.
  std::vector<PlanCodec> codecs{};   ///< One for each spec; empty: all measured.
  int ranks_per_host = 1;            ///< They share the host's link and cores.
  double cores = 1;                  ///< Of a host.
  std::size_t lanes = 2;             ///< Buckets under way at the same time, as in DDP's hook.
  double density = 1;                ///< Share of a gradient that is not zero.
  double within = 0.02;              ///< How much longer than the fastest a milder candidate's step may take.
  bool sockets = true;               ///< Whether messages cost CPU time.
};

/// One candidate with so many workers over one link. Bytes are per rank and step.
struct PlanRow {
  std::string spec;
  std::uint64_t payload_bytes = 0;  ///< By the formula, of the rank that sends most; a mean over 100 steps.
  double header_bytes = 0;
  double codec_seconds = 0;   ///< CPU time over all buckets.
  double socket_seconds = 0;  ///< Likewise.
  double rounds = 0;          ///< Of the bucket with most.
  StepCost cost{};
  std::optional<double> simulated_seconds{};  ///< See StepPlanner::simulate.
};

struct Plan {
  int workers = 1;
  VirtualLink link{};
  std::vector<PlanRow> rows{};
  std::size_t choice = 0;   ///< The first of the rows within the bound of the fastest.
  std::size_t fastest = 0;  ///< The one with the shortest step.
  std::string reason{};     ///< One sentence.
};

/// The same on links of other rates, by their names.
using PlansElsewhere = std::vector<std::pair<std::string, Plan>>;

class StepPlanner {
 public:
  /// Measures what does not depend on workers and link; takes some seconds. Throws std::invalid_argument for
  /// what cannot be planned, and what the specs throw.
  explicit StepPlanner(PlanRequest request);

  /// Runs candidates on virtual networks of up to 16 ranks to count rounds; beyond, their number is
  /// extrapolated. Throws std::invalid_argument where a candidate or ranks_per_host does not fit the
  /// workers.
  Plan plan(int workers, const VirtualLink& link);

  /// With 1, 10 and 25 Gbit/s, and the latency of `link`.
  PlansElsewhere plan_elsewhere(int workers, const VirtualLink& link);

  /// Seconds of a step by simulation in place of the model: `workers` ranks run the spec on drawn gradients
  /// over the virtual network. One lane; cores are not shared and sockets cost nothing. Codec as in the
  /// plan.
  double simulate(std::size_t spec, int workers, const VirtualLink& link) const;

  const PlanRequest& request() const { return request_; }

 private:
  /// How often the latency passes, and bytes of headers that a rank sends, for one bucket with so many ranks.
  struct Rounds {
    double rounds = 0;
    double header_bytes = 0;
  };
  struct Known {
    int workers;
    BucketLayout bucket;
    Rounds rounds;
  };
  struct Candidate {
    Pipeline pipeline;
    std::vector<double> codec_seconds{};  // of each bucket
    std::vector<Known> known{};
  };

  Rounds rounds_of(std::size_t spec, const BucketLayout& bucket, int workers);
  Rounds measured_rounds(std::size_t spec, const BucketLayout& bucket, int workers);
  PlanRow row_of(std::size_t spec, int workers, const VirtualLink& link);
  void measure_codecs(std::size_t spec);

  PlanRequest request_;
  std::vector<Candidate> candidates_;
  double socket_seconds_per_byte_ = 0;
};

/// A table for people, and the same as JSON objects, one for each row.
std::string plan_table(const PlanRequest& request, const Plan& plan, const PlansElsewhere& elsewhere);
std::string plan_json(const PlanRequest& request, const Plan& plan, const PlansElsewhere& elsewhere);

}  // namespace thinwire
