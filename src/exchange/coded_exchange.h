#pragma once
// What quantizers share: every rank codes its elements in a few bits each, all ranks send their codes and the
// table that explains them to all others, and every rank averages all of them in rank order.
//
// Bytes per rank: (W - 1) * (4 * table_floats + ceil(bits * d / 8)).

#include "exchange/frames.h"
#include "thinwire/function_ref.h"
#include "thinwire/synchronizer.h"
#include "wire/payloads.h"

namespace thinwire {

/// How one system turns elements into codes and back. No decoded value is larger than the largest float of
/// its table.
class Coder {
 public:
  virtual ~Coder() = default;

  /// This rank's codes and table. codes: code_words(d, bits) words, see wire/payloads.h; bits behind the
  /// last element are ignored. False: some element is not finite; nothing written is used then.
  virtual bool encode(Span<float> table, Span<std::uint64_t> codes) = 0;

  /// Called once for each rank before its codes are looked at: holds its table, whose floats are known to be
  /// finite, against what the system allows, and prepares for it. Throws CorruptFrame. Default: nothing.
  virtual void prepare(std::size_t /*rank*/, Span<const float> /*table*/) {}

  /// gradient becomes the mean over ranks of Q(p), added in rank order; residual, unless empty, p - Q(p) of
  /// rank `self`. frames: of all ranks, readable. Returns the new residual's sum of squares.
  virtual double average(Executor& executor, Span<const CodedFrame> frames, std::size_t self,
                         Span<float> gradient, ResidualSpan residual) const = 0;

  /// own: the frame that this coder's encode() has filled, readable. residual, not empty: becomes p - Q(p).
  /// gradient is without meaning then. Returns the new residual's sum of squares.
  virtual double keep_rest(Executor& executor, const CodedFrame& own, Span<float> gradient,
                           ResidualSpan residual);
};

/// The largest magnitude in a table of rank `source`. Throws CorruptFrame where a float is not finite.
float bound_of_table(Span<const float> table, std::size_t source);

struct CodedShape {
  std::size_t bits = 2;
  std::size_t table_floats = 0;
  FrameType type = FrameType::codes;

  /// A frame of `count` elements from element `first` on that stands for `workers` ranks.
  FrameContents contents(std::size_t count, std::size_t first = 0, std::size_t workers = 1) const {
    return {.type = type,
            .workers = static_cast<std::uint32_t>(workers),
            .first = first,
            .count = count,
            .payload_bytes = 4 * table_floats + code_bytes(count, bits),
            .width = type == FrameType::codes ? static_cast<std::uint32_t>(bits) : 0};
  }
};

/// A frame that nobody may use: its bytes must not depend on what the memory held.
void blank(const CodedFrame& frame);

/// Collective. Every rank's frame of `count` codes goes to all others.
/// encode(own) writes this rank's. False: some element is not finite.
/// check(rank, frame) is called for all ranks in their order, own included, when all frames have arrived;
///   this rank's own codes cannot be read then. Throws CorruptFrame for what the system does not allow.
/// Returns all ranks' frames, in the step's workspace; none where encode said false on any rank.
Span<const CodedFrame> gather_coded(BucketId bucket, std::size_t count, Step& step, const CodedShape& shape,
                                    FunctionRef<bool(const CodedFrame& own)> encode,
                                    FunctionRef<void(std::size_t rank, const CodedFrame& frame)> check);

/// Collective. gradient: becomes the mean over ranks of Q(p); residual, unless empty: p - Q(p) of this rank.
/// Where any rank has a value that is not finite, or the ranks' values add up to one, report.finite becomes
/// false, and nothing else changes.
void average_coded(BucketId bucket, Span<float> gradient, Span<float> residual, Step& step,
                   const CodedShape& shape, Coder& coder);

/// What average_coded sends from one rank.
constexpr std::uint64_t coded_bytes(std::uint64_t elements, const CodedShape& shape, int world_size) {
  if (elements == 0) return 0;
  return static_cast<std::uint64_t>(world_size - 1) *
         (4 * static_cast<std::uint64_t>(shape.table_floats) + (elements * shape.bits + 7) / 8);
}

}  // namespace thinwire
