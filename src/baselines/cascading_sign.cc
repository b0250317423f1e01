// Cascading compression: what Marsit avoids. At every hop of the ring a worker decompresses what arrived,
// adds its own part and compresses the sum again with SSDM's stochastic sign.
//
// Source: Marsit section 3.2 and appendix A (s_3). Q is unbiased, so the result is. But the bound
// of its squared deviation grows like (2 d)^W / W. In the paper training degrades at 3 workers and diverges
// at 8; here it diverges at both. It is the baseline that must be seen to fail.
//
//   segment s: Q(p_s) at position s --> Q(Q(p_s) + p_{s+1}) --> ... --> Q(sum)
//     --all-gather--> mean = Q / W, residual = p - mean
//
// Bytes per rank: 2 * sum of (8 + ceil(len/8)) over W - 1 segments.

#include <cmath>

#include "baselines/baselines.h"
#include "comm/ring.h"
#include "core/partition.h"
#include "exchange/frames.h"
#include "kernels/dense/dense.h"
#include "kernels/signs/random_signs.h"
#include "kernels/signs/sign_bits.h"
#include "wire/frame.h"
#include "wire/payloads.h"

namespace thinwire {
namespace {

/// A segment is one chunk: its norm belongs to the whole of it.
class CascadeCodec final : public RingCodec {
 public:
  CascadeCodec(BucketId bucket, Span<const float> gradient, Span<const float> residual, Step& step,
               const RingGroup& ring)
      : bucket_(bucket),
        headers_(bucket, step),
        gradient_(gradient),
        residual_(residual),
        step_(step),
        ring_(ring) {}

  void start_gather() override { gathering_ = true; }
  bool finite() const { return headers_.finite(); }

  /// The segment's final frame: scale and bits.
  Span<std::byte> frame(const RingChunk& chunk) const {
    return segments_.subspan(chunk.segment * stride_, message_bytes(chunk));
  }

  /// frame(chunk) = Q(values).
  void compress(const RingChunk& chunk, Span<const float> values, Span<const float> plus) {
    const double norm = std::sqrt(sum_of_squares(step_.executor, values, plus));
    const bool finite = std::isfinite(static_cast<float>(norm));
    headers_.note(finite);
    const auto message = frame(chunk);
    write_scale(message, finite ? static_cast<float>(norm) : 0.0f);
    const RandomStream stream = random_stream(
        step_.seed, step_.index, bucket_, RandomPurpose::stochastic_sign,
        static_cast<std::uint32_t>(step_.communicator.rank()), static_cast<std::uint32_t>(chunk.hop));
    const auto factor = static_cast<float>(finite && norm > 1e-37 ? 0.5 / norm : 0.0);
    stochastic_signs(step_.executor, stream, values, plus, factor,
                     scaled_sign_words(message, chunk.elements()));
  }

  /// This rank's part of the segment, compressed, as the start of its cascade.
  void compress_own(const RingChunk& chunk) {
    compress(chunk, gradient_.subspan(chunk.begin, chunk.elements()),
             residual_.subspan(chunk.begin, chunk.elements()));
  }

  std::size_t message_bytes(const RingChunk& chunk) const override {
    return FrameHeader::kBytes + frame_payload_bytes(FrameType::scaled_sign_bits, chunk.elements(), 1);
  }

  Span<const std::byte> outgoing(const RingChunk& chunk) override {
    if (!gathering_ && chunk.hop == 0) compress_own(chunk);
    headers_.seal(frame(chunk), contents(chunk));
    headers_.count();
    return frame(chunk);
  }

  Span<std::byte> receive_buffer(const RingChunk& chunk) override {
    return gathering_ ? frame(chunk) : receive_buffers_.subspan(chunk.slot * stride_, message_bytes(chunk));
  }

