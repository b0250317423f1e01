#pragma once
// Marsit's one-bit all-reduce (Marsit section 4.1.1): every element's sign travels from worker to worker
// as one bit, and at each hop the receiver keeps either the bit that arrived or its own, with probabilities
// such that the final bit is each worker's with probability 1/W.

#include <cstdint>

#include "comm/ring.h"
#include "exchange/frames.h"
#include "systems/marsit/one_bit_all_reduce.h"
#include "thinwire/synchronizer.h"
#include "wire/payloads.h"

namespace thinwire {

/// The shape in which Marsit's ranks stand: a rectangle of rows and columns, with the ranks that do not fit
/// folded into the first ones. A ring is a rectangle of one row.
class Torus {
 public:
  /// rows = 0 takes the most nearly square rectangle that uses all ranks, or all but one when world_size is a
  /// prime above 3 (which has no rectangle but the ring). Throws std::invalid_argument when rows is above
  /// world_size.
  Torus(int world_size, int rows);

  int rows() const { return rows_; }
  int columns() const { return columns_; }
  /// Ranks [0, core) stand in the rectangle, row by row; rank core + i is folded into rank i.
  int core() const { return rows_ * columns_; }
  int folded() const { return world_size_ - core(); }

  /// Workers that a core rank's own bits stand for once folded: 1 or 2.
  std::uint32_t weight(int rank) const { return rank < folded() ? 2 : 1; }
  std::uint32_t row_weight(int row) const;

 private:
  int world_size_;
  int rows_;
  int columns_;
};

class OneBitAllReduce final : private RingCodec {
 public:
  /// The bits are the signs of gradient + residual (residual: [n] or empty). All buffers come from
  /// step.workspace.
  OneBitAllReduce(BucketId bucket, Span<const float> gradient, Span<const float> residual, Step& step,
                  const Torus& torus);

  /// Collective. Afterwards words() holds the final bits, the same on all ranks. Throws CorruptFrame and
  /// CommError.
  void run();

  /// Some rank's gradient + residual had inf or NaN; the same answer on all ranks.
  bool non_finite() const { return !headers_.finite(); }

  /// Calls body(chunk) for every chunk of the bucket, in ascending order.
  template <class Body>
  void for_each_chunk(Body body) const {
    thinwire::for_each_chunk(layout_, body);
  }
  /// The chunk's bits, bit 0 being element chunk.begin.
  Span<std::uint64_t> words(const RingChunk& chunk) const;

 private:
  enum class RingPhase : std::uint32_t { row_reduce, column_reduce, column_gather, row_gather, fold };

  void run_core();
  void run_folded(int host);
  void fold_in(int guest);
  void fold_out(int guest);
  void enter(RingPhase phase, const RingGroup& ring, Span<const std::uint32_t> weights);
  void pack(const RingChunk& chunk);
  void draw(const RingChunk& chunk, std::uint32_t hop, std::uint32_t own, std::uint32_t received);
  void reduce(const RingChunk& chunk, Span<const std::byte> message, int source, std::uint32_t received);
  void check(const RingChunk& chunk, Span<const std::byte> message, int source, std::uint32_t workers);
  Span<const std::byte> seal(const RingChunk& chunk, std::uint32_t workers);
  Span<std::byte> frame(const RingChunk& chunk) const;
  FrameContents contents(const RingChunk& chunk, std::uint32_t workers) const;
  bool gathering() const { return phase_ == RingPhase::column_gather || phase_ == RingPhase::row_gather; }
  std::uint32_t reduced_weight(const RingChunk& chunk) const;
  std::uint32_t world_weight() const { return static_cast<std::uint32_t>(step_.communicator.size()); }

  std::size_t message_bytes(const RingChunk& chunk) const override;
  Span<const std::byte> outgoing(const RingChunk& chunk) override;
  void prepare(const RingChunk& chunk) override;
  Span<std::byte> receive_buffer(const RingChunk& chunk) override;
  void incoming(const RingChunk& chunk, Span<const std::byte> message) override;

  BucketId bucket_;
  Span<const float> gradient_;
  Span<const float> residual_;
  Step& step_;
  Torus torus_;
  RingLayout layout_;        // the whole bucket, in a part for each core rank
  std::size_t chunk_bytes_;  // payload of the largest chunk
  FrameHeaders headers_{bucket_, step_};
  ChunkFrames bits_{step_.workspace, gradient_.size(), layout_.parts, layout_.chunk_elements, chunk_bytes_};
  Span<std::byte> receive_buffers_ =
      step_.workspace.take<std::byte>(kRingWindow * (FrameHeader::kBytes + chunk_bytes_));
  Span<std::uint64_t> masks_ = step_.workspace.take<std::uint64_t>(chunk_bytes_ / 8);

  // Of the ring phase that is running.
  RingPhase phase_ = RingPhase::row_reduce;
  Span<const std::uint32_t> weights_;  // workers that each position's own bits stand for
  std::size_t position_ = 0;
  int previous_ = 0;
  std::uint32_t gathered_weight_ = 0;

  bool packed_ = false;
};

/// Payload bytes that `rank` sends in one OneBitAllReduce of `elements`.
std::uint64_t one_bit_payload_bytes(std::size_t elements, const Torus& torus, int rank);

}  // namespace thinwire
