#include "systems/casq/server.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "exchange/collectives.h"
#include "kernels/codes/cluster_values.h"
#include "kernels/dense/dense.h"

namespace thinwire {
namespace {

/// Codes of the elements from `first`, a multiple of 64, on.
Span<const std::uint64_t> codes_from(Span<const std::uint64_t> codes, std::size_t first, std::size_t bits) {
  return codes.subspan(first / 64 * bits, codes.size() - first / 64 * bits);
}

class OwnersStep final : public ShardExchange {
 public:
  OwnersStep(BucketId bucket, Span<float> gradient, Span<float> residual, Step& step, const ServerPlan& plan)
      : ShardExchange(bucket, gradient, residual, step, {kCasqUpTag, kCasqDownTag}, kShardRun), plan_(plan) {}

  void run() {
    step_.communicator.commit_exchange();
    code_bucket();
    send_parts();
    average_shard();
    if (plan_.requantised) {
      lay_out_results();
      send_results();
    } else {
      share_floats();
    }
    step_.report.finite = frames_.finite();
    if (!step_.report.finite) return;
    step_.clock.enter(Phase::decompress);
    if (plan_.requantised) decode_results();
    const RecodedShard recoded{own_shard_.begin, average_, static_cast<float>(world())};
    const double squares =
        subtract_clusters(step_.executor, own_, recoded, results_, gradient_, step_.turn.write(residual_));
    if (!residual_.empty()) step_.report.residual_norm = std::sqrt(squares);
  }

 private:
  Codes codes(std::size_t owner, Leg leg) const override {
    const ClusterSketch& sketch = leg == Leg::up ? plan_.uplink : result_sketches_[owner];
    return {{plan_.uplink.bits, weights_in(sketch) + sketch.cells()}, shard(owner).size()};
  }

  /// How many floats of its tables are weights.
  std::size_t weights_in(const ClusterSketch& sketch) const {
    return plan_.weights.empty() ? 0 : sketch.clusters() * sketch.groups.size();
  }

  /// What rank `source` says with the sketch of a table: its means, and how they are shared by its weights.
  CodedClusters read(const ClusterSketch& sketch, Span<const float> table, Span<const std::uint64_t> codes,
                     std::size_t source) {
    const std::size_t count = weights_in(sketch);
    const ClusterSketch own =
        count == 0 ? sketch : with_weights(step_.workspace, sketch, table.first(count), source);
    return {own, laid_out(own, table.subspan(count, table.size() - count)), codes};
  }

  Span<const float> laid_out(const ClusterSketch& sketch, Span<const float> means) {
    return lay_out_means(step_.workspace, sketch, means, gradient_.memory());
  }

  void code_bucket() {
    codes_ = step_.workspace.take<std::uint64_t>(code_words(gradient_.size(), plan_.uplink.bits));
    const std::size_t weights = weights_in(plan_.uplink);
    table_ = step_.workspace.take<float>(weights + plan_.uplink.cells());
    std::ranges::copy(plan_.weights, table_.begin());
    const auto means = table_.subspan(weights, plan_.uplink.cells());
    frames_.note(encode_clusters(step_.executor, step_.workspace, plan_.uplink.for_rank(self()), 0, gradient_,
                                 residual_, codes_, means));
    if (!frames_.finite()) std::ranges::fill(means, 0.0f);
    own_ = {plan_.uplink.for_rank(self()), laid_out(plan_.uplink, means), codes_};
  }

  /// The owner's part of the codes, and the whole table.
  void encode(std::size_t owner) override {
    if (owner == self()) return;
    const CodedFrame& frame = up_[owner];
    std::ranges::copy(table_, frame.table().begin());
    const auto codes = codes_from(codes_, shard(owner).begin, plan_.uplink.bits);
    std::copy_n(codes.data(), frame.codes().size(), frame.codes().data());
    frame.close();
  }

  void accept(std::size_t source, const CodedFrame& frame, Leg leg) override {
    const float bound = bound_of_table(frame.table(), source);
    frame.open();
    if (leg == Leg::down) return;
    bounds_[source] = bound;
    coded_[source] = read(plan_.uplink.for_rank(source), frame.table(), frame.codes(), source);
  }

  /// The mean over ranks of this rank's shard, in rank order.
  void average_shard() {
    if (own_shard_.size() == 0) return;
    bounds_[self()] = bound_of_table(table_, self());
    coded_[self()] = {own_.sketch, own_.means, codes_from(codes_, own_shard_.begin, plan_.uplink.bits)};
    step_.clock.enter(Phase::decompress);
    average_ = step_.scratch.take<float>(own_shard_.size());
    average_clusters(step_.executor, coded_, own_shard_.begin, average_);
    frames_.note(std::isfinite(std::accumulate(bounds_.begin(), bounds_.end(), 0.0f)));
    step_.clock.enter(Phase::compress);
  }