  void incoming(const RingChunk& chunk, Span<const std::byte> message) override {
    headers_.check(message, static_cast<std::size_t>(ring_.previous()), contents(chunk));
    const float scale = read_scale(message);
    if (gathering_) return;
    // Decompress, add, recompress.
    const auto sums = sums_.first(chunk.elements());
    const auto own = gradient_.subspan(chunk.begin, chunk.elements());
    copy(step_.executor, own, sums);
    if (!residual_.empty()) add(step_.executor, sums, residual_.subspan(chunk.begin, chunk.elements()));
    const Span<const std::uint64_t> bits{
        reinterpret_cast<const std::uint64_t*>(message.data() + kScaledSignBitsAt),
        sign_words(chunk.elements())};
    accumulate_signs(step_.executor, bits, scale, sums);
    RingChunk next = chunk;
    ++next.hop;
    compress(next, sums, {});
  }

 private:
  FrameContents contents(const RingChunk& chunk) const {
    return {.type = FrameType::scaled_sign_bits,
            .workers = static_cast<std::uint32_t>(gathering_ ? ring_.size() : chunk.hop + 1),
            .first = chunk.begin,
            .count = chunk.elements(),
            .payload_bytes = frame_payload_bytes(FrameType::scaled_sign_bits, chunk.elements(), 1)};
  }

  BucketId bucket_;
  FrameHeaders headers_;
  Span<const float> gradient_;
  Span<const float> residual_;
  Step& step_;
  const RingGroup& ring_;
  const std::size_t longest_ = gradient_.size() / ring_.size() + 1;
  const std::size_t stride_ =
      (FrameHeader::kBytes + frame_payload_bytes(FrameType::scaled_sign_bits, longest_, 1) + 63) / 64 * 64;
  Span<std::byte> segments_ = step_.workspace.take<std::byte>(ring_.size() * stride_);
  Span<std::byte> receive_buffers_ = step_.workspace.take<std::byte>(kRingWindow * stride_);
  Span<float> sums_ = step_.scratch.take<float>(longest_);
  bool gathering_ = false;
};

class CascadingSign final : public Synchronizer {
 public:
  void synchronize(BucketId bucket, Span<float> gradient, Span<float> residual, Step& step) override {
    const auto world = static_cast<std::size_t>(step.communicator.size());
    const RingGroup ring{step.communicator.ranks(), static_cast<std::size_t>(step.communicator.rank())};
    const RingLayout layout{
        .elements = gradient.size(), .parts = world, .chunk_elements = gradient.size() / world + 1};
    CascadeCodec codec(bucket, gradient, residual, step, ring);
    ring_all_reduce(step.communicator, ring, layout, kCascadeTag, codec);

    step.clock.enter(Phase::decompress);
    if (world == 1) for_each_chunk(layout, [&](const RingChunk& chunk) { codec.compress_own(chunk); });
    step.report.finite = codec.finite();
    if (!step.report.finite) return;
    double squares = 0;
    for_each_chunk(layout, [&](RingChunk chunk) {
      chunk.segment = chunk.part;
      const auto message = codec.frame(chunk);
      squares += apply_signs(step.executor, scaled_sign_words(message, chunk.elements()),
                             read_scale(message) / static_cast<float>(world),
                             gradient.subspan(chunk.begin, chunk.elements()),
                             residual.subspan(chunk.begin, chunk.elements()));
    });
    if (!residual.empty()) step.report.residual_norm = std::sqrt(squares);
  }

  std::uint64_t payload_bytes(const Workload& workload) const override {
    const auto world = static_cast<std::size_t>(workload.world_size);
    const auto rank = static_cast<std::size_t>(workload.rank);
    std::uint64_t sent = 0;
    for (std::size_t hop = 0; hop + 1 < world; ++hop) {
      for (const std::size_t segment : {rank + world - hop, rank + 1 + world - hop}) {
        const std::size_t elements = part_size(workload.elements, world, segment % world);
        if (elements != 0) sent += frame_payload_bytes(FrameType::scaled_sign_bits, elements, 1);
      }
    }
    return sent;
  }
};

}  // namespace

SystemInfo cascading_sign_info() {
  SystemInfo info;
  info.name = "cascading_sign";
  info.summary = "recompression at every hop: the scheme that Marsit replaces; diverges from 3 workers on";
  info.paper = "Marsit, section 3.2 and appendix A";
  info.formula = "2 * sum of (ceil(len/8) + 8) over W-1 segments, about 2(W-1)/W * d/8";
  info.make = [](const Options&, Inner) { return std::make_unique<CascadingSign>(); };
  return info;
}

}  // namespace thinwire
