#include "exchange/block_average.h"

#include <cmath>
#include <string>

#include "core/partition.h"
#include "core/philox.h"
#include "exchange/frames.h"
#include "kernels/codes/dequantize.h"
#include "kernels/codes/quantize.h"
#include "kernels/dense/dense.h"
#include "thinwire/errors.h"
#include "wire/coded_payload.h"

namespace thinwire {
namespace {

class BlockAverage {
 public:
  BlockAverage(BucketId bucket, Span<float> gradient, Span<float> residual, Step& step,
               const BlockCodes& codes, std::size_t base)
      : levels_(codes.levels),
        bucket_(bucket),
        gradient_(gradient),
        residual_(residual),
        step_(step),
        codes_(codes),
        base_(base),
        frames_(bucket, step),
        up_(step.workspace.take<CodedFrame>(frames_.world())),
        down_(step.workspace.take<CodedFrame>(frames_.world())),
        average_(step.scratch.take<float>(part_size_of(frames_.self()))) {
    levels_.nearest = !residual.empty();
  }

  void run(bool finite) {
    frames_.note(finite);
    const auto arrived = step_.workspace.take<CodedFrame>(frames_.world());
    send_parts(arrived);
    average_own_part(arrived);
    share_own_part();
    step_.report.finite = frames_.finite();
    if (!frames_.finite()) return;
    step_.clock.enter(Phase::decompress);
    for (std::size_t owner = 0; owner < down_.size(); ++owner) apply(owner);
    keep_remainder();
    step_.clock.enter(Phase::compress);
  }

 private:
  std::size_t self() const { return frames_.self(); }
  std::size_t part_size_of(std::size_t owner) const {
    return part_size(gradient_.size(), frames_.world(), owner);
  }
  Span<float> part(Span<float> values, std::size_t owner) const {
    if (values.empty()) return values;
    return values.subspan(part_begin(gradient_.size(), frames_.world(), owner), part_size_of(owner));
  }
  FrameContents contents(std::size_t owner, std::size_t workers) const {
    const std::size_t count = part_size_of(owner);
    return codes_.shape(count).contents(count, base_ + part_begin(gradient_.size(), frames_.world(), owner),
                                        workers);
  }
  CodedFrame frame_for(std::size_t owner) const {
    const std::size_t count = part_size_of(owner);
    if (count == 0) return {};
    const CodedShape shape = codes_.shape(count);
    return {step_.workspace, shape.table_floats, count, shape.bits};
  }
  QuantizationScales scales() const { return {.chunk = codes_.block}; }
  static QuantizedVector values_of(const CodedFrame& frame) { return {frame.table(), frame.codes()}; }

  /// Fills the frame with codes of `values`. leg: 0 on the way to the owner, 1 from it.
  void encode(const CodedFrame& frame, std::size_t owner, std::uint32_t leg, Span<const float> values,
              Span<const float> residual) {
    const RandomStream stream = random_stream(step_.seed, step_.index, bucket_, RandomPurpose::rounding,
                                              static_cast<std::uint32_t>(self() + base_ * frames_.world()),
                                              static_cast<std::uint32_t>(2 * owner) + leg + 1);
    frames_.note(quantize_chunks(step_.executor, stream, levels_, QuantizationNorm::largest, codes_.block,
                                 values, residual, frame.table(), frame.codes()));
    if (!frames_.finite()) blank(frame);
  }

  /// A frame that another rank made. Throws CorruptFrame.
  void await(std::size_t source, const CodedFrame& frame, const FrameContents& expected) {
    frames_.await(source, frame.message(), expected);
    bound_of_table(frame.table(), source);
    require_norms(frame.table());
    frame.open();
  }

