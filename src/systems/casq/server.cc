#include "systems/casq/server.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "comm/pending_lease.h"
#include "comm/ring.h"
#include "core/partition.h"
#include "core/stopwatch.h"
#include "exchange/coded_exchange.h"
#include "kernels/codes/cluster_values.h"
#include "kernels/dense/dense.h"
#include "wire/coded_payload.h"

namespace thinwire {
namespace {

constexpr Communicator::Tag kUplinkTag = 52;
constexpr Communicator::Tag kDownlinkTag = 53;

/// Codes of the elements from `first`, a multiple of 64, on.
Span<const std::uint64_t> codes_from(Span<const std::uint64_t> codes, std::size_t first, std::size_t bits) {
  return codes.subspan(first / 64 * bits, codes.size() - first / 64 * bits);
}

class OwnersStep {
 public:
  OwnersStep(BucketId bucket, Span<float> gradient, Span<float> residual, Step& step, const ServerPlan& plan,
             std::vector<Pending>& pendings)
      : bucket_(bucket),
        gradient_(gradient),
        residual_(residual),
        step_(step),
        plan_(plan),
        pendings_(pendings),
        world_(static_cast<std::size_t>(step.communicator.size())),
        self_(static_cast<std::size_t>(step.communicator.rank())),
        shard_(shard_of(gradient.size(), world_, self_)) {}

  void run() {
    const bool finite = send_codes();
    const bool average_finite = average_shard() && finite;
    step_.report.finite = plan_.requantised ? share_codes(average_finite) : share_floats(average_finite);
    if (!step_.report.finite) {
      fill(step_.executor, gradient_, std::numeric_limits<float>::quiet_NaN());
      return;
    }
    finish();
  }

 private:
  FrameHeader header(std::size_t source, std::size_t workers, const Shard& shard, const CodedFrame& frame) {
    FrameHeader header;
    header.type = FrameType::codes;
    header.bucket = bucket_;
    header.step = step_.index;
    header.source = static_cast<std::uint32_t>(source);
    header.workers = static_cast<std::uint32_t>(workers);
    header.first = shard.begin;
    header.count = shard.size();
    header.width = static_cast<std::uint32_t>(plan_.uplink.bits);
    header.payload_bytes = frame.payload_bytes();
    return header;
  }

  Shard shard(std::size_t rank) const { return shard_of(gradient_.size(), world_, rank); }

  Span<const float> laid_out(const ClusterSketch& sketch, Span<const float> means) {
    return lay_out_means(step_.workspace, sketch, means, gradient_.memory());
  }

  /// Codes everything and sends each owner its shard's codes. Returns whether all elements are finite.
  bool send_codes() {
    Stopwatch watch;
    const std::size_t bits = plan_.uplink.bits;
    arrived_ = step_.workspace.take<CodedFrame>(world_);
    receives_.emplace(pendings_, world_);
    for (std::size_t peer = 0; peer < world_; ++peer) {
      arrived_[peer] = CodedFrame();
      if (peer == self_ || shard_.size() == 0) continue;
      arrived_[peer] = CodedFrame(step_.workspace, plan_.uplink.buckets(), shard_.size(), bits);
      (*receives_)[peer] =
          step_.communicator.receive(static_cast<int>(peer), kUplinkTag, arrived_[peer].message());
    }
    codes_ = step_.workspace.take<std::uint64_t>(code_words(gradient_.size(), bits));
    means_ = step_.workspace.take<float>(plan_.uplink.buckets());
    const bool finite = encode_clusters(step_.executor, step_.workspace, plan_.uplink.for_rank(self_), 0,
                                        gradient_, residual_, codes_, means_);
    if (!finite) std::fill(means_.begin(), means_.end(), 0.0f);
    own_ = {plan_.uplink.for_rank(self_), laid_out(plan_.uplink, means_), codes_};
    step_.report.seconds_compress += watch.lap();
    for (std::size_t shift = 1; shift < world_; ++shift) {
      const std::size_t owner = (self_ + shift) % world_;
      const Shard theirs = shard(owner);
      if (theirs.size() == 0) continue;
      const CodedFrame frame(step_.workspace, means_.size(), theirs.size(), bits);
      FrameHeader head = header(self_, 1, theirs, frame);
      head.flags = finite ? std::uint16_t{0} : FrameHeader::kNonFinite;
      write_frame_header(frame.message(), head);
      std::copy(means_.begin(), means_.end(), frame.table().begin());
      std::copy_n(codes_.data() + theirs.begin / 64 * bits, frame.codes().size(), frame.codes().data());
      frame.close();
      step_.report.seconds_compress += watch.lap();
      send(owner, kUplinkTag, frame.message());
    }
    return finite;
  }

