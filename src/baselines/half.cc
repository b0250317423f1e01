// Half precision on the wire, float32 sums: what PyTorch's fp16 and bf16 hooks promise, but rounded once on
// the way up and once on the way down instead of at every hop of a ring.
//
//   p --Q--> shards --direct exchange--> owner: float32 sum in rank order --/W, Q--> --direct exchange-->
//   mean
//
// Each rank owns part `rank` of the bucket. residual = p - Q(p); the owner adds (sum of Q(p)) - W * mean for
// its shard. A value that overflows to infinity (beyond 65504 in fp16) makes the step non-finite on all
// ranks, by a flag in the frames. Bytes per rank: 2 for every element of the others' shards, and 2 (W - 1)
// for every element of its own.

#include <limits>
#include <vector>

#include "baselines/baselines.h"
#include "comm/pending_lease.h"
#include "comm/ring.h"
#include "core/partition.h"
#include "core/stopwatch.h"
#include "kernels/dense/dense.h"
#include "kernels/dense/half.h"
#include "wire/frame.h"

namespace thinwire {
namespace {

constexpr Communicator::Tag kUpTag = 20;
constexpr Communicator::Tag kDownTag = 21;

/// A frame whose payload is 16-bit floats.
struct HalfFrame {
  Span<std::byte> bytes;
  Span<std::uint16_t> values;
};

HalfFrame take_frame(Workspace& workspace, std::size_t elements) {
  const auto bytes = workspace.take<std::byte>(FrameHeader::kBytes + 2 * elements);
  return {bytes, {reinterpret_cast<std::uint16_t*>(bytes.data() + FrameHeader::kBytes), elements}};
}

class Half final : public Synchronizer {
 public:
  explicit Half(HalfFormat format) : format_(format) {}

  void synchronize(BucketId bucket, Span<float> gradient, Span<float> residual, Step& step) override {
    require_matching(gradient, residual);
    step.delivered = {};
    if (gradient.empty()) return;
    Exchange exchange(*this, bucket, gradient, residual, step);
    exchange.run();
  }

  std::uint64_t payload_bytes(const Workload& workload) const override {
    const auto world = static_cast<std::size_t>(workload.world_size);
    const std::uint64_t own = part_size(workload.elements, world, static_cast<std::size_t>(workload.rank));
    return 2 * (workload.elements - own) + 2 * (world - 1) * own;
  }

 private:
  /// One step. Shard s belongs to rank s.
  class Exchange {
   public:
    Exchange(Half& system, BucketId bucket, Span<float> gradient, Span<float> residual, Step& step)
        : format_(system.format_),
          uplinks_(system.uplinks_),
          downlinks_(system.downlinks_),
          bucket_(bucket),
          gradient_(gradient),
          residual_(residual),
          step_(step),
          world_(static_cast<std::size_t>(step.communicator.size())),
          self_(static_cast<std::size_t>(step.communicator.rank())) {}

    void run() {
      Stopwatch watch;
      const auto up = step_.workspace.take<HalfFrame>(world_);
      const auto down = step_.workspace.take<HalfFrame>(world_);
      const auto from = step_.workspace.take<HalfFrame>(world_);
      for (std::size_t peer = 0; peer < world_; ++peer) {
        up[peer] = take_frame(step_.workspace, shard_size(peer));
        down[peer] = take_frame(step_.workspace, shard_size(peer));
        from[peer] = take_frame(step_.workspace, shard_size(self_));
      }
      SendWindow sends;
      PendingLease uplinks(uplinks_, world_);
      for (std::size_t peer = 0; peer < world_; ++peer) {
        if (peer == self_ || shard_size(self_) == 0) continue;
        uplinks[peer] = step_.communicator.receive(static_cast<int>(peer), kUpTag, from[peer].bytes);
      }
      for (std::size_t shift = 0; shift < world_; ++shift) {
        // One's own shard last: the others can start when theirs have arrived.
        const std::size_t peer = (self_ + 1 + shift) % world_;
        const bool finite = encode_half(step_.executor, format_, shard(gradient_, peer),
                                        shard(residual_, peer), up[peer].values);
        non_finite_ = non_finite_ || !finite;
        if (peer != self_ && shard_size(peer) != 0) {
          seal(up[peer], peer, 1);
          sends.push(send(peer, kUpTag, up[peer]));
        }
      }
      step_.report.seconds_compress += watch.lap();

      const auto parts = step_.workspace.take<Span<const std::uint16_t>>(world_);
      for (std::size_t peer = 0; peer < world_; ++peer) {
        parts[peer] = peer == self_ ? up[self_].values : from[peer].values;
        if (peer == self_ || shard_size(self_) == 0) continue;
        uplinks[peer].wait();
        check(from[peer].bytes, peer, self_, 1);
      }
      step_.report.seconds_wait += watch.lap();
      // Only the owner's residual needs the sums.
      const auto sums = step_.workspace.take<float>(residual_.empty() ? 0 : shard_size(self_));
      const bool finite = mean_of_halves(step_.executor, format_, parts, sums, down[self_].values);
      non_finite_ = non_finite_ || !finite;
      PendingLease downlinks(downlinks_, world_);
      for (std::size_t peer = 0; peer < world_; ++peer) {
        if (peer == self_ || shard_size(peer) == 0) continue;
        downlinks[peer] = step_.communicator.receive(static_cast<int>(peer), kDownTag, down[peer].bytes);
      }
      if (shard_size(self_) != 0) {
        seal(down[self_], self_, static_cast<std::uint32_t>(world_));
        for (std::size_t shift = 1; shift < world_; ++shift) {
          sends.push(send((self_ + shift) % world_, kDownTag, down[self_]));
        }
      }
      step_.report.seconds_compress += watch.lap();
      for (std::size_t peer = 0; peer < world_; ++peer) {
        if (peer == self_ || shard_size(peer) == 0) continue;
        downlinks[peer].wait();
        check(down[peer].bytes, peer, peer, static_cast<std::uint32_t>(world_));
      }
      sends.wait_all();
      step_.report.seconds_wait += watch.lap();
      apply(sums, down);
      step_.report.seconds_decompress += watch.lap();
    }