  /// Codes of every part to its owner. arrived: of this rank's part, what the others say of it.
  void send_parts(Span<CodedFrame> arrived) {
    frames_.for_peers([&](std::size_t peer) {
      arrived[peer] = frame_for(self());
      if (!arrived[peer].message().empty()) frames_.receive(peer, kBlocksUpTag, arrived[peer].message());
    });
    const auto encode_part = [&](std::size_t owner) {
      up_[owner] = frame_for(owner);
      if (part_size_of(owner) != 0)
        encode(up_[owner], owner, 0, part(gradient_, owner), part(residual_, owner));
    };
    frames_.for_peers([&](std::size_t owner) {
      encode_part(owner);
      const CodedFrame& frame = up_[owner];
      if (frame.message().empty()) return;
      frame.close();
      frames_.seal(frame.message(), contents(owner, 1));
      frames_.send(owner, kBlocksUpTag, frame.message());
    });
    encode_part(self());  // last: the others can start when theirs have arrived
    arrived[self()] = up_[self()];
    if (part_size_of(self()) == 0) return;
    frames_.for_peers([&](std::size_t peer) { await(peer, arrived[peer], contents(self(), 1)); });
  }

  /// The mean over ranks, in rank order.
  void average_own_part(Span<const CodedFrame> arrived) {
    if (average_.empty()) return;
    step_.clock.enter(Phase::decompress);
    const auto vectors = step_.workspace.take<QuantizedVector>(frames_.world());
    for (std::size_t rank = 0; rank < frames_.world(); ++rank) vectors[rank] = values_of(arrived[rank]);
    average_dequantized(step_.executor, levels_, scales(), vectors, self(), average_, {});
    step_.clock.enter(Phase::compress);
  }

  /// The owners' results to everyone.
  void share_own_part() {
    for (std::size_t owner = 0; owner < frames_.world(); ++owner) down_[owner] = frame_for(owner);
    frames_.for_peers([&](std::size_t peer) {
      if (part_size_of(peer) != 0) frames_.receive(peer, kBlocksDownTag, down_[peer].message());
    });
    const CodedFrame& own = down_[self()];
    if (!average_.empty()) {
      encode(own, self(), 1, average_, {});
      // What its codes leave out counts W times.
      frames_.note(std::isfinite(bound_of_table(own.table(), self()) * static_cast<float>(frames_.world())));
      if (!frames_.finite()) blank(own);
      own.close();
      frames_.seal(own.message(), contents(self(), frames_.world()));
      frames_.send_to_all(kBlocksDownTag, own.message());
    }
    frames_.for_peers([&](std::size_t peer) {
      if (part_size_of(peer) != 0) await(peer, down_[peer], contents(peer, frames_.world()));
    });
    frames_.finish();
    if (!average_.empty()) own.open();
    frames_.for_peers([&](std::size_t peer) {
      if (part_size_of(peer) != 0) up_[peer].open();
    });
  }

  /// One part of the mean, and what this rank's own codes left out.
  void apply(std::size_t owner) {
    const auto mean = part(gradient_, owner);
    if (mean.empty()) return;
    if (!residual_.empty()) {
      const QuantizedVector own = values_of(up_[owner]);
      average_dequantized(step_.executor, levels_, scales(), {&own, 1}, 0, mean, part(residual_, owner));
    }
    dequantize(step_.executor, levels_, scales(), down_[owner].table(), down_[owner].codes(), 0, false, mean);
  }

  /// What the result's codes left out stays with the owner, who stands for all ranks.
  void keep_remainder() {
    if (average_.empty() || residual_.empty()) return;
    const auto world = static_cast<float>(frames_.world());
    scale(step_.executor, average_, world);
    add_remainder(step_.executor, average_, world, part(gradient_, self()), part(residual_, self()));
  }

  QuantizationLevels levels_;
  BucketId bucket_;
  Span<float> gradient_;
  Span<float> residual_;
  Step& step_;
  const BlockCodes& codes_;
  std::size_t base_;
  Frames frames_;
  Span<CodedFrame> up_;    // this rank's, of every part
  Span<CodedFrame> down_;  // the mean, of every part
  Span<float> average_;    // over ranks, of this rank's part
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
    const std::size_t count = part_size(static_cast<std::size_t>(elements), world, owner);
    return codes.shape(count).contents(count).payload_bytes;
  };
  std::uint64_t bytes = 0;
  for (std::size_t owner = 0; owner < world; ++owner) {
    bytes += owner == static_cast<std::size_t>(rank) ? (world - 1) * bytes_of(owner) : bytes_of(owner);
  }
  return bytes;
}

}  // namespace thinwire