  void send(std::size_t peer, Communicator::Tag tag, Span<const std::byte> message) {
    sends_.push(step_.communicator.send(static_cast<int>(peer), tag, message));
    step_.report.frame_header_bytes += FrameHeader::kBytes;
  }

  /// The mean over ranks of this rank's shard, in rank order. Returns whether the others were finite.
  bool average_shard() {
    if (shard_.size() == 0) return true;
    Stopwatch watch;
    bool finite = true;
    float bound = bound_of_table(means_, self_);
    const auto coded = step_.workspace.take<CodedClusters>(world_);
    coded[self_] = {own_.sketch, own_.means, codes_from(codes_, shard_.begin, plan_.uplink.bits)};
    for (std::size_t peer = 0; peer < world_; ++peer) {
      if (peer == self_) continue;
      (*receives_)[peer].wait();
      const CodedFrame& frame = arrived_[peer];
      finite = !expect_frame(frame.message(), header(peer, 1, shard_, frame)).non_finite() && finite;
      bound += bound_of_table(frame.table(), peer);
      frame.open();
      coded[peer] = {plan_.uplink.for_rank(peer), laid_out(plan_.uplink, frame.table()), frame.codes()};
    }
    step_.report.seconds_wait += watch.lap();
    average_ = step_.scratch.take<float>(shard_.size());
    average_clusters(step_.executor, coded, shard_.begin, average_);
    step_.report.seconds_decompress += watch.lap();
    return finite && std::isfinite(bound);
  }

  /// One owner's result on its way.
  struct Result {
    ClusterSketch sketch;
    CodedFrame frame;
  };

  /// Sends this rank's shard to all and receives theirs, as codes, into results_. Returns whether every rank
  /// was finite.
  bool share_codes(bool finite) {
    Stopwatch watch;
    const std::size_t bits = plan_.uplink.bits;
    const auto results = step_.workspace.take<Result>(world_);
    for (std::size_t owner = 0; owner < world_; ++owner) {
      results[owner] = {};
      const Shard theirs = shard(owner);
      if (theirs.size() == 0) continue;
      Result& result = results[owner];
      result.sketch = plan_.uplink.for_rank(owner);
      result.sketch.stream.hop = 1;
      const auto groups = plan_.downlink_groups(theirs);
      result.sketch.groups = groups;
      result.frame = CodedFrame(step_.workspace, result.sketch.buckets(), theirs.size(), bits);
      if (owner == self_) {
        if (finite) plan_.set_downlink_thresholds(average_, groups);
        continue;
      }
      (*receives_)[owner] =
          step_.communicator.receive(static_cast<int>(owner), kDownlinkTag, result.frame.message());
    }
    const CodedFrame& own = results[self_].frame;
    if (shard_.size() != 0) {
      // Sums of finite averages may still leave the range of float32.
      finite = finite && encode_clusters(step_.executor, step_.workspace, results[self_].sketch, shard_.begin,
                                         average_, {}, own.codes(), own.table());
      if (!finite) {
        std::fill(own.codes().begin(), own.codes().end(), 0);
        std::fill(own.table().begin(), own.table().end(), 0.0f);
      }
      FrameHeader head = header(self_, world_, shard_, own);
      head.flags = finite ? std::uint16_t{0} : FrameHeader::kNonFinite;
      write_frame_header(own.message(), head);
      own.close();
      step_.report.seconds_compress += watch.lap();
      for (std::size_t shift = 1; shift < world_; ++shift) {
        send((self_ + shift) % world_, kDownlinkTag, own.message());
      }
    }
    for (std::size_t owner = 0; owner < world_; ++owner) {
      const CodedFrame& frame = results[owner].frame;
      if (owner == self_ || frame.message().empty()) continue;
      (*receives_)[owner].wait();
      const FrameHeader expected = header(owner, world_, shard(owner), frame);
      finite = !expect_frame(frame.message(), expected).non_finite() && finite;
      bound_of_table(frame.table(), owner);
      frame.open();
    }
    sends_.wait_all();
    if (shard_.size() != 0) own.open();
    step_.report.seconds_wait += watch.lap();
    if (!finite) return false;
    results_ = step_.scratch.take<float>(gradient_.size());
    for (std::size_t owner = 0; owner < world_; ++owner) {
      const Shard theirs = shard(owner);
      const auto& [sketch, frame] = results[owner];
      decode_clusters(step_.executor, {sketch, laid_out(sketch, frame.table()), frame.codes()}, theirs.begin,
                      false, results_.subspan(theirs.begin, theirs.size()));
    }
    step_.report.seconds_decompress += watch.lap();
    return true;
  }

