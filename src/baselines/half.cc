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
// In a reduce-scatter the owner keeps the mean in float32, and residual = p - Q(p).
//
// Bytes per rank: 2 for every element of the others' shards, and 2 (W - 1) for every element of its own. In a
// reduce-scatter the former alone.

#include "kernels/dense/half.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "baselines/baselines.h"
#include "core/partition.h"
#include "exchange/shard_exchange.h"
#include "kernels/dense/dense.h"
#include "thinwire/errors.h"

namespace thinwire {
namespace {

/// The payload of a frame whose codes are 16-bit floats, one after the other.
Span<std::uint16_t> halves_in(const CodedFrame& frame) {
  return {reinterpret_cast<std::uint16_t*>(frame.codes().data()), frame.payload_bytes() / 2};
}

class HalfExchange final : public ShardExchange {
 public:
  HalfExchange(HalfFormat format, BucketId bucket, Span<float> gradient, Span<float> residual, Step& step)
      : ShardExchange(bucket, gradient, residual, step, {kHalfUpTag, kHalfDownTag}),
        format_(format),
        bucket_(bucket),
        // Only the owner's residual needs the sums, or a reduce-scatter.
        sums_(step.workspace.take<float>(residual.empty() && !step.reduce_scatter ? 0
                                                                                  : shard(self()).size())) {}

  void run() {
    ShardExchange::run();
    if (step_.report.finite && !residual_.empty()) step_.report.residual_norm = std::sqrt(squares_);
  }

 private:
  Codes codes(std::size_t owner, Leg) const override {
    const FrameType type = format_ == HalfFormat::fp16 ? FrameType::half_fp16 : FrameType::half_bf16;
    return {{.bits = 16, .type = type}, shard(owner).size()};
  }

  void encode(std::size_t owner) override {
    if (owner == self()) arrived_[owner] = up_[owner] = take_frame(owner, Leg::up);
    frames_.note(encode_half(step_.executor, format_, shard_in(gradient_, owner), shard_in(residual_, owner),
                             halves_in(up_[owner])));
  }

  void encode_result() override {
    const auto parts = step_.workspace.take<Span<const std::uint16_t>>(world());
    std::transform(arrived_.begin(), arrived_.end(), parts.begin(), halves_in);
    means_ =
        step_.reduce_scatter ? step_.workspace.take<std::uint16_t>(sums_.size()) : halves_in(down_[self()]);
    frames_.note(mean_of_halves(step_.executor, format_, parts, sums_, means_));
  }

  /// An owner flags a mean that is not finite. One that does not would spoil gradients and residuals.
  void accept(std::size_t owner, const CodedFrame& frame, Leg leg) override {
    if (leg == Leg::up || !frames_.finite()) return;
    const std::uint16_t exponent = format_ == HalfFormat::fp16 ? 0x7C00 : 0x7F80;
    std::uint16_t bad = 0;  // as wide as the values, so that compilers take many at a time
    for (const std::uint16_t value : halves_in(frame)) {
      bad |= static_cast<std::uint16_t>((value & exponent) == exponent);
    }
    if (bad == 0) return;
    throw CorruptFrame("frame refused: the mean of rank " + std::to_string(owner) + " for bucket " +
                       std::to_string(bucket_) + " in step " + std::to_string(step_.index) +
                       " holds inf or NaN, and its flags say that all is finite");
  }

  void apply(std::size_t owner) override {
    const auto mean = shard_in(gradient_, owner);
    const ResidualSpan left = turned_shard(owner);
    if (step_.reduce_scatter) {
      squares_ +=
          apply_half(step_.executor, format_, owner == self() ? means_ : halves_in(up_[owner]), mean, left);
      if (owner != self()) return;
      copy(step_.executor, Span<const float>(sums_), mean);
      scale(step_.executor, mean, 1.0f / static_cast<float>(world()));
      return;
    }
    double squares = apply_half(step_.executor, format_, halves_in(down_[owner]), mean, left);
    if (owner == self() && !left.empty()) {
      squares = add_remainder(step_.executor, sums_, static_cast<float>(world()), mean, left.after);
    }
    squares_ += squares;
  }

  HalfFormat format_;
  BucketId bucket_;
  Span<float> sums_;           // of this rank's shard
  Span<std::uint16_t> means_;  // of them
  double squares_ = 0;         // of the residual
};

class Half final : public Synchronizer {
 public:
  explicit Half(HalfFormat format) : format_(format) {}

  bool keeps_little(BucketId) const override { return true; }

  void synchronize(BucketId bucket, Span<float> gradient, Span<float> residual, Step& step) override {
    HalfExchange(format_, bucket, gradient, residual, step).run();
  }

  std::uint64_t payload_bytes(const Workload& workload) const override {
    const auto world = static_cast<std::size_t>(workload.world_size);
    const std::uint64_t own = part_size(workload.elements, world, static_cast<std::size_t>(workload.rank));
    if (workload.reduce_scatter) return 2 * (workload.elements - own);
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
  info.turns_residual = true;
  info.reduce_scatters = true;
  info.options = {{"format", "fp16", "fp16 or bf16"}};
  info.make = [](const Options& options, Inner) -> std::unique_ptr<Synchronizer> {
    for (const char* whole : {"fp32", "float32"}) {
      if (options.text("format") == whole) options.refuse("format", "fp16 or bf16; dense sends 32 bits");
    }
    const bool fp16 = options.choice("format", {"fp16", "bf16"}) == "fp16";
    return std::make_unique<Half>(fp16 ? HalfFormat::fp16 : HalfFormat::bf16);
  };
  return info;
}

}  // namespace thinwire
