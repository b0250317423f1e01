// CASQ: cluster-aware sketch quantization. A few bits per element say which centre it is nearest to, and a
// small array of bucket means per centre says what the elements around it are worth.
//
// Source: K. Ge et al., "Accelerate distributed deep learning with cluster-aware sketch quantization", Sci
// China Inf Sci 2023, sections 3.2 to 3.4, algorithm 1.
//
//   every tau steps, rank 0:  sample of p --> K-means --> centres, weights --broadcast--> all ranks
//   p --> code (nearest centre of its sign), bucket in that cluster's array --> codes, bucket means
//     --all-gather or sharded server--> Q(p) of all ranks, averaged in rank order; residual = p - Q(p)
//
// Paper's symbols: K = 2^b clusters, m buckets, tau = `interval`. A centre's bucket array has a share of m in
// proportion to its entropy times its magnitude (`allocation`).
//
// Bytes per rank, P = ceil(b d / 8) + 4 m: all-gather (W-1) P. Sharded server, shards of d / W elements:
// codes of the others' shards and all means up, (W-1)/W * b d/8 + (W-1) 4 m; the result down, as codes with d
// / W's share of the buckets, (W-1)/W * (b d/8 + 4 m), or as float32, (W-1)/W * 4 d. Every tau steps 8 K more
// along the broadcast's tree. topology=auto takes what is less: the server from 3 workers on.
//
// Deviations from the paper:
// - Line 8 of algorithm 1 compresses the raw gradient, so the residual of line 9 would never return; here the
//   compensated gradient is compressed. feedback=off reproduces the paper's runs without compensation.
// - The server is every rank for its shard, and its result may be quantised again; what that leaves out stays
//   with the shard's owner.
// - Elements are hashed in runs of 64 (kernels/cluster_sketch.h), anew for each step and rank, so that the
//   errors of ranks and steps average out.
// - Centres are also taken anew after 1, 2, 4, ... steps of the first interval: those of step 0 know no
// residual,
//   and with them alone the first hundred steps of a run lose what they should gain.
// - K-means is exact instead of iterated (kernels/kmeans.h). Codes count 0 as not below 0.
// - Step 16's momentum, m = lambda m + g, w = w - eta (g + m), belongs to the optimizer;
// double_momentum=lambda
//   has the system return g + m.

#include "systems/casq.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <map>
#include <stdexcept>

#include "core/stopwatch.h"
#include "quantization/agreed_values.h"
#include "quantization/coded_exchange.h"
#include "systems/casq_clusters.h"
#include "systems/casq_server.h"
#include "thinwire/errors.h"
#include "thinwire/state.h"

namespace thinwire {
namespace {

enum class Topology { all_gather, server, automatic };

struct CasqSettings {
  std::size_t bits = 2;
  double bucket_share = 0.005;
  std::uint64_t interval = 100;
  double sample = 0.1;
  Allocation allocation = Allocation::centre;
  Topology topology = Topology::automatic;
  bool requantised = true;
  float double_momentum = 0;

  std::size_t clusters() const { return std::size_t{1} << bits; }
  /// Whether centres are taken anew: every `interval` steps and, while the residual fills and the gradient
  /// changes from step to step, after 1, 2, 4, ... of the first ones.
  bool clusters_at(std::uint64_t step) const {
    return step % interval == 0 || (step < interval && std::has_single_bit(step));
  }
  /// Buckets for so many elements.
  std::size_t buckets(std::size_t elements) const {
    const double wanted = std::round(bucket_share * static_cast<double>(elements));
    return std::max(clusters(), static_cast<std::size_t>(wanted));
  }
};

/// What rank 0 broadcasts: centres, then weights, by code.
class Agreement {
 public:
  explicit Agreement(std::size_t clusters) : clusters_(clusters) {}

  static constexpr std::size_t kMostFloats = 2 * kMostClusters;
  Span<float> floats() { return {values_.data(), 2 * clusters_}; }

