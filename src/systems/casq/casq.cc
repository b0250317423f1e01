// CASQ: cluster-aware sketch quantization. A few bits per element say which centre it is nearest to. A small
// array of means for each centre says what the elements around it are worth.
//
// Source: K. Ge et al., "Accelerate distributed deep learning with cluster-aware sketch quantization", Sci
// China Inf Sci 2023, sections 3.2 to 3.4, algorithm 1.
//
//   every tau steps, rank 0:  sample of p --> K-means --> centres, weights --broadcast--> all ranks
//   p --> code (nearest centre of its sign) and cell in that cluster's array --> codes, means of cells
//     --all-gather or sharded server--> Q(p) of all ranks, averaged in rank order; residual = p - Q(p)
//
// The paper calls cells buckets, which here are DDP's. Its symbols: K = 2^b clusters, m cells (option
// `buckets`, per element), tau = `interval`. A centre's array has a share of m in proportion to its entropy
// times its magnitude (option `allocation`).
//
// Clusters and cells belong to one parameter of a bucket (option `scope`): layers differ by orders of
// magnitude.
//
// Bytes per rank, with P = ceil(b d / 8) + 4 m and m = sum over parameters of max(2^b, buckets * elements):
//   all-gather: (W-1) P;
//   sharded server, up: codes of the others' shards and all means, (W-1)/W * b d/8 + (W-1) 4 m;
//   sharded server, down, as codes with a shard's share of the cells: (W-1)/W * (b d/8 + 4 m);
//   sharded server, down, as float32: (W-1)/W * 4 d;
//   at each clustering 8 * 2^b more for each parameter, along the broadcast's tree;
//   clusters=own: instead of that, m is greater by 2^b for each parameter.
// topology=auto takes what is less. With codes coming back that is the server from 3 workers on.
//
// In a reduce-scatter every rank's part of the bucket has clusters and cells of its own, and its codes and
// means go to its owner: (W-1) P, P being that of a part, and the broadcast. topology and downlink have no
// meaning then.
//
// Deviations from the paper:
// - Line 8 of algorithm 1 compresses the raw gradient, so the residual of line 9 would never return. Here the
//   compensated gradient is compressed. feedback=off is the algorithm without compensation.
// - The server is every rank for its shard. Its result may be quantised again, which the paper does not do.
//   What that leaves out stays with the shard's owner.
// - Elements are hashed in runs of 64 (kernels/codes/cluster_sketch.h), anew for each step and rank. So the
//   errors of ranks and steps average out.
// - Centres are also taken anew after 1, 2, 4, ... steps of the first interval. Those of step 0 know no
//   residual. With them alone the first hundred steps of a run lose what they should gain.
// - Line 5 finds clusters on every worker. Here rank 0's are everyone's, and clusters=own has every worker's
//   own. Receivers need the weights of the sender's clusters then, to know where a cluster's cells begin.
//   These go in front of the means in every step, so that no rank need remember those of others.
// - K-means is exact instead of iterated (kernels/codes/kmeans.h). Codes count 0 as not below 0.
// - Line 16's momentum, m = lambda m + g, w = w - eta (g + m), belongs to the optimizer. With
//   double_momentum=lambda the system returns g + m.

#include <algorithm>
#include <array>
#include <bit>
#include <map>
#include <optional>

#include "core/bucket_vectors.h"
#include "exchange/coded_exchange.h"
#include "exchange/collectives.h"
#include "exchange/reduce_scatter.h"
#include "kernels/codes/cluster_values.h"
#include "kernels/dense/dense.h"
#include "systems/casq/clusters.h"
#include "systems/casq/server.h"
#include "systems/systems.h"
#include "thinwire/errors.h"
#include "thinwire/state.h"
#include "wire/frame.h"

