#include "systems/casq/server.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/partition.h"
#include "exchange/coded_exchange.h"
#include "kernels/codes/cluster_values.h"
#include "kernels/dense/dense.h"
#include "wire/coded_payload.h"

namespace thinwire {
namespace {

/// Codes of the elements from `first`, a multiple of 64, on.
Span<const std::uint64_t> codes_from(Span<const std::uint64_t> codes, std::size_t first, std::size_t bits) {
  return codes.subspan(first / 64 * bits, codes.size() - first / 64 * bits);
}

class OwnersStep {
 public:
  OwnersStep(BucketId bucket, Span<float> gradient, Span<float> residual, Step& step, const ServerPlan& plan)
      : gradient_(gradient),
        residual_(residual),
        step_(step),
        plan_(plan),
        frames_(bucket, step),
        shard_(shard(frames_.self())) {}

  void run() {
    send_codes();
    average_shard();
    if (plan_.requantised) {
      share_codes();
    } else {
      share_floats();
    }
    step_.report.finite = frames_.finite();
    if (!step_.report.finite) return;
    step_.clock.enter(Phase::decompress);
    if (plan_.requantised) decode_results();
    const RecodedShard own_shard{shard_.begin, average_, static_cast<float>(frames_.world())};
    const double squares = subtract_clusters(step_.executor, own_, own_shard, results_, gradient_, residual_);
    if (!residual_.empty()) step_.report.residual_norm = std::sqrt(squares);
  }

 private:
  Shard shard(std::size_t rank) const { return shard_of(gradient_.size(), frames_.world(), rank); }

  FrameContents contents(const Shard& shard, std::size_t table_floats, std::size_t workers) const {
    const CodedShape shape{plan_.uplink.bits, table_floats};
    return shape.contents(shard.size(), shard.begin, workers);
  }
  FrameContents uplink_contents(const Shard& shard) const { return contents(shard, plan_.uplink.cells(), 1); }

  Span<const float> laid_out(const ClusterSketch& sketch, Span<const float> means) {
    return lay_out_means(step_.workspace, sketch, means, gradient_.memory());
  }

  /// Codes everything and sends each owner its shard's codes.
  void send_codes() {
    const std::size_t bits = plan_.uplink.bits;
    arrived_ = step_.workspace.take<CodedFrame>(frames_.world());
    frames_.for_peers([&](std::size_t peer) {
      arrived_[peer] = CodedFrame();
      if (shard_.size() == 0) return;
      arrived_[peer] = CodedFrame(step_.workspace, plan_.uplink.cells(), shard_.size(), bits);
      frames_.receive(peer, kCasqUpTag, arrived_[peer].message());
    });
    codes_ = step_.workspace.take<std::uint64_t>(code_words(gradient_.size(), bits));
    means_ = step_.workspace.take<float>(plan_.uplink.cells());
    frames_.note(encode_clusters(step_.executor, step_.workspace, plan_.uplink.for_rank(frames_.self()), 0,
                                 gradient_, residual_, codes_, means_));
    if (!frames_.finite()) std::fill(means_.begin(), means_.end(), 0.0f);
    own_ = {plan_.uplink.for_rank(frames_.self()), laid_out(plan_.uplink, means_), codes_};
    frames_.for_peers([&](std::size_t owner) {
      const Shard theirs = shard(owner);
      if (theirs.size() == 0) return;
      const CodedFrame frame(step_.workspace, means_.size(), theirs.size(), bits);
      std::copy(means_.begin(), means_.end(), frame.table().begin());
      std::copy_n(codes_.data() + theirs.begin / 64 * bits, frame.codes().size(), frame.codes().data());
      frame.close();
      frames_.seal(frame.message(), uplink_contents(theirs));
      frames_.send(owner, kCasqUpTag, frame.message());
    });
  }

  /// The mean over ranks of this rank's shard, in rank order.
  void average_shard() {
    if (shard_.size() == 0) return;
    float bound = 0;
    const auto coded = step_.workspace.take<CodedClusters>(frames_.world());
    for (std::size_t rank = 0; rank < frames_.world(); ++rank) {
      if (rank == frames_.self()) {
        bound += bound_of_table(means_, rank);
        coded[rank] = {own_.sketch, own_.means, codes_from(codes_, shard_.begin, plan_.uplink.bits)};
        continue;
      }
      const CodedFrame& frame = arrived_[rank];
      frames_.await(rank, frame.message(), uplink_contents(shard_));
      bound += bound_of_table(frame.table(), rank);
      frame.open();
      coded[rank] = {plan_.uplink.for_rank(rank), laid_out(plan_.uplink, frame.table()), frame.codes()};
    }
    step_.clock.enter(Phase::decompress);
    average_ = step_.scratch.take<float>(shard_.size());
    average_clusters(step_.executor, coded, shard_.begin, average_);
    frames_.note(std::isfinite(bound));
    step_.clock.enter(Phase::compress);
  }

  /// One owner's result on its way.
  struct Result {
    ClusterSketch sketch;
    CodedFrame frame;
  };

