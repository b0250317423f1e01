#include "exchange/reduce_scatter.h"

#include <cmath>
#include <numeric>

#include "kernels/dense/dense.h"

namespace thinwire {
namespace {

class CodedParts final : public ShardExchange {
 public:
  CodedParts(BucketId bucket, Span<float> gradient, Span<float> residual, Step& step,
             FunctionRef<CodedShape(std::size_t owner)> shape, Coder& own, WithCoder others)
      : ShardExchange(bucket, gradient, residual, step, {kScatterTag, kScatteredTag}),
        shape_(shape),
        own_(own),
        others_(others) {}

  /// Of the new residual.
  double squares() const { return squares_; }

 private:
  Codes codes(std::size_t owner, Leg) const override { return {shape_(owner), shard(owner).size()}; }

  void encode(std::size_t owner) override {
    if (owner != self()) {
      others_(owner, [&](Coder& coder) { encode(coder, up_[owner]); });
      up_[owner].close();
      return;
    }
    arrived_[owner] = take_frame(owner, Leg::up);
    encode(own_, arrived_[owner]);
  }

  void encode(Coder& coder, const CodedFrame& frame) {
    const bool finite = coder.encode(frame.table(), frame.codes());
    frames_.note(finite);
    if (!finite) blank(frame);
  }

  void accept(std::size_t source, const CodedFrame& frame, Leg leg) override {
    if (leg == Leg::down) return;
    take_table(source, frame);
    frame.open();
  }

  void take_table(std::size_t source, const CodedFrame& frame) {
    bounds_[source] = bound_of_table(frame.table(), source);
    own_.prepare(source, frame.table());
  }

  void encode_result() override {
    take_table(self(), arrived_[self()]);
    frames_.note(std::isfinite(std::accumulate(bounds_.begin(), bounds_.end(), 0.0f)));
  }

  void apply(std::size_t owner) override {
    const auto part = shard_in(gradient_, owner);
    const ResidualSpan left = turned_shard(owner);
    if (owner == self()) {
      squares_ += own_.average(step_.executor, arrived_, owner, part, left);
    } else if (!left.empty()) {
      up_[owner].open();
      others_(owner,
              [&](Coder& coder) { squares_ += coder.keep_rest(step_.executor, up_[owner], part, left); });
    }
  }

  FunctionRef<CodedShape(std::size_t owner)> shape_;
  Coder& own_;
  WithCoder others_;
  Span<float> bounds_ = step_.workspace.take<float>(world());  // on what each rank says of this rank's part
  double squares_ = 0;
};

/// The payload of a frame of floats, which are no codes: neither packed by close() nor unpacked by open().
Span<float> floats_in(const CodedFrame& frame) {
  return {reinterpret_cast<float*>(frame.codes().data()), frame.payload_bytes() / sizeof(float)};
}

class FloatParts final : public ShardExchange {
 public:
  FloatParts(BucketId bucket, Span<float> gradient, Span<float> residual, Step& step)
      : ShardExchange(bucket, gradient, residual, step, {kScatterTag, kScatteredTag}) {}

 private:
  Codes codes(std::size_t owner, Leg) const override {
    return {{.bits = 32, .type = FrameType::floats}, shard(owner).size()};
  }

  /// Divided before they are added up, as dense does: a sum does not overflow where the mean would not.
  void encode(std::size_t owner) override {
    if (owner == self()) arrived_[owner] = up_[owner] = take_frame(owner, Leg::up);
    const auto values = floats_in(up_[owner]);
    add_residual(step_.executor, shard_in(gradient_, owner), shard_in(residual_, owner), values);
    frames_.note(scale(step_.executor, values, 1.0f / static_cast<float>(world())));
  }

  void accept(std::size_t, const CodedFrame&, Leg) override {}

  void encode_result() override {
    sums_ = step_.scratch.take<float>(shard(self()).size());
    copy(step_.executor, Span<const float>(floats_in(arrived_[0])), sums_);
    for (std::size_t rank = 1; rank < world(); ++rank) add(step_.executor, sums_, floats_in(arrived_[rank]));
    frames_.note(all_finite(step_.executor, sums_));
  }

  void apply(std::size_t owner) override {
    if (owner == self()) copy(step_.executor, Span<const float>(sums_), shard_in(gradient_, owner));
    if (const ResidualSpan left = turned_shard(owner); !left.empty()) fill(step_.executor, left.after, 0);
  }

  Span<float> sums_;  // of this rank's shard
};

}  // namespace

void reduce_scatter_coded(BucketId bucket, Span<float> gradient, Span<float> residual, Step& step,
                          FunctionRef<CodedShape(std::size_t owner)> shape, Coder& own, WithCoder others) {
  CodedParts exchange(bucket, gradient, residual, step, shape, own, others);
  exchange.run();
  if (step.report.finite && !residual.empty()) step.report.residual_norm = std::sqrt(exchange.squares());
}

void reduce_scatter_floats(BucketId bucket, Span<float> gradient, Span<float> residual, Step& step) {
  FloatParts(bucket, gradient, residual, step).run();
}

}  // namespace thinwire