namespace thinwire {
namespace {

enum class Topology { all_gather, server, automatic };

// Of each parameter, its clusters' centres, their weights, and the centres in what a shard's server sends
// back.
constexpr std::array<StateKind, 3> kKinds = {{
    {.name = "casq_centres", .unit = StateKind::Unit::gradient},
    {.name = "casq_weights"},
    {.name = "casq_shard_centres", .unit = StateKind::Unit::gradient},
}};
constexpr StateKind kMomentum = {.name = "casq_momentum", .unit = StateKind::Unit::gradient};

struct CasqSettings {
  std::size_t bits = 2;
  double cell_share = 0.005;
  std::uint64_t interval = 100;
  double sample = 0.1;
  bool per_parameter = true;
  CentreKind centres = CentreKind::kmeans;
  Allocation allocation = Allocation::centre;
  Topology topology = Topology::automatic;
  bool requantised = true;
  bool own_clusters = false;  // of each rank
  float double_momentum = 0;

  std::size_t clusters() const { return std::size_t{1} << bits; }
  /// Whether centres are taken anew: every `interval` steps and, while the residual fills and the gradient
  /// changes from step to step, after 1, 2, 4, ... of the first ones.
  bool clusters_at(std::uint64_t step) const {
    return step % interval == 0 || (step < interval && std::has_single_bit(step));
  }
};

/// The clusters of a bucket's groups, by code: what its ranks have agreed on, or this rank's own; and what
/// this rank has found in the results of its own shard, where it has one.
template <class Container>
struct Model {
  Container centres{};
  Container weights{};
  Container shard_centres{};
};

bool all_zero(const PerCluster<float>& centres) {
  return std::ranges::all_of(centres, [](float centre) { return centre == 0; });
}

class CasqCoder final : public Coder {
 public:
  /// weights: of the sketch's groups where ranks have clusters of their own, sent in front of the means;
  /// else empty.
  CasqCoder(const ClusterSketch& sketch, Span<const float> weights, Span<const float> gradient,
            Span<const float> residual, Step& step)
      : sketch_(sketch), weights_(weights), gradient_(gradient), residual_(residual), step_(step) {}

  bool encode(Span<float> table, Span<std::uint64_t> codes) override {
    std::ranges::copy(weights_, table.begin());
    const auto self = static_cast<std::size_t>(step_.communicator.rank());
    return encode_clusters(step_.executor, step_.workspace, sketch_.for_rank(self), 0, gradient_, residual_,
                           codes, table.subspan(weights_.size(), sketch_.cells()));
  }

  void prepare(std::size_t rank, Span<const float> table) override {
    if (coded_.empty()) {
      coded_ = step_.workspace.take<CodedClusters>(static_cast<std::size_t>(step_.communicator.size()));
    }
    coded_[rank] = read(rank, table);
  }

  double average(Executor& executor, Span<const CodedFrame> frames, std::size_t self, Span<float> gradient,
                 ResidualSpan residual) const override {
    for (std::size_t rank = 0; rank < frames.size(); ++rank) coded_[rank].codes = frames[rank].codes();
    return apply_clusters(executor, coded_, self, gradient, residual);
  }

  double keep_rest(Executor& executor, const CodedFrame& own, Span<float> gradient,
                   ResidualSpan residual) override {
    const auto self = static_cast<std::size_t>(step_.communicator.rank());
    const auto coded = step_.workspace.take<CodedClusters>(1);
    coded[0] = read(self, own.table());
    coded[0].codes = own.codes();
    return apply_clusters(executor, coded, 0, gradient, residual);
  }

 private:
  /// Without its codes.
  CodedClusters read(std::size_t rank, Span<const float> table) {
    ClusterSketch sketch = sketch_.for_rank(rank);
    if (!weights_.empty()) {
      sketch = with_weights(step_.workspace, sketch, table.first(weights_.size()), rank);
    }
    const auto means = table.subspan(weights_.size(), sketch.cells());
    return {sketch, lay_out_means(step_.workspace, sketch, means, gradient_.memory()), {}};
  }