  /// Where each owner's result arrives, and how it is coded.
  void expect_codes() {
    result_codes_ = step_.workspace.take<Result>(frames_.world());
    for (std::size_t owner = 0; owner < frames_.world(); ++owner) {
      Result& result = result_codes_[owner];
      result = {};
      const Shard theirs = shard(owner);
      if (theirs.size() == 0) continue;
      result.sketch = plan_.uplink.for_rank(owner);
      result.sketch.stream.hop = 1;
      const auto groups = plan_.downlink_groups(theirs);
      result.sketch.groups = groups;
      result.frame = CodedFrame(step_.workspace, result.sketch.cells(), theirs.size(), plan_.uplink.bits);
      if (owner != frames_.self()) {
        frames_.receive(owner, kCasqDownTag, result.frame.message());
      } else if (frames_.finite()) {
        plan_.set_downlink_thresholds(average_, groups);
      }
    }
  }

  /// Sends this rank's shard to all and receives theirs, as codes.
  void share_codes() {
    expect_codes();
    const auto result_contents = [&](std::size_t owner) {
      return contents(shard(owner), result_codes_[owner].sketch.cells(), frames_.world());
    };
    const Result& own = result_codes_[frames_.self()];
    if (shard_.size() != 0) {
      // Sums of finite averages may still leave the range of float32.
      frames_.note(frames_.finite() &&
                   encode_clusters(step_.executor, step_.workspace, own.sketch, shard_.begin, average_, {},
                                   own.frame.codes(), own.frame.table()));
      if (!frames_.finite()) blank(own.frame);
      own.frame.close();
      frames_.seal(own.frame.message(), result_contents(frames_.self()));
      frames_.send_to_all(kCasqDownTag, own.frame.message());
    }
    frames_.for_peers([&](std::size_t owner) {
      const CodedFrame& frame = result_codes_[owner].frame;
      if (frame.message().empty()) return;
      frames_.await(owner, frame.message(), result_contents(owner));
      bound_of_table(frame.table(), owner);
      frame.open();
    });
    frames_.finish();
    if (shard_.size() != 0) own.frame.open();
  }

  void decode_results() {
    results_ = step_.scratch.take<float>(gradient_.size());
    for (std::size_t owner = 0; owner < frames_.world(); ++owner) {
      const Shard theirs = shard(owner);
      const auto& [sketch, frame] = result_codes_[owner];
      decode_clusters(step_.executor, {sketch, laid_out(sketch, frame.table()), frame.codes()}, theirs.begin,
                      false, results_.subspan(theirs.begin, theirs.size()));
    }
  }

  /// As share_codes, with float32 results, which travel without frames and so lie in host memory.
  void share_floats() {
    frames_.finish();
    results_ = step_.workspace.take<float>(gradient_.size());
    const auto own = results_.subspan(shard_.begin, shard_.size());
    if (frames_.finite()) {
      copy(step_.executor, Span<const float>(average_), own);
    } else {
      std::fill(own.begin(), own.end(), std::numeric_limits<float>::quiet_NaN());
    }
    const auto counts = step_.workspace.take<std::size_t>(frames_.world());
    for (std::size_t rank = 0; rank < frames_.world(); ++rank)
      counts[rank] = shard(rank).size() * sizeof(float);
    step_.communicator.all_gather_v(as_bytes(own), as_writable_bytes(results_), counts);
    frames_.note(all_finite(step_.executor, results_));
  }

  Span<float> gradient_;
  Span<float> residual_;
  Step& step_;
  const ServerPlan& plan_;
  Frames frames_;
  Shard shard_;
  Span<CodedFrame> arrived_;
  Span<std::uint64_t> codes_;
  Span<float> means_;
  CodedClusters own_;  // the same for decoding
  Span<float> average_;
  Span<Result> result_codes_;
  Span<float> results_;
};

}  // namespace

Shard shard_of(std::size_t elements, std::size_t world, std::size_t rank) {
  const std::size_t groups = (elements + 63) / 64;
  auto end_of = [&](std::size_t part) { return std::min(elements, 64 * part_begin(groups, world, part)); };
  return {end_of(rank), end_of(rank + 1)};
}

void average_at_owners(BucketId bucket, Span<float> gradient, Span<float> residual, Step& step,
                       const ServerPlan& plan) {
  OwnersStep(bucket, gradient, residual, step, plan).run();
}

std::uint64_t owners_payload_bytes(std::size_t elements, std::size_t world, std::size_t rank,
                                   std::size_t bits, std::size_t cells, bool requantised,
                                   FunctionRef<std::size_t(const Shard&)> downlink_cells) {
  if (world < 2) return 0;
  std::uint64_t bytes = 0;
  for (std::size_t owner = 0; owner < world; ++owner) {
    const std::size_t count = shard_of(elements, world, owner).size();
    if (owner != rank && count != 0) bytes += 4 * cells + code_bytes(count, bits);
  }
  const Shard own = shard_of(elements, world, rank);
  if (own.size() == 0) return bytes;
  const std::uint64_t result =
      requantised ? 4 * downlink_cells(own) + code_bytes(own.size(), bits) : 4 * own.size();
  return bytes + (world - 1) * result;
}

}  // namespace thinwire