  void set(const PerCluster<Cluster>& clusters, const PerCluster<float>& weights) {
    for (std::size_t c = 0; c < clusters_; ++c) {
      values_[c] = static_cast<float>(clusters[c].centre);
      values_[clusters_ + c] = weights[c];
    }
  }
  /// In place of centres: rank 0 has a value that is not finite.
  void set_not_finite() { values_[0] = std::numeric_limits<float>::quiet_NaN(); }

  bool not_finite() const { return std::isnan(values_[0]); }
  bool all_zero() const {
    return std::all_of(values_.begin(), values_.begin() + static_cast<std::ptrdiff_t>(clusters_),
                       [](float centre) { return centre == 0; });
  }
  PerCluster<float> centres() const { return part(0); }
  PerCluster<float> weights() const { return part(clusters_); }

  /// Throws CorruptFrame unless centres are finite, of their sign and ascend in magnitude, and weights are
  /// finite and not negative.
  void require_sound(BucketId bucket) const {
    for (std::size_t c = 0; c < clusters_; ++c) {
      const float centre = values_[c];
      const float weight = values_[clusters_ + c];
      const bool ascends = c < 2 || std::fabs(centre) >= std::fabs(values_[c - 2]);
      const bool of_sign = c % 2 == 0 ? centre >= 0 : centre <= 0;
      if (!std::isfinite(centre) || !ascends || !of_sign || !std::isfinite(weight) || weight < 0) {
        throw CorruptFrame("rank 0 sent centre " + std::to_string(centre) + " and weight " +
                           std::to_string(weight) + " for cluster " + std::to_string(c) + " of bucket " +
                           std::to_string(bucket) +
                           ", expected a centre of the cluster's sign, not below the level before in "
                           "magnitude, and a weight that is not negative");
      }
    }
  }

 private:
  PerCluster<float> part(std::size_t first) const {
    PerCluster<float> result{};
    std::copy_n(values_.begin() + static_cast<std::ptrdiff_t>(first), clusters_, result.begin());
    return result;
  }

  std::size_t clusters_;
  std::array<float, kMostFloats> values_{};
};

class CasqCoder final : public Coder {
 public:
  CasqCoder(const ClusterSketch& sketch, Span<const float> gradient, Span<const float> residual, Step& step)
      : sketch_(sketch), gradient_(gradient), residual_(residual), step_(step) {}

  bool encode(Span<float> table, Span<std::uint64_t> codes) override {
    const auto self = static_cast<std::size_t>(step_.communicator.rank());
    return encode_clusters(step_.executor, step_.workspace, of(self), gradient_, residual_, codes, table);
  }

  void decode(std::size_t rank, Span<const float> table, Span<const std::uint64_t> codes, std::size_t first,
              bool add, Span<float> values) const override {
    const std::size_t word = first / 64 * sketch_.bits;
    decode_clusters(of(rank), table, codes.subspan(word, codes.size() - word), first, add, values);
  }

 private:
  ClusterSketch of(std::size_t rank) const {
    ClusterSketch own = sketch_;
    own.stream.rank = static_cast<std::uint32_t>(rank);
    return own;
  }

  const ClusterSketch& sketch_;
  Span<const float> gradient_;
  Span<const float> residual_;
  Step& step_;
};

class Casq final : public Synchronizer {
 public:
  explicit Casq(const CasqSettings& settings) : settings_(settings) {}

  void synchronize(BucketId bucket, Span<float> gradient, Span<float> residual, Step& step) override;
  std::uint64_t payload_bytes(const Workload& workload) const override;
  void save(BucketWriter& writer) const override;
  void load(const BucketReader& reader) override;

 private:
  /// Of one bucket. All but the last member are the same on all ranks.
  struct BucketState {
    PerCluster<float> centres{};
    PerCluster<float> weights{};
    PerCluster<float> shard_centres{};  ///< Of the results of this rank's shard, where it has one.
    std::size_t parameters = 1;
  };