  const ClusterSketch& sketch_;
  Span<const float> weights_;
  Span<const float> gradient_;
  Span<const float> residual_;
  Step& step_;
  Span<CodedClusters> coded_;  // by each rank, once its means are there
};

std::uint32_t sample_seed(const Step& step, BucketId bucket, std::size_t group, std::uint32_t hop) {
  return random_stream(step.seed, step.index, bucket, RandomPurpose::sample, 0, hop)
      .block(static_cast<std::uint32_t>(group), 0)[0];
}

class Casq final : public Synchronizer {
 public:
  explicit Casq(const CasqSettings& settings) : settings_(settings) {}

  void synchronize(BucketId bucket, Span<float> gradient, Span<float> residual, Step& step) override {
    step.report.formula_bytes = 0;
    const GroupEnds ends = ends_of(gradient.size(), step.parameter_ends);
    const auto momentum =
        settings_.double_momentum > 0 ? momenta_.open(step.executor, bucket, gradient.size()) : Span<float>();
    const bool clusters = !states_.contains(bucket) || settings_.clusters_at(step.index);
    // A copy, so that a step that is not finite leaves the state as it was.
    const Spans model = model_for(bucket, ends, step);
    if (clusters && !cluster(bucket, ends, gradient, residual, model, step)) {
      step.report.finite = false;
      return;
    }
    if (step.reduce_scatter) {
      exchange_parts(bucket, ends, gradient, residual, model, step);
    } else {
      exchange(bucket, ends, gradient, residual, model, clusters, step);
    }
    if (!step.report.finite) return;
    if (clusters) {
      BucketState& state = states_.open(bucket);
      state.parameters = std::max<std::size_t>(1, step.parameter_ends.size());
      state.model.centres.assign(model.centres.begin(), model.centres.end());
      state.model.weights.assign(model.weights.begin(), model.weights.end());
      state.model.shard_centres.assign(model.shard_centres.begin(), model.shard_centres.end());
    }
    if (!momentum.empty()) {
      scale(step.executor, momentum, settings_.double_momentum);
      add(step.executor, momentum, gradient);
      add(step.executor, gradient, momentum);
    }
  }

  std::uint64_t payload_bytes(const Workload& workload) const override {
    if (workload.elements == 0) return 0;
    const auto elements = static_cast<std::size_t>(workload.elements);
    const GroupEnds ends = ends_of(elements, workload.parameter_ends);
    const std::uint64_t agreed = settings_.clusters_at(workload.step) && !settings_.own_clusters
                                     ? broadcast_payload_bytes(8 * settings_.clusters() * ends.size(),
                                                               workload.rank, workload.world_size)
                                     : 0;
    const auto world = static_cast<std::size_t>(workload.world_size);
    const auto rank = static_cast<std::size_t>(workload.rank);
    return agreed + (workload.reduce_scatter ? part_bytes(ends, elements, world, rank)
                                             : exchange_bytes(ends, elements, world, rank));
  }

  void save(BucketWriter& writer) const override {
    states_.for_each([&](BucketId bucket, const BucketState& state) {
      const std::array<const std::vector<PerCluster<float>>*, 3> parts = {
          &state.model.centres, &state.model.weights, &state.model.shard_centres};
      for (std::size_t part = 0; part < parts.size(); ++part) {
        const auto& groups = *parts[part];
        for (std::size_t i = 0; i < state.parameters; ++i) {
          // Where the bucket is one group, every parameter has its clusters.
          const PerCluster<float>& group = groups[std::min(i, groups.size() - 1)];
          writer.array(kKinds[part], bucket, i, Span<const float>(group.data(), settings_.clusters()));
        }
      }
    });
    momenta_.save(writer);
  }