  /// As share_codes, with float32 results, which travel without frames and so lie in host memory.
  bool share_floats(bool finite) {
    sends_.wait_all();
    results_ = step_.workspace.take<float>(gradient_.size());
    const auto own = results_.subspan(shard_.begin, shard_.size());
    if (finite) {
      copy(step_.executor, Span<const float>(average_), own);
    } else {
      std::fill(own.begin(), own.end(), std::numeric_limits<float>::quiet_NaN());
    }
    const auto counts = step_.workspace.take<std::size_t>(world_);
    for (std::size_t rank = 0; rank < world_; ++rank) counts[rank] = shard(rank).size() * sizeof(float);
    Stopwatch watch;
    step_.communicator.all_gather_v(as_bytes(own), as_writable_bytes(results_), counts);
    step_.report.seconds_wait += watch.seconds();
    return all_finite(step_.executor, results_);
  }

  void finish() {
    Stopwatch watch;
    const RecodedShard own_shard{shard_.begin, average_, static_cast<float>(world_)};
    const double squares = subtract_clusters(step_.executor, own_, own_shard, results_, gradient_, residual_);
    if (!residual_.empty()) step_.report.residual_norm = std::sqrt(squares);
    step_.report.seconds_decompress += watch.lap();
  }

  BucketId bucket_;
  Span<float> gradient_;
  Span<float> residual_;
  Step& step_;
  const ServerPlan& plan_;
  std::vector<Pending>& pendings_;
  std::size_t world_;
  std::size_t self_;
  Shard shard_;
  std::optional<PendingLease> receives_;
  SendWindow sends_;
  Span<CodedFrame> arrived_;
  Span<std::uint64_t> codes_;
  Span<float> means_;
  CodedClusters own_;  // the same for decoding
  Span<float> average_;
  Span<float> results_;
};

}  // namespace

Shard shard_of(std::size_t elements, std::size_t world, std::size_t rank) {
  const std::size_t groups = (elements + 63) / 64;
  auto end_of = [&](std::size_t part) { return std::min(elements, 64 * part_begin(groups, world, part)); };
  return {end_of(rank), end_of(rank + 1)};
}

void average_at_owners(BucketId bucket, Span<float> gradient, Span<float> residual, Step& step,
                       const ServerPlan& plan, std::vector<Pending>& pendings) {
  OwnersStep(bucket, gradient, residual, step, plan, pendings).run();
}

std::uint64_t owners_payload_bytes(std::size_t elements, std::size_t world, std::size_t rank,
                                   std::size_t bits, std::size_t buckets, bool requantised,
                                   FunctionRef<std::size_t(const Shard&)> downlink_buckets) {
  if (world < 2) return 0;
  std::uint64_t bytes = 0;
  for (std::size_t owner = 0; owner < world; ++owner) {
    const std::size_t count = shard_of(elements, world, owner).size();
    if (owner != rank && count != 0) bytes += 4 * buckets + code_bytes(count, bits);
  }
  const Shard own = shard_of(elements, world, rank);
  if (own.size() == 0) return bytes;
  const std::uint64_t result =
      requantised ? 4 * downlink_buckets(own) + code_bytes(own.size(), bits) : 4 * own.size();
  return bytes + (world - 1) * result;
}

}  // namespace thinwire