  bool through_server(std::size_t elements, std::size_t world) const;
  Agreement cluster(BucketId bucket, Span<const float> gradient, Span<const float> residual, Step& step);
  void exchange(BucketId bucket, Span<float> gradient, Span<float> residual, Step& step, BucketState& state,
                bool clusters_shard);
  std::uint64_t exchange_bytes(std::size_t elements, std::size_t world, std::size_t rank) const;
  void add_momentum(BucketId bucket, Span<float> mean);

  CasqSettings settings_;
  std::map<BucketId, BucketState> states_;
  std::map<BucketId, std::vector<float>> momenta_;
  std::vector<Pending> pendings_;
};

std::uint32_t sample_seed(const Step& step, BucketId bucket, std::uint32_t hop) {
  return random_stream(step.seed, step.index, bucket, RandomPurpose::sample, 0, hop).block(0, 0)[0];
}

PerCluster<float> centres_of(const PerCluster<Cluster>& clusters) {
  PerCluster<float> centres{};
  for (std::size_t c = 0; c < centres.size(); ++c) centres[c] = static_cast<float>(clusters[c].centre);
  return centres;
}

void Casq::synchronize(BucketId bucket, Span<float> gradient, Span<float> residual, Step& step) {
  require_matching(gradient, residual);
  step.delivered = {};
  step.report.formula_bytes = 0;
  if (gradient.empty()) return;
  const auto known = states_.find(bucket);
  const bool clusters = known == states_.end() || settings_.clusters_at(step.index);
  BucketState state = known == states_.end() ? BucketState() : known->second;
  bool usable = true;
  if (clusters) {
    const Agreement agreement = cluster(bucket, gradient, residual, step);
    if (agreement.not_finite()) {
      step.report.finite = false;
      std::fill(gradient.begin(), gradient.end(), std::numeric_limits<float>::quiet_NaN());
      return;
    }
    // Nothing but zeros on rank 0 says nothing of later steps, nor of the other ranks.
    usable = !agreement.all_zero();
    state.centres = agreement.centres();
    state.weights = agreement.weights();
  }
  exchange(bucket, gradient, residual, step, state, clusters);
  if (!step.report.finite) return;
  if (clusters && usable) {
    state.parameters = std::max<std::size_t>(1, step.parameter_ends.size());
    states_[bucket] = state;
  }
  if (settings_.double_momentum > 0) add_momentum(bucket, gradient);
}

/// Centres and weights from a sample of rank 0's elements, on all ranks. Collective.
Agreement Casq::cluster(BucketId bucket, Span<const float> gradient, Span<const float> residual, Step& step) {
  Stopwatch watch;
  Agreement agreement(settings_.clusters());
  if (step.communicator.rank() == 0) {
    PerCluster<Cluster> clusters{};
    const SampleKind kind = find_clusters(step.workspace, gradient, residual, settings_.bits,
                                          settings_.sample, sample_seed(step, bucket, 0), clusters);
    if (kind == SampleKind::not_finite) agreement.set_not_finite();
    if (kind == SampleKind::usable) {
      const double share =
          static_cast<double>(settings_.buckets(gradient.size())) / static_cast<double>(gradient.size());
      agreement.set(clusters, bucket_weights(settings_.allocation, clusters, settings_.bits, share));
    }
  }
  step.report.seconds_compress += watch.lap();
  take_from_rank_0(step, agreement.floats());
  step.report.formula_bytes += broadcast_payload_bytes(agreement.floats().size_bytes(),
                                                       step.communicator.rank(), step.communicator.size());
  if (!agreement.not_finite()) agreement.require_sound(bucket);
  return agreement;
}

void Casq::exchange(BucketId bucket, Span<float> gradient, Span<float> residual, Step& step,
                    BucketState& state, bool clusters_shard) {
  const std::size_t elements = gradient.size();
  const auto world = static_cast<std::size_t>(step.communicator.size());
  ClusterSketch sketch;
  sketch.bits = settings_.bits;
  sketch.stream = random_stream(step.seed, step.index, bucket, RandomPurpose::sketch);
  sketch.sizes = allocate_buckets(state.weights, settings_.bits, settings_.buckets(elements));
  set_thresholds(sketch, state.centres);
  step.report.formula_bytes +=
      exchange_bytes(elements, world, static_cast<std::size_t>(step.communicator.rank()));
  if (!through_server(elements, world)) {
    CasqCoder coder(sketch, gradient, residual, step);
    average_coded(bucket, gradient, residual, step, {settings_.bits, sketch.buckets()}, pendings_, coder);
    return;
  }
  auto sizes = [&](std::size_t shard) {
    return allocate_buckets(state.weights, settings_.bits, settings_.buckets(shard));
  };
  auto thresholds = [&](Span<const float> average, ClusterSketch& result) {
    PerCluster<Cluster> clusters{};
    if (clusters_shard) {
      state.shard_centres = state.centres;
      if (find_clusters(step.workspace, average, {}, settings_.bits, settings_.sample,
                        sample_seed(step, bucket, 1), clusters) == SampleKind::usable) {
        state.shard_centres = centres_of(clusters);
      }
    }
    set_thresholds(result, state.shard_centres);
  };
  average_at_owners(bucket, gradient, residual, step, {sketch, settings_.requantised, sizes, thresholds},
                    pendings_);
}

bool Casq::through_server(std::size_t elements, std::size_t world) const {
  if (settings_.topology != Topology::automatic) return settings_.topology == Topology::server;
  const std::uint64_t gather =
      coded_bytes(elements, {settings_.bits, settings_.buckets(elements)}, static_cast<int>(world));
  std::uint64_t server = 0;
  for (std::size_t rank = 0; rank < world; ++rank) {
    server += owners_payload_bytes(elements, world, rank, settings_.bits, settings_.buckets(elements),
                                   settings_.requantised,
                                   [&](std::size_t shard) { return settings_.buckets(shard); });
  }
  return server < world * gather;
}

std::uint64_t Casq::exchange_bytes(std::size_t elements, std::size_t world, std::size_t rank) const {
  if (!through_server(elements, world)) {
    return coded_bytes(elements, {settings_.bits, settings_.buckets(elements)}, static_cast<int>(world));
  }
  return owners_payload_bytes(elements, world, rank, settings_.bits, settings_.buckets(elements),
                              settings_.requantised,
                              [&](std::size_t shard) { return settings_.buckets(shard); });
}

std::uint64_t Casq::payload_bytes(const Workload& workload) const {
  if (workload.elements == 0) return 0;
  const std::uint64_t agreed =
      settings_.clusters_at(workload.step)
          ? broadcast_payload_bytes(8 * settings_.clusters(), workload.rank, workload.world_size)
          : 0;
  return agreed + exchange_bytes(static_cast<std::size_t>(workload.elements),
                                 static_cast<std::size_t>(workload.world_size),
                                 static_cast<std::size_t>(workload.rank));
}

void Casq::add_momentum(BucketId bucket, Span<float> mean) {
  auto& momentum = momenta_.try_emplace(bucket, mean.size(), 0.0f).first->second;
  for (std::size_t i = 0; i < mean.size(); ++i) {
    momentum[i] = settings_.double_momentum * momentum[i] + mean[i];
    mean[i] += momentum[i];
  }
}

constexpr std::array<const char*, 3> kKinds = {"casq_centre_", "casq_weight_", "casq_shard_centre_"};

void Casq::save(BucketWriter& writer) const {
  for (const auto& [bucket, state] : states_) {
    const std::array<const PerCluster<float>*, 3> parts = {&state.centres, &state.weights,
                                                           &state.shard_centres};
    for (std::size_t part = 0; part < parts.size(); ++part) {
      for (std::size_t c = 0; c < settings_.clusters(); ++c) {
        const std::vector<float> values(state.parameters, (*parts[part])[c]);
        writer.values(kKinds[part] + std::to_string(c), bucket, Span<const float>(values));
      }
    }
  }
  for (const auto& [bucket, momentum] : momenta_) {
    writer.elements("casq_momentum", bucket, Span<const float>(momentum));
  }
}

void Casq::load(const BucketReader& reader) {
  std::map<BucketId, BucketState> states;
  std::map<BucketId, std::vector<float>> momenta;
  for (BucketId bucket = 0; bucket < reader.buckets(); ++bucket) {
    BucketState state;
    state.parameters = reader.parameters(bucket);
    const std::array<PerCluster<float>*, 3> parts = {&state.centres, &state.weights, &state.shard_centres};
    std::vector<float> values(state.parameters);
    bool complete = !values.empty();
    for (std::size_t part = 0; part < parts.size(); ++part) {
      for (std::size_t c = 0; complete && c < settings_.clusters(); ++c) {
        complete = reader.values(kKinds[part] + std::to_string(c), bucket, Span<float>(values));
        (*parts[part])[c] = values.front();
      }
    }
    if (complete) states[bucket] = state;
    std::vector<float> momentum(reader.bucket_elements(bucket));
    if (reader.elements("casq_momentum", bucket, Span<float>(momentum)))
      momenta[bucket] = std::move(momentum);
  }
  states_ = std::move(states);
  momenta_ = std::move(momenta);
}

}  // namespace

SystemInfo casq_info() {
  SystemInfo info;
  info.name = "casq";
  info.summary = "a few bits per element for its cluster, and bucket means per cluster";
  info.paper = "Ge et al., CASQ, Sci China Inf Sci 2023";
  info.formula =
      "P = ceil(b d/8) + 4 m; all-gather (W-1) P; server (W-1)/W * b d/4 + (W-1) 4 m + (W-1)/W * 4 m; every "
      "tau steps 8 * 2^b along a tree";
  info.feedback_default = true;
  info.corrects_momentum = true;
  info.momentum_option = "double_momentum";
  info.options = {
      {"bits", "2", "bits per element, 1 to 4: 2^bits clusters, half of them below 0"},
      {"buckets", "0.005", "bucket means per element, 0 to 1; 0: one mean per cluster"},
      {"interval", "100", "steps between clusterings; the first ones also come after 1, 2, 4, ... steps"},
      {"sample", "0.1", "share of rank 0's elements that is clustered, above 0 to 1"},
      {"allocation", "centre",
       "a cluster's share of the buckets: entropy times |centre| or density, even, or least error"},
      {"topology", "auto",
       "all_gather, server (every rank for one shard), or auto: the one with fewer bytes"},
      {"downlink", "codes", "what a shard's server sends back: codes, or float32"},
      {"double_momentum", "0", "lambda of the paper's line 16: returns g + m with m = lambda m + g; 0: off"}};
  info.make = [](const Options& options, Inner) -> std::unique_ptr<Synchronizer> {
    CasqSettings settings;
    settings.bits = static_cast<std::size_t>(options.integer("bits", 1, kMostClusterBits));
    settings.bucket_share = options.real("buckets", 0, 1);
    settings.interval = static_cast<std::uint64_t>(options.integer("interval", 1, 1'000'000'000));
    settings.sample = options.real("sample", 0.001, 1);
    const auto& allocations = allocation_names();
    const std::string allocation = options.choice("allocation", allocations);
    settings.allocation = static_cast<Allocation>(
        std::find(allocations.begin(), allocations.end(), allocation) - allocations.begin());
    const std::string topology = options.choice("topology", {"auto", "all_gather", "server"});
    settings.topology = topology == "auto"     ? Topology::automatic
                        : topology == "server" ? Topology::server
                                               : Topology::all_gather;
    settings.requantised = options.choice("downlink", {"codes", "float32"}) == "codes";
    settings.double_momentum = static_cast<float>(options.real("double_momentum", 0, 0.999));
    return std::make_unique<Casq>(settings);
  };
  return info;
}

}  // namespace thinwire