  void load(const BucketReader& reader) override {
    std::map<BucketId, BucketState> states;
    for (BucketId bucket = 0; bucket < reader.buckets(); ++bucket) {
      BucketState state;
      state.parameters = reader.parameters(bucket);
      const std::size_t groups =
          settings_.per_parameter ? state.parameters : std::min<std::size_t>(1, state.parameters);
      const std::array<std::vector<PerCluster<float>>*, 3> parts = {
          &state.model.centres, &state.model.weights, &state.model.shard_centres};
      bool found = false;
      for (std::size_t part = 0; part < parts.size(); ++part) {
        parts[part]->assign(groups, PerCluster<float>{});
        for (std::size_t group = 0; group < groups; ++group) {
          float* values = (*parts[part])[group].data();
          found =
              reader.array(kKinds[part], bucket, group, Span<float>(values, settings_.clusters())) || found;
        }
      }
      if (found) states[bucket] = std::move(state);
    }
    momenta_.load(reader);  // which changes nothing where it throws
    states_.assign(std::move(states));
  }

  void keep_step(BucketId bucket) override {
    states_.keep(bucket);
    momenta_.keep(bucket);
  }
  void undo_step(BucketId bucket) override {
    states_.undo(bucket);
    momenta_.undo(bucket);
  }
  void undo_step(BucketId bucket, std::size_t begin, std::size_t count) override {
    momenta_.undo(bucket, begin, count);
  }

 private:
  using Spans = Model<Span<PerCluster<float>>>;
  struct BucketState {
    Model<std::vector<PerCluster<float>>> model;
    std::size_t parameters = 1;
  };

  GroupEnds ends_of(std::size_t elements, Span<const std::size_t> parameter_ends) const {
    return {settings_.per_parameter ? parameter_ends : Span<const std::size_t>(), elements,
            settings_.cell_share, settings_.clusters()};
  }

  /// The bucket's model so far, in the step's workspace; zeros where it has none.
  Spans model_for(BucketId bucket, const GroupEnds& ends, Step& step) {
    const BucketState* known = states_.find(bucket);
    auto copy_of = [&](const std::vector<PerCluster<float>>* values) {
      const auto copy = step.workspace.take<PerCluster<float>>(ends.size());
      std::ranges::fill(copy, PerCluster<float>{});
      if (values != nullptr)
        std::copy_n(values->begin(), std::min(values->size(), copy.size()), copy.begin());
      return copy;
    };
    const auto* model = known == nullptr ? nullptr : &known->model;
    return {copy_of(model != nullptr ? &model->centres : nullptr),
            copy_of(model != nullptr ? &model->weights : nullptr),
            copy_of(model != nullptr ? &model->shard_centres : nullptr)};
  }

  /// Centres and weights from a sample of rank 0's elements, on all ranks; or, where ranks have clusters of
  /// their own, of this rank's. Collective, but in that case. Returns false where rank 0 sampled a value that
  /// is not finite. A group of nothing but zeros keeps the centres that it has.
  bool cluster(BucketId bucket, const GroupEnds& ends, Span<const float> gradient, Span<const float> residual,
               const Spans& model, Step& step) {
    const std::size_t count = settings_.clusters();
    // Of each group its centres, then its weights.
    const auto floats = step.workspace.take<float>(2 * count * ends.size());
    std::ranges::fill(floats, 0.0f);
    bool usable = true;
    if (step.communicator.rank() == 0 || settings_.own_clusters) {
      ClusterFinder finder(step.executor, step.workspace);
      for (std::size_t group = 0; group < ends.size(); ++group) {
        const std::size_t begin = ends.begin(group);
        const std::size_t elements = ends.end(group) - begin;
        if (elements == 0) continue;
        PerCluster<Cluster> clusters{};
        const SampleKind kind =
            finder.find(gradient.subspan(begin, elements), residual.subspan(begin, elements), settings_.bits,
                        settings_.sample, sample_seed(step, bucket, group, 0), clusters, settings_.centres);
        usable = usable && kind != SampleKind::not_finite;
        if (kind != SampleKind::usable) continue;
        const double share = static_cast<double>(ends.cells(elements)) / static_cast<double>(elements);
        const auto weights = cell_weights(settings_.allocation, clusters, settings_.bits, share);
        for (std::size_t c = 0; c < count; ++c) {
          floats[2 * count * group + c] = static_cast<float>(clusters[c].centre);
          floats[2 * count * group + count + c] = weights[c];
        }
      }
    }
    // Of its own value that is not finite a rank tells when it codes it.
    if (!settings_.own_clusters && !take_from_rank_0(step, floats, usable)) return false;
    for (std::size_t group = 0; group < ends.size(); ++group) {
      PerCluster<float> centres{};
      PerCluster<float> weights{};
      std::copy_n(floats.data() + 2 * count * group, count, centres.begin());
      std::copy_n(floats.data() + 2 * count * group + count, count, weights.begin());
      require_sound(centres, weights, count);
      // Zeros alone say nothing of the other ranks, nor of later steps.
      if (all_zero(centres)) continue;
      model.centres[group] = centres;
      model.weights[group] = weights;
    }
    return true;
  }

