#include "exchange/block_average.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "core/philox.h"
#include "exchange/shard_exchange.h"
#include "kernels/codes/dequantize.h"
#include "kernels/codes/quantize.h"
#include "kernels/dense/dense.h"
#include "thinwire/errors.h"

namespace thinwire {
namespace {

class BlockAverage final : public ShardExchange {
 public:
  BlockAverage(BucketId bucket, Span<float> gradient, Span<float> residual, Step& step,
               const BlockCodes& codes, std::size_t base)
      : ShardExchange(bucket, gradient, residual, step, {kBlocksUpTag, kBlocksDownTag}, 1, base),
        levels_(codes.levels),
        bucket_(bucket),
        codes_(codes),
        base_(base),
        average_(step.scratch.take<float>(shard(self()).size())) {
    levels_.nearest = !residual.empty();
  }

  void run(bool finite) {
    frames_.note(finite);
    ShardExchange::run();
    if (step_.report.finite && !residual_.empty()) step_.report.residual_norm = std::sqrt(squares_);
    step_.clock.enter(Phase::compress);
  }

 private:
  Codes codes(std::size_t owner, Leg) const override {
    const std::size_t count = shard(owner).size();
    return {codes_.shape(count), count};
  }
  QuantizationScales scales() const { return {.chunk = codes_.block}; }
  static QuantizedVector values_of(const CodedFrame& frame) { return {frame.table(), frame.codes()}; }

  void encode(std::size_t owner) override {
    if (owner == self()) arrived_[owner] = up_[owner] = take_frame(owner, Leg::up);
    write_codes(up_[owner], owner, 0, shard_in(gradient_, owner), shard_in(residual_, owner));
    if (owner != self()) up_[owner].close();
  }

  /// Fills the frame with codes of `values`. leg: 0 on the way to the owner, 1 from it.
  void write_codes(const CodedFrame& frame, std::size_t owner, std::uint32_t leg, Span<const float> values,
                   Span<const float> residual) {
    const RandomStream stream = random_stream(step_.seed, step_.index, bucket_, RandomPurpose::rounding,
                                              static_cast<std::uint32_t>(self() + base_ * world()),
                                              static_cast<std::uint32_t>(2 * owner) + leg + 1);
    frames_.note(quantize_chunks(step_.executor, stream, levels_, QuantizationNorm::largest, codes_.block,
                                 values, residual, frame.table(), frame.codes()));
    if (!frames_.finite()) blank(frame);
  }

  void accept(std::size_t source, const CodedFrame& frame, Leg) override {
    bound_of_table(frame.table(), source);
    require_norms(frame.table());
    frame.open();
  }

  /// The mean over ranks, in rank order.
  void encode_result() override {
    step_.clock.enter(Phase::decompress);
    const auto vectors = step_.workspace.take<QuantizedVector>(world());
    std::transform(arrived_.begin(), arrived_.end(), vectors.begin(), values_of);
    average_dequantized(step_.executor, levels_, scales(), vectors, self(), average_, {});
    step_.clock.enter(Phase::compress);
    const CodedFrame& own = down_[self()];
    write_codes(own, self(), 1, average_, {});
    // What its codes leave out counts W times.
    frames_.note(std::isfinite(bound_of_table(own.table(), self()) * static_cast<float>(world())));
    if (!frames_.finite()) blank(own);
    own.close();
  }

  /// One shard of the mean, and what this rank's own codes left out.
  void apply(std::size_t owner) override {
    (owner == self() ? down_ : up_)[owner].open();
    const auto mean = shard_in(gradient_, owner);
    const ResidualSpan left = turned_shard(owner);
    double squares = 0;
    if (!left.empty()) {
      const QuantizedVector own = values_of(up_[owner]);
      squares = average_dequantized(step_.executor, levels_, scales(), {&own, 1}, 0, mean, left);
    }
    const CodedFrame& result = down_[owner];
    dequantize(step_.executor, levels_, scales(), result.table(), result.codes(), 0, false, mean);
    if (owner == self() && !left.empty()) {
      // What the result's codes left out stays with the owner, who stands for all ranks.
      const auto all = static_cast<float>(world());
      scale(step_.executor, average_, all);
      squares = add_remainder(step_.executor, average_, all, mean, left.after);
    }
    squares_ += squares;
  }

  QuantizationLevels levels_;
  BucketId bucket_;
  const BlockCodes& codes_;
  std::size_t base_;
  Span<float> average_;  // over ranks, of this rank's shard
  double squares_ = 0;   // of the residual
};

}  // namespace

void require_norms(Span<const float> norms) {
  for (std::size_t c = 0; c < norms.size(); ++c) {
    if (!(norms[c] >= 0)) {
      throw CorruptFrame("frame refused: norm " + std::to_string(c) + " is " + std::to_string(norms[c]) +
                         ", expected not negative");
    }
  }
}

void average_blocks(BucketId bucket, Span<float> gradient, Span<float> residual, Step& step,
                    const BlockCodes& codes, std::size_t base, bool finite) {
  BlockAverage(bucket, gradient, residual, step, codes, base).run(finite);
}

std::uint64_t block_average_bytes(std::uint64_t elements, int world_size, int rank, const BlockCodes& codes) {
  const auto world = static_cast<std::size_t>(world_size);
  const auto bytes_of = [&](std::size_t owner) {
    const std::size_t count = shard_of(static_cast<std::size_t>(elements), world, owner).size();
    return codes.shape(count).contents(count).payload_bytes;
  };
  return shard_exchange_bytes(world, static_cast<std::size_t>(rank), bytes_of, bytes_of);
}

}  // namespace thinwire