   private:
    std::size_t shard_size(std::size_t owner) const { return part_size(gradient_.size(), world_, owner); }
    Span<float> shard(Span<float> span, std::size_t owner) const {
      return span.subspan(part_begin(gradient_.size(), world_, owner), shard_size(owner));
    }

    FrameHeader header(std::size_t source, std::size_t owner, std::uint32_t workers) const {
      FrameHeader result;
      result.type = format_ == HalfFormat::fp16 ? FrameType::half_fp16 : FrameType::half_bf16;
      result.bucket = bucket_;
      result.step = step_.index;
      result.source = static_cast<std::uint32_t>(source);
      result.workers = workers;
      result.first = part_begin(gradient_.size(), world_, owner);
      result.count = shard_size(owner);
      result.payload_bytes = 2 * result.count;
      return result;
    }

    /// Before the frame goes to anyone: a message under way may not be written to.
    void seal(const HalfFrame& frame, std::size_t owner, std::uint32_t workers) {
      FrameHeader sealed = header(self_, owner, workers);
      sealed.flags = non_finite_ ? FrameHeader::kNonFinite : std::uint16_t{0};
      write_frame_header(frame.bytes, sealed);
    }

    Pending send(std::size_t peer, Communicator::Tag tag, const HalfFrame& frame) {
      step_.report.frame_header_bytes += FrameHeader::kBytes;
      return step_.communicator.send(static_cast<int>(peer), tag, frame.bytes);
    }

    void check(Span<const std::byte> bytes, std::size_t source, std::size_t owner, std::uint32_t workers) {
      const FrameHeader arrived = expect_frame(bytes, header(source, owner, workers));
      non_finite_ = non_finite_ || arrived.non_finite();
    }

    void apply(Span<const float> sums, Span<const HalfFrame> down) {
      step_.report.finite = !non_finite_;
      if (non_finite_) {
        fill(step_.executor, gradient_, std::numeric_limits<float>::quiet_NaN());
        return;
      }
      for (std::size_t owner = 0; owner < world_; ++owner) {
        apply_half(step_.executor, format_, down[owner].values, shard(gradient_, owner),
                   shard(residual_, owner));
      }
      if (residual_.empty()) return;
      add_remainder(step_.executor, sums, static_cast<float>(world_), shard(gradient_, self_),
                    shard(residual_, self_));
    }

    HalfFormat format_;
    std::vector<Pending>& uplinks_;
    std::vector<Pending>& downlinks_;
    BucketId bucket_;
    Span<float> gradient_;
    Span<float> residual_;
    Step& step_;
    std::size_t world_;
    std::size_t self_;
    bool non_finite_ = false;
  };

  HalfFormat format_;
  std::vector<Pending> uplinks_;
  std::vector<Pending> downlinks_;
};

}  // namespace

SystemInfo half_info() {
  SystemInfo info;
  info.name = "half";
  info.summary = "16-bit floats on the wire, float32 sums";
  info.paper = "baseline; compare PyTorch's fp16_compress_hook";
  info.formula = "2(W-1)/W * 2d";
  info.options = {{"format", "fp16", "fp16 or bf16"}};
  info.make = [](const Options& options, Inner) -> std::unique_ptr<Synchronizer> {
    const bool fp16 = options.choice("format", {"fp16", "bf16"}) == "fp16";
    return std::make_unique<Half>(fp16 ? HalfFormat::fp16 : HalfFormat::bf16);
  };
  return info;
}

}  // namespace thinwire