  void exchange(BucketId bucket, const GroupEnds& ends, Span<float> gradient, Span<float> residual,
                const Spans& model, bool clusters_shard, Step& step) {
    const std::size_t elements = gradient.size();
    const auto world = static_cast<std::size_t>(step.communicator.size());
    const Shard whole{0, elements};
    auto groups_for = [&](const Shard& shard) { return groups_of(ends, shard, model, step); };
    const ClusterSketch sketch = sketch_of(bucket, ends, whole, model, step);
    step.report.formula_bytes +=
        exchange_bytes(ends, elements, world, static_cast<std::size_t>(step.communicator.rank()));
    if (!through_server(ends, elements, world)) {
      const auto weights = weights_of(ends, whole, model, step);
      CasqCoder coder(sketch, weights, gradient, residual, step);
      average_coded(bucket, gradient, residual, step, {settings_.bits, weights.size() + sketch.cells()},
                    coder);
      return;
    }
    const Shard own =
        shard_of(elements, world, static_cast<std::size_t>(step.communicator.rank()), kShardRun);
    auto set_shard_thresholds = [&](Span<const float> average, Span<ClusterGroup> results) {
      std::optional<ClusterFinder> finder;
      if (clusters_shard) finder.emplace(step.executor, step.workspace);
      std::size_t result = 0;
      ends.for_each(own, [&](std::size_t group, std::size_t first, std::size_t last) {
        PerCluster<float>& centres = model.shard_centres[group];
        // A rank that has just come to this shard knows no centres of its own for it.
        if (clusters_shard || all_zero(centres)) centres = model.centres[group];
        if (clusters_shard) {
          PerCluster<Cluster> clusters{};
          if (finder->find(average.subspan(first - own.begin, last - first), {}, settings_.bits,
                           settings_.sample, sample_seed(step, bucket, group, 1), clusters,
                           settings_.centres) == SampleKind::usable) {
            for (std::size_t c = 0; c < settings_.clusters(); ++c) {
              centres[c] = static_cast<float>(clusters[c].centre);
            }
          }
        }
        set_thresholds(results[result++], settings_.bits, centres);
      });
    };
    average_at_owners(bucket, gradient, residual, step,
                      {sketch, weights_of(ends, whole, model, step), weights_of(ends, own, model, step),
                       settings_.requantised, groups_for, set_shard_thresholds});
  }

  /// A reduce-scatter: each part has the cells of its own elements.
  void exchange_parts(BucketId bucket, const GroupEnds& ends, Span<float> gradient, Span<float> residual,
                      const Spans& model, Step& step) {
    const auto world = static_cast<std::size_t>(step.communicator.size());
    const auto sketches = step.workspace.take<ClusterSketch>(world);
    const auto weights = step.workspace.take<Span<const float>>(world);
    for (std::size_t owner = 0; owner < world; ++owner) {
      const Shard shard = shard_of(gradient.size(), world, owner);
      sketches[owner] = sketch_of(bucket, ends, shard, model, step);
      sketches[owner].stream.hop = static_cast<std::uint32_t>(owner);
      weights[owner] = weights_of(ends, shard, model, step);
    }
    step.report.formula_bytes +=
        part_bytes(ends, gradient.size(), world, static_cast<std::size_t>(step.communicator.rank()));
    reduce_scatter_coded(
        bucket, gradient, residual, step,
        [&](std::size_t owner) {
          return CodedShape{settings_.bits, weights[owner].size() + sketches[owner].cells()};
        },
        [&](std::size_t owner, Span<const float> part, Span<const float> left) {
          return CasqCoder(sketches[owner], weights[owner], part, left, step);
        });
  }

