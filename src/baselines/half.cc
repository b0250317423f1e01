// Half precision on the wire, float32 sums: what PyTorch's fp16 and bf16 hooks promise. Values are rounded
// once on the way up and once on the way down, instead of at every hop of a ring.
//
//   p --Q--> shards --direct exchange--> owner: float32 sum in rank order
//     --/ W, Q--> --direct exchange--> mean
//
// Each rank owns part `rank` of the bucket. residual = p - Q(p). The owner adds (sum of Q(p)) - W * mean for
// its shard. A value that overflows to infinity (beyond 65504 in fp16) makes the step non-finite on all
// ranks, by a flag in the frames.
//
// Bytes per rank: 2 for every element of the others' shards, and 2 (W - 1) for every element of its own.

#include "kernels/dense/half.h"

#include <string>

#include "baselines/baselines.h"
#include "core/partition.h"
#include "exchange/frames.h"
#include "kernels/dense/dense.h"
#include "thinwire/errors.h"

namespace thinwire {
namespace {

/// A frame whose payload is 16-bit floats.
struct HalfFrame {
  Span<std::byte> bytes;
  Span<std::uint16_t> values;
};

HalfFrame take_frame(Workspace& workspace, std::size_t elements) {
  const auto bytes = workspace.take<std::byte>(FrameHeader::kBytes + 2 * elements);
  return {bytes, {reinterpret_cast<std::uint16_t*>(bytes.data() + FrameHeader::kBytes), elements}};
}

/// One step. Shard s belongs to rank s; shards without elements do not travel.
class HalfExchange {
 public:
  HalfExchange(HalfFormat format, BucketId bucket, Span<float> gradient, Span<float> residual, Step& step)
      : format_(format),
        bucket_(bucket),
        gradient_(gradient),
        residual_(residual),
        step_(step),
        frames_(bucket, step),
        up_(step.workspace.take<HalfFrame>(frames_.world())),
        down_(step.workspace.take<HalfFrame>(frames_.world())) {
    take_frames(self());
    frames_.for_peers([&](std::size_t peer) { take_frames(peer); });
  }

  void run() {
    const auto parts = step_.workspace.take<Span<const std::uint16_t>>(frames_.world());
    send_up(parts);
    // Only the owner's residual needs the sums.
    const auto sums = step_.workspace.take<float>(residual_.empty() ? 0 : shard_size(self()));
    frames_.note(mean_of_halves(step_.executor, format_, parts, sums, down_[self()].values));
    send_down();
    step_.report.finite = frames_.finite();
    if (!frames_.finite()) return;
    step_.clock.enter(Phase::decompress);
    for (std::size_t owner = 0; owner < down_.size(); ++owner) {
      apply_half(step_.executor, format_, down_[owner].values, shard(gradient_, owner),
                 shard(residual_, owner));
    }
    if (residual_.empty()) return;
    add_remainder(step_.executor, sums, static_cast<float>(frames_.world()), shard(gradient_, self()),
                  shard(residual_, self()));
  }

 private:
  std::size_t self() const { return frames_.self(); }
  void take_frames(std::size_t owner) {
    up_[owner] = take_frame(step_.workspace, shard_size(owner));
    down_[owner] = take_frame(step_.workspace, shard_size(owner));
  }
  std::size_t shard_size(std::size_t owner) const {
    return part_size(gradient_.size(), frames_.world(), owner);
  }
  Span<float> shard(Span<float> span, std::size_t owner) const {
    return span.subspan(part_begin(gradient_.size(), frames_.world(), owner), shard_size(owner));
  }
  FrameContents contents(std::size_t owner, std::size_t workers) const {
    return {.type = format_ == HalfFormat::fp16 ? FrameType::half_fp16 : FrameType::half_bf16,
            .workers = static_cast<std::uint32_t>(workers),
            .first = part_begin(gradient_.size(), frames_.world(), owner),
            .count = shard_size(owner),
            .payload_bytes = 2 * shard_size(owner)};
  }

  /// Q(p) of every shard to its owner. parts: of this rank's shard, what every rank says of it.
  void send_up(Span<Span<const std::uint16_t>> parts) {
    const auto from = step_.workspace.take<HalfFrame>(frames_.world());
    parts[self()] = up_[self()].values;
    frames_.for_peers([&](std::size_t peer) {
      from[peer] = take_frame(step_.workspace, shard_size(self()));
      parts[peer] = from[peer].values;
      if (shard_size(self()) != 0) frames_.receive(peer, kHalfUpTag, from[peer].bytes);
    });
    const auto encode = [&](std::size_t owner) {
      frames_.note(encode_half(step_.executor, format_, shard(gradient_, owner), shard(residual_, owner),
                               up_[owner].values));
    };
    frames_.for_peers([&](std::size_t peer) {
      encode(peer);
      if (shard_size(peer) == 0) return;
      frames_.seal(up_[peer].bytes, contents(peer, 1));
      frames_.send(peer, kHalfUpTag, up_[peer].bytes);
    });
    encode(self());  // last: the others can start when theirs have arrived
    if (shard_size(self()) == 0) return;
    frames_.for_peers([&](std::size_t peer) { frames_.await(peer, from[peer].bytes, contents(self(), 1)); });
  }

  /// An owner flags a mean that is not finite. One that does not would spoil gradients and residuals.
  void require_finite(std::size_t owner) const {
    const std::uint16_t exponent = format_ == HalfFormat::fp16 ? 0x7C00 : 0x7F80;
    std::uint16_t bad = 0;  // as wide as the values, so that compilers take many at a time
    for (const std::uint16_t value : down_[owner].values) {
      bad |= static_cast<std::uint16_t>((value & exponent) == exponent);
    }
    if (bad == 0) return;
    throw CorruptFrame("frame refused: the mean of rank " + std::to_string(owner) + " for bucket " +
                       std::to_string(bucket_) + " in step " + std::to_string(step_.index) +
                       " holds inf or NaN, and its flags say that all is finite");
  }

  /// The owners' means to everyone.
  void send_down() {
    const std::size_t world = frames_.world();
    frames_.for_peers([&](std::size_t peer) {
      if (shard_size(peer) != 0) frames_.receive(peer, kHalfDownTag, down_[peer].bytes);
    });
    if (shard_size(self()) != 0) {
      frames_.seal(down_[self()].bytes, contents(self(), world));
      frames_.send_to_all(kHalfDownTag, down_[self()].bytes);
    }
    frames_.for_peers([&](std::size_t peer) {
      if (shard_size(peer) == 0) return;
      frames_.await(peer, down_[peer].bytes, contents(peer, world));
      if (frames_.finite()) require_finite(peer);
    });
    frames_.finish();
  }

  HalfFormat format_;
  BucketId bucket_;
  Span<float> gradient_;
  Span<float> residual_;
  Step& step_;
  Frames frames_;
  Span<HalfFrame> up_;    // this rank's, of every shard
  Span<HalfFrame> down_;  // the mean, of every shard
};

class Half final : public Synchronizer {
 public:
  explicit Half(HalfFormat format) : format_(format) {}

  void synchronize(BucketId bucket, Span<float> gradient, Span<float> residual, Step& step) override {
    require_matching(gradient, residual);
    HalfExchange(format_, bucket, gradient, residual, step).run();
  }

  std::uint64_t payload_bytes(const Workload& workload) const override {
    const auto world = static_cast<std::size_t>(workload.world_size);
    const std::uint64_t own = part_size(workload.elements, world, static_cast<std::size_t>(workload.rank));
    return 2 * (workload.elements - own) + 2 * (world - 1) * own;
  }

 private:
  HalfFormat format_;
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