  /// How each owner's result is coded.
  void lay_out_results() {
    result_sketches_ = step_.workspace.take<ClusterSketch>(world());
    for (std::size_t owner = 0; owner < world(); ++owner) {
      ClusterSketch& sketch = result_sketches_[owner];
      sketch = plan_.uplink.for_rank(owner);
      sketch.stream.hop = 1;
      const auto groups = plan_.downlink_groups(shard(owner));
      sketch.groups = groups;
      if (owner == self()) own_groups_ = groups;
    }
  }

  void encode_result() override {
    const CodedFrame& own = down_[self()];
    if (frames_.finite()) {
      plan_.set_downlink_thresholds(average_, own_groups_);
      // Sums of finite averages may still leave the range of float32.
      const std::size_t weights = weights_in(result_sketches_[self()]);
      std::ranges::copy(plan_.shard_weights, own.table().begin());
      frames_.note(encode_clusters(step_.executor, step_.workspace, result_sketches_[self()],
                                   own_shard_.begin, average_, {}, own.codes(),
                                   own.table().subspan(weights, own.table().size() - weights)));
    }
    if (!frames_.finite()) blank(own);
    own.close();
  }

  void decode_results() {
    results_ = step_.scratch.take<float>(gradient_.size());
    for (std::size_t owner = 0; owner < world(); ++owner) {
      if (shard(owner).size() != 0) apply(owner);
    }
  }

  /// The shard's mean, to results_.
  void apply(std::size_t owner) override {
    const CodedFrame& frame = down_[owner];
    if (owner == self()) frame.open();
    decode_clusters(step_.executor, read(result_sketches_[owner], frame.table(), frame.codes(), owner),
                    shard(owner).begin, false, shard_in(results_, owner));
  }

  /// The results of all shards as float32, which travel without frames and so lie in host memory.
  void share_floats() {
    frames_.finish();
    results_ = step_.workspace.take<float>(gradient_.size());
    const auto own = results_.subspan(own_shard_.begin, own_shard_.size());
    if (frames_.finite()) {
      copy(step_.executor, Span<const float>(average_), own);
    } else {
      std::ranges::fill(own, 0.0f);
      mark_not_finite(step_.executor, own);
    }
    const auto counts = step_.workspace.take<std::size_t>(world());
    for (std::size_t rank = 0; rank < world(); ++rank) counts[rank] = shard(rank).size() * sizeof(float);
    step_.communicator.all_gather_v(as_bytes(own), as_writable_bytes(results_), counts);
    frames_.note(all_finite(step_.executor, results_));
  }

  const ServerPlan& plan_;
  const Shard own_shard_ = shard(self());
  // What the ranks say of this rank's shard, and the bounds on it, by rank.
  Span<CodedClusters> coded_ = step_.workspace.take<CodedClusters>(world());
  Span<float> bounds_ = step_.workspace.take<float>(world());
  Span<std::uint64_t> codes_;
  Span<float> table_;
  CodedClusters own_;  // the same for decoding
  Span<float> average_;
  Span<ClusterSketch> result_sketches_;  // by owner
  Span<ClusterGroup> own_groups_;
  Span<float> results_;
};

}  // namespace

void average_at_owners(BucketId bucket, Span<float> gradient, Span<float> residual, Step& step,
                       const ServerPlan& plan) {
  OwnersStep(bucket, gradient, residual, step, plan).run();
}

std::uint64_t owners_payload_bytes(std::size_t elements, std::size_t world, std::size_t rank,
                                   std::size_t bits, std::size_t floats, bool requantised,
                                   FunctionRef<std::size_t(const Shard&)> downlink_floats) {
  const auto up = [&](std::size_t owner) -> std::uint64_t {
    const std::size_t count = shard_of(elements, world, owner, kShardRun).size();
    return count == 0 ? 0 : 4 * floats + code_bytes(count, bits);
  };
  const auto down = [&](std::size_t owner) -> std::uint64_t {
    const Shard shard = shard_of(elements, world, owner, kShardRun);
    if (shard.size() == 0) return 0;
    return requantised ? 4 * downlink_floats(shard) + code_bytes(shard.size(), bits) : 4 * shard.size();
  };
  return shard_exchange_bytes(world, rank, up, down);
}

}  // namespace thinwire