  /// How a shard's elements are coded, which begin with the sketch's.
  ClusterSketch sketch_of(BucketId bucket, const GroupEnds& ends, const Shard& shard, const Spans& model,
                          Step& step) {
    const auto groups = groups_of(ends, shard, model, step);
    std::size_t k = 0;
    ends.for_each(shard, [&](std::size_t group, std::size_t, std::size_t) {
      groups[k].end -= shard.begin;
      set_thresholds(groups[k++], settings_.bits, model.centres[group]);
    });
    ClusterSketch sketch;
    sketch.bits = settings_.bits;
    sketch.stream = random_stream(step.seed, step.index, bucket, RandomPurpose::sketch);
    sketch.groups = groups;
    return sketch;
  }

  /// The groups of a shard with the sizes of their arrays of cells, without thresholds.
  Span<ClusterGroup> groups_of(const GroupEnds& ends, const Shard& shard, const Spans& model, Step& step) {
    const auto groups = step.workspace.take<ClusterGroup>(ends.size());
    std::size_t used = 0;
    std::size_t cells = 0;
    ends.for_each(shard, [&](std::size_t group, std::size_t first, std::size_t last) {
      const std::size_t own = ends.cells(last - first);
      groups[used] = ClusterGroup();
      groups[used].end = last;
      groups[used].first_cell = cells;
      groups[used].sizes = allocate_cells(model.weights[group], settings_.bits, own);
      cells += own;
      ++used;
    });
    return groups.first(used);
  }

  /// What goes in front of a shard's means where ranks have clusters of their own: the weights of its groups.
  Span<const float> weights_of(const GroupEnds& ends, const Shard& shard, const Spans& model,
                               Step& step) const {
    if (!settings_.own_clusters) return {};
    const std::size_t count = settings_.clusters();
    const auto weights = step.workspace.take<float>(count * ends.count(shard));
    std::size_t k = 0;
    ends.for_each(shard, [&](std::size_t group, std::size_t, std::size_t) {
      std::copy_n(model.weights[group].begin(), count, weights.data() + count * k++);
    });
    return weights;
  }

  /// Floats of a table for a shard's elements: means of cells, and weights.
  std::size_t table_floats(const GroupEnds& ends, const Shard& shard) const {
    return ends.cells(shard) + (settings_.own_clusters ? settings_.clusters() * ends.count(shard) : 0);
  }

  /// Whether shards' servers take fewer bytes, over all ranks, than gathering everything; or what was asked
  /// for.
  bool through_server(const GroupEnds& ends, std::size_t elements, std::size_t world) const {
    if (settings_.topology != Topology::automatic) return settings_.topology == Topology::server;
    const std::size_t floats = table_floats(ends, Shard{0, elements});
    // Both per rank that receives: every rank's codes, or each shard's codes from a rank and its result.
    const std::uint64_t gather = world * (4 * floats + code_bytes(elements, settings_.bits));
    std::uint64_t server = 0;
    for (std::size_t owner = 0; owner < world; ++owner) {
      const Shard shard = shard_of(elements, world, owner, kShardRun);
      if (shard.size() == 0) continue;
      const std::uint64_t codes = code_bytes(shard.size(), settings_.bits);
      server += 4 * floats + codes;
      server += settings_.requantised ? 4 * table_floats(ends, shard) + codes : 4 * shard.size();
    }
    return server < gather;
  }

