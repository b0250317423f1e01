#pragma once
// Signs on a ring: counters of positive signs grow by a bit whenever the number of workers that they count
// doubles. What all ranks get is the majority's sign, or the counters of all workers.
//
//   bits --ring reduce-scatter of counters, ceil(log2(m+1)) bit planes at the m-th worker--> owner
//   owner: majority (ties by a fair coin), or the counters as they are --ring all-gather--> all ranks
//
// On a torus ranks stand in a rectangle. Counters of a row's workers are made first, then summed along each
// column, where at hop h they stand for h rows. The way back is the reverse. A ring is a torus of one row.
//
// Source: how the Marsit paper extends signSGD, EF-signSGD and SSDM to rings and to a torus (sections 3.1 and
// 5, figure 5).

#include "comm/ring.h"
#include "exchange/frames.h"
#include "thinwire/function_ref.h"
#include "thinwire/registry.h"
#include "thinwire/synchronizer.h"
#include "wire/payloads.h"

namespace thinwire {

/// What a ring of signs gives: one bit an element, or ceil(log2(W+1)).
enum class SignsGathered : std::uint8_t { majority, counters };

/// Of one row: all ranks. Or of the most nearly square rectangle that they fill.
enum class SignTopology : std::uint8_t { ring, torus };
/// Rows of the rectangle in which the ranks stand.
int sign_rows(SignTopology topology, int world_size);

/// How counters travel: as bit planes, or in Elias's code wherever that is shorter, made on the host without
/// overlap.
enum class SumCoding : std::uint8_t { planes, elias };

class SignRing final : public RingCodec {
 public:
  /// Writes this rank's signs of a chunk's elements. Called once for each chunk.
  using PackSigns = FunctionRef<void(const RingChunk& chunk, Span<std::uint64_t> bits)>;

  SignRing(BucketId bucket, std::size_t elements, Step& step, SignTopology topology, SignsGathered gathered,
           SumCoding coding, PackSigns pack);

  /// Collective. Throws CorruptFrame, CommError.
  void run();
  /// Of run(), where counters are coded: what this rank has sent.
  std::uint64_t coded_payload_bytes() const { return coded_payload_bytes_; }

  /// Calls body(chunk) for all elements.
  template <class Body>
  void for_each(Body body) const {
    for_each_chunk(layout_, body);
  }
  /// The majority's signs of a chunk.
  Span<std::uint64_t> majority(const RingChunk& chunk) const {
    return gathered_bits_.words(chunk.part, chunk.index, sign_words(chunk));
  }
  /// This rank's own signs of a chunk, where counters were gathered.
  Span<std::uint64_t> own_signs(const RingChunk& chunk) const {
    return own_bits_.words(chunk.part, chunk.index, sign_words(chunk));
  }
  /// The counters' bit planes of a chunk, one after the other, sign_words(chunk) words each; until the next
  /// call.
  Span<const std::uint64_t> counters(const RingChunk& chunk);
  int planes() const;

  static std::size_t sign_words(const RingChunk& chunk) { return (chunk.elements() + 63) / 64; }

  std::size_t message_bytes(const RingChunk& chunk) const override;
  Span<const std::byte> outgoing(const RingChunk& chunk) override;
  void prepare(const RingChunk& chunk) override;
  Span<std::byte> receive_buffer(const RingChunk& chunk) override;
  void incoming(const RingChunk& chunk, Span<const std::byte> message) override;

 private:
  enum class Phase : std::uint8_t { row_reduce, column_reduce, column_gather, row_gather };

  bool keeps_counters() const { return gathered_ == SignsGathered::counters; }
  bool gathers() const { return phase_ == Phase::column_gather || phase_ == Phase::row_gather; }
  bool in_row() const { return phase_ == Phase::row_reduce || phase_ == Phase::row_gather; }
  const RingGroup& ring() const { return in_row() ? row_ : column_; }
  const RingLayout& layout() const { return in_row() ? row_layout_ : column_layout_; }
  /// Workers that this rank's own counters stand for where they are added to those that arrive.
  std::uint32_t own_workers() const { return in_row() ? 1 : static_cast<std::uint32_t>(row_.size()); }
  /// And those of a message that travels in this hop, the first one being 0.
  std::uint32_t workers_at(std::size_t hop) const {
    return gathers() ? world_ : own_workers() * static_cast<std::uint32_t>(hop + 1);
  }

  void run_phase(Phase phase);
  Span<std::uint64_t> pack(const RingChunk& chunk);
  void reduce(const RingChunk& chunk, Span<std::uint64_t> counters);
  void add_own(const RingChunk& chunk, Span<std::uint64_t> counters, int planes);
  void run_coded();
  void send_coded(const RingChunk& chunk, PendingLease& sends);
  void receive_coded(const RingChunk& chunk);
  void decide(const RingChunk& chunk, Span<const std::uint64_t> counters, int planes);
  /// What the chunk's message in its hop says.
  FrameContents contents(const RingChunk& chunk) const;
  FrameContents counters_of(const RingChunk& chunk, std::uint32_t workers) const;
  FrameContents gathered_of(const RingChunk& chunk) const;
  Span<std::byte> frame(const RingChunk& chunk) const;
  /// Where counters wait for being sent, and where all ranks' result lies.
  Span<std::byte> counters_frame(const RingChunk& chunk, std::uint32_t workers) const;
  Span<std::byte> gathered_frame(const RingChunk& chunk) const;

  BucketId bucket_;
  SignsGathered gathered_;
  SumCoding coding_;
  FrameHeaders headers_;
  Step& step_;
  PackSigns pack_;
  const std::uint32_t world_ = static_cast<std::uint32_t>(step_.communicator.size());
  const RingGroup row_;
  const RingGroup column_;
  const RingLayout layout_;  // of all elements, in as many parts as there are ranks
  const RingLayout row_layout_;
  const RingLayout column_layout_;
  /// Of one plane of the largest chunk, in whole words, and of all planes.
  const std::size_t most_bytes_;
  const std::size_t most_planes_bytes_;
  ChunkFrames votes_;
  ChunkFrames gathered_bits_;
  ChunkFrames own_bits_;  // of all chunks; where the majority is gathered, not used
  const std::size_t receive_stride_;
  Span<std::byte> receive_buffers_;
  Span<std::uint64_t> planes_;
  Span<std::uint64_t> own_;  // of one chunk, where own_bits_ is not used
  Phase phase_ = Phase::row_reduce;
  std::uint64_t coded_payload_bytes_ = 0;
};

/// The option `coding`, and what it says.
OptionInfo sum_coding_option();
SumCoding sum_coding(const Options& options);

/// Payload bytes that `rank` sends as bit planes, without what scales take.
std::uint64_t sign_ring_payload_bytes(std::uint64_t elements, int world_size, int rank, SignTopology topology,
                                      SignsGathered gathered);

}  // namespace thinwire
