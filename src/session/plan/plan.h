#pragma once
// Which system a training should run, before it runs: what each candidate would cost, by the model of a step
// (planner/step_model.h) and by what the candidates themselves say and do here.
//
//   bytes    by the system's formula, and the headers of its frames
//   rounds   by running it on a network of latency alone (thinwire/virtual_network.h), and its messages
//   turns    from rounds and messages, where the link and the length of messages call for them (core/turns.h)
//   codec    by running it on a network that costs nothing, on drawn gradients, and timing the CPU, with as
//            many ranks at the same time as a host has
//   sockets  by messages over the loopback device (planner/socket_cost.h)

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "planner/socket_cost.h"
#include "planner/step_model.h"
#include "session/plan/measure.h"
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
  /// Whether these act as one worker, as SessionOptions::ranks_per_host has it.
  bool reduce_in_host = false;
  double cores = 1;       ///< Of a host.
  std::size_t lanes = 2;  ///< Buckets under way at the same time, as in DDP's hook.
  double density = 1;     ///< Share of a gradient that is not zero.
  double within = 0.02;   ///< How much longer than the fastest a milder candidate's step may take.
  bool sockets = true;    ///< Whether messages cost CPU time.
  bool turns = true;      ///< Whether long messages take turns, as over networks that drop packets.
};

/// One candidate with so many workers over one link. Bytes and messages are per rank and step; where a host's
/// ranks act as one worker, those to other hosts.
struct PlanRow {
  std::string spec;
  std::uint64_t payload_bytes = 0;  ///< By the formula, of the rank that sends most; a mean over 100 steps.
  double header_bytes = 0;
  double messages = 0;
  double host_bytes = 0;      ///< To ranks of the same host that act as one with this one: their mean.
  double codec_seconds = 0;   ///< CPU time over all buckets.
  double socket_seconds = 0;  ///< Likewise, messages within a host included.
  double rounds = 0;          ///< Of the bucket with most.
  StepCost cost{};
  double doubt_seconds = 0;  ///< How far timing can be wrong about the step; 0 where nothing is timed.
  std::optional<double> simulated_seconds{};  ///< See StepPlanner::simulate.
};

struct Plan {
  int workers = 1;
  VirtualLink link{};
  std::vector<PlanRow> rows{};
  /// The first of the rows within the bound of the fastest, or as fast as far as timing can tell.
  std::size_t choice = 0;
  std::size_t fastest = 0;  ///< The one with the shortest step.
  std::string reason{};     ///< One sentence.
};

/// Sets `fastest` and `choice` of rows that have their costs, the one that changes gradients least first.
void choose(Plan& plan, double within);

/// The same on links of other rates, by their names.
using PlansElsewhere = std::vector<std::pair<std::string, Plan>>;

class StepPlanner {
 public:
  /// Measures what does not depend on workers and link; takes some seconds. Throws std::invalid_argument for
  /// what cannot be planned, and what the specs throw.
  explicit StepPlanner(PlanRequest request);

  /// Runs candidates on virtual networks of up to 16 ranks to count rounds and messages; beyond, their number
  /// is extrapolated. Throws std::invalid_argument where a candidate or ranks_per_host does not fit the
  /// workers.
  Plan plan(int workers, const VirtualLink& link);

  /// With 1, 10 and 25 Gbit/s, and the latency of `link`.
  PlansElsewhere plan_elsewhere(int workers, const VirtualLink& link);

  /// Seconds of a step by simulation in place of the model: `workers` ranks run the spec on drawn gradients
  /// over the virtual network. One lane; cores are not shared, sockets cost nothing, messages do not take
  /// turns, and hosts do not matter. Codec as in the plan.
  double simulate(std::size_t spec, int workers, const VirtualLink& link) const;

  const PlanRequest& request() const { return request_; }

 private:
  struct Known {
    int workers;
    BucketLayout small;
    Exchanges exchanges;
  };
  struct Candidate {
    Pipeline pipeline;
    std::vector<CodecTime> codec{};  // of each bucket
    std::vector<Known> known{};
  };
  /// What one bucket's step sends: a rank, but for link_bytes, which are of all that share a link.
  struct Sent {
    double payload_bytes = 0;
    double header_bytes = 0;
    double messages = 0;
    double rounds = 0;
    double link_bytes = 0;
    double bytes_inside = 0;  // see PlanRow::host_bytes
    double messages_inside = 0;
  };

  void check() const;
  void measure_codecs(std::size_t spec);
  Exchanges counted(std::size_t spec, const BucketLayout& small, int workers);
  Exchanges exchanges_of(std::size_t spec, const BucketLayout& bucket, int workers);
  double payload_of(std::size_t spec, const BucketLayout& bucket, int workers) const;
  Sent sent_among(int workers, std::size_t spec, const BucketLayout& bucket, double bytes_per_second);
  Sent sent_of(std::size_t spec, std::size_t bucket, int workers, const VirtualLink& link);
  PlanRow row_of(std::size_t spec, int workers, const VirtualLink& link);
  int hosts_of(int workers) const;

  PlanRequest request_;
  std::vector<Candidate> candidates_;
  std::vector<std::vector<BucketLayout>> parts_;  // with reduce_in_host: of each bucket, by place
  SocketCost sockets_{};
};

/// A table for people, and the same as JSON objects, one for each row.
std::string plan_table(const PlanRequest& request, const Plan& plan, const PlansElsewhere& elsewhere);
std::string plan_json(const PlanRequest& request, const Plan& plan, const PlansElsewhere& elsewhere);

}  // namespace thinwire