  std::uint64_t exchange_bytes(const GroupEnds& ends, std::size_t elements, std::size_t world,
                               std::size_t rank) const {
    const std::size_t floats = table_floats(ends, Shard{0, elements});
    if (!through_server(ends, elements, world)) {
      return coded_bytes(elements, {settings_.bits, floats}, static_cast<int>(world));
    }
    return owners_payload_bytes(elements, world, rank, settings_.bits, floats, settings_.requantised,
                                [&](const Shard& shard) { return table_floats(ends, shard); });
  }

  /// What a reduce-scatter takes.
  std::uint64_t part_bytes(const GroupEnds& ends, std::size_t elements, std::size_t world,
                           std::size_t rank) const {
    std::uint64_t bytes = 0;
    for (std::size_t owner = 0; owner < world; ++owner) {
      const Shard shard = shard_of(elements, world, owner);
      if (owner != rank) bytes += 4 * table_floats(ends, shard) + code_bytes(shard.size(), settings_.bits);
    }
    return bytes;
  }

  CasqSettings settings_;
  BucketStates<BucketState> states_;
  BucketVectors momenta_{kMomentum};
};

}  // namespace

SystemInfo casq_info() {
  SystemInfo info;
  info.name = "casq";
  info.summary = "a few bits per element for its cluster, and means of cells per cluster";
  info.paper = "Ge et al., CASQ, Sci China Inf Sci 2023";
  info.formula =
      "P = ceil(b d/8) + 4 m; all-gather (W-1) P; server (W-1)/W * b d/4 + (W-1) 4 m + (W-1)/W * 4 m; every "
      "tau steps 8 * 2^b per parameter along a tree; clusters=own: m is greater by 2^b per parameter instead";
  info.feedback_default = true;
  info.corrects_momentum = true;
  info.momentum_option = "double_momentum";
  info.state = {kKinds[0], kKinds[1], kKinds[2], kMomentum};
  info.undoes_steps = true;
  info.turns_residual = true;
  info.reduce_scatters = true;
  info.options = {
      {"bits", "2", "bits per element, 1 to 4: 2^bits clusters, half of them below 0"},
      {"buckets", "0.005", "cells per element, 0 to 1; 0: one for each cluster"},
      {"interval", "100", "steps between clusterings; the first ones also come after 1, 2, 4, ... steps"},
      {"sample", "0.1", "share of the elements that is clustered, above 0 to 1"},
      {"clusters", "shared", "shared: rank 0's, for all ranks; own: each rank has its own, as in the paper"},
      {"levels", "kmeans", "where the clusters' centres are: kmeans, or alq, which codes by ALQ's levels"},
      {"scope", "parameter", "what has clusters and cells of its own: parameter or bucket"},
      {"allocation", "centre",
       "a cluster's share of the cells: entropy times |centre| or density, even, or least error"},
      {"topology", "auto",
       "all_gather, server (every rank for one shard), or auto: the one with fewer bytes"},
      {"downlink", "codes", "what a shard's server sends back: codes, or float32"},
      {"double_momentum", "0", "lambda of the paper's line 16: returns g + m with m = lambda m + g; 0: off"}};
  info.make = [](const Options& options, Inner) -> std::unique_ptr<Synchronizer> {
    CasqSettings settings;
    settings.bits = static_cast<std::size_t>(options.integer("bits", 1, kMostClusterBits));
    settings.cell_share = options.real("buckets", 0, 1);
    settings.interval = static_cast<std::uint64_t>(options.integer("interval", 1, 1'000'000'000));
    settings.sample = options.real("sample", 0.001, 1);
    settings.own_clusters = options.choice("clusters", {"shared", "own"}) == "own";
    settings.centres =
        options.choice("levels", {"kmeans", "alq"}) == "alq" ? CentreKind::alq : CentreKind::kmeans;
    settings.per_parameter = options.choice("scope", {"parameter", "bucket"}) == "parameter";
    const auto& allocations = allocation_names();
    const std::string allocation = options.choice("allocation", allocations);
    settings.allocation =
        static_cast<Allocation>(std::ranges::find(allocations, allocation) - allocations.begin());
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
