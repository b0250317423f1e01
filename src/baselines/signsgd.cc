// signSGD with majority vote, extended to a ring: the counters of positive signs grow by a bit whenever the
// number of workers that they count doubles.
//
// Sources: J. Bernstein et al., "signSGD: compressed optimisation for non-convex problems", ICML 2018. The
// ring with growing sums is how the Marsit paper extends it (sections 3.1 and 5).
//
//   p --pack_signs--> bits
//     --ring reduce-scatter of counters, ceil(log2(m+1)) bit planes at the m-th worker--> owner
//   owner: majority, ties by a fair coin
//     --ring all-gather of one bit--> mean = scale * (+-1), residual = p - mean
//
// scale: given, or auto. auto is the mean over ranks of mean |p|, exchanged as one double per rank.
//
// Bytes per rank: sum over hops m = 1 .. W-1 of ceil(log2(m+1)) * ceil(len/8), then W-1 segments of
// ceil(len/8).

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>

#include "baselines/baselines.h"
#include "comm/ring.h"
#include "core/partition.h"
#include "exchange/collectives.h"
#include "exchange/frames.h"
#include "kernels/dense/dense.h"
#include "kernels/signs/random_signs.h"
#include "kernels/signs/sign_bits.h"
#include "kernels/signs/sign_votes.h"
#include "wire/payloads.h"

namespace thinwire {
namespace {

constexpr std::size_t kChunkElements = std::size_t{1} << 20;

std::size_t plane_bytes(const RingChunk& chunk) {
  return (chunk.elements() + 7) / 8;
}

/// Payloads hold planes of ceil(n/8) bytes, kernels work on planes of whole words.
void unpack_planes(Span<const std::byte> payload, std::size_t bytes, int planes, Span<std::uint64_t> words) {
  const std::size_t stride = (bytes + 7) / 8;
  std::fill(words.begin(), words.begin() + static_cast<std::ptrdiff_t>(stride) * planes, 0);
  for (int k = 0; k < planes; ++k) {
    const auto plane = static_cast<std::size_t>(k);
    std::memcpy(words.data() + plane * stride, payload.data() + plane * bytes, bytes);
  }
}

void pack_planes(Span<const std::uint64_t> words, std::size_t bytes, int planes, Span<std::byte> payload) {
  const std::size_t stride = (bytes + 7) / 8;
  for (int k = 0; k < planes; ++k) {
    const auto plane = static_cast<std::size_t>(k);
    std::memcpy(payload.data() + plane * bytes, words.data() + plane * stride, bytes);
  }
}

class VoteCodec final : public RingCodec {
 public:
  VoteCodec(BucketId bucket, Span<const float> gradient, Span<const float> residual, Step& step,
            const RingGroup& ring)
      : bucket_(bucket),
        headers_(bucket, step),
        gradient_(gradient),
        residual_(residual),
        step_(step),
        ring_(ring) {}

  void start_gather() override { gathering_ = true; }
  Span<std::uint64_t> words(const RingChunk& chunk) const {
    return bits_.words(chunk.part, chunk.index, sign_words(chunk.elements()));
  }

  /// One worker: its own signs are the majority.
  void pack_majority(const RingChunk& chunk) { pack(chunk, words(chunk)); }

  std::size_t message_bytes(const RingChunk& chunk) const override {
    return FrameHeader::kBytes + static_cast<std::size_t>(contents(chunk).payload_bytes);
  }

  Span<const std::byte> outgoing(const RingChunk& chunk) override {
    const auto message = frame(chunk);
    if (!gathering_ && chunk.hop == 0) {
      // One worker's counters are its bits.
      pack(chunk, own_.first(sign_words(chunk.elements())));
      pack_planes(own_, plane_bytes(chunk), 1, payload(message));
    }
    headers_.seal(message, contents(chunk));
    headers_.count();
    return message;
  }

  void prepare(const RingChunk& chunk) override {
    if (!gathering_) pack(chunk, own_.first(sign_words(chunk.elements())));
  }

  Span<std::byte> receive_buffer(const RingChunk& chunk) override {
    return gathering_ ? frame(chunk)
                      : receive_buffers_.subspan(chunk.slot * receive_stride_, message_bytes(chunk));
  }

  void incoming(const RingChunk& chunk, Span<const std::byte> message) override {
    headers_.check(message, static_cast<std::size_t>(ring_.previous()), contents(chunk));
    if (gathering_) return;
    const std::size_t count = sign_words(chunk.elements());
    const auto received = static_cast<std::uint32_t>(chunk.hop + 1);
    const int planes = vote_planes(received + 1);
    const auto counters = planes_.first(count * static_cast<std::size_t>(planes));
    std::ranges::fill(counters, 0);
    unpack_planes(message.subspan(FrameHeader::kBytes, message.size() - FrameHeader::kBytes),
                  plane_bytes(chunk), vote_planes(received), counters);
    add_votes(step_.executor, counters, planes, own_.first(count));
    if (received + 1 < world_) {
      RingChunk next = chunk;
      ++next.hop;
      pack_planes(counters, plane_bytes(chunk), planes, payload(frame(next)));
    } else {
      decide(chunk, counters, planes);
    }
  }

 private:
  void pack(const RingChunk& chunk, Span<std::uint64_t> bits) {
    pack_signs(step_.executor, gradient_.subspan(chunk.begin, chunk.elements()),
               residual_.subspan(chunk.begin, chunk.elements()), bits);
  }

  void decide(const RingChunk& chunk, Span<const std::uint64_t> counters, int planes) {
    const auto ties = own_.first(sign_words(chunk.elements()));
    if (world_ % 2 == 0) {
      const RandomStream stream = random_stream(step_.seed, step_.index, bucket_, RandomPurpose::tie,
                                                static_cast<std::uint32_t>(step_.communicator.rank()));
      bernoulli_bits(step_.executor, stream, static_cast<std::uint32_t>(chunk.index * (kChunkElements / 64)),
                     1, 2, ties);
    }
    majority_of_votes(step_.executor, counters, planes, world_, ties, words(chunk));
  }

  /// What the chunk's message in its hop says: after hop h the counters stand for h + 1 workers.
  FrameContents contents(const RingChunk& chunk) const {
    const auto workers = gathering_ ? world_ : static_cast<std::uint32_t>(chunk.hop + 1);
    const FrameType type = gathering_ ? FrameType::sign_bits : FrameType::sign_votes;
    return {.type = type,
            .workers = workers,
            .first = chunk.begin,
            .count = chunk.elements(),
            .payload_bytes = frame_payload_bytes(type, chunk.elements(), workers)};
  }

  Span<std::byte> frame(const RingChunk& chunk) const {
    const auto bytes = static_cast<std::size_t>(contents(chunk).payload_bytes);
    return (gathering_ ? bits_ : votes_).frame(chunk.part, chunk.index, bytes);
  }
  static Span<std::byte> payload(Span<std::byte> message) {
    return message.subspan(FrameHeader::kBytes, message.size() - FrameHeader::kBytes);
  }

  BucketId bucket_;
  FrameHeaders headers_;
  Span<const float> gradient_;
  Span<const float> residual_;
  Step& step_;
  const RingGroup& ring_;
  const std::uint32_t world_ = static_cast<std::uint32_t>(ring_.size());
  /// Of one plane of the largest chunk, in whole words, and of all planes.
  const std::size_t most_bytes_ =
      (std::min(kChunkElements, gradient_.size() / ring_.size() + 1) + 63) / 64 * 8;
  const std::size_t most_planes_bytes_ = most_bytes_ * static_cast<std::size_t>(vote_planes(world_));
  ChunkFrames votes_{step_.workspace, gradient_.size(), ring_.size(), kChunkElements, most_planes_bytes_};
  ChunkFrames bits_{step_.workspace, gradient_.size(), ring_.size(), kChunkElements, most_bytes_};
  const std::size_t receive_stride_ = FrameHeader::kBytes + most_planes_bytes_;
  Span<std::byte> receive_buffers_ = step_.workspace.take<std::byte>(kRingWindow * receive_stride_);
  Span<std::uint64_t> planes_ = step_.workspace.take<std::uint64_t>(most_planes_bytes_ / 8);
  Span<std::uint64_t> own_ = step_.workspace.take<std::uint64_t>(most_bytes_ / 8);
  bool gathering_ = false;
};

class SignSgd final : public Synchronizer {
 public:
  explicit SignSgd(std::optional<float> scale) : scale_(scale) {}

  void synchronize(BucketId bucket, Span<float> gradient, Span<float> residual, Step& step) override {
    const std::size_t elements = gradient.size();
    const double magnitude =
        sum_of_magnitudes(step.executor, gradient, residual) / static_cast<double>(elements);
    // Also tells every rank whether all are finite, before anything is compressed.
    const double mean_magnitude = mean_over_ranks(step, magnitude);
    step.report.finite = std::isfinite(mean_magnitude);
    if (!step.report.finite) return;
    const float scale = scale_ ? *scale_ : static_cast<float>(mean_magnitude);
    step.report.scale = static_cast<double>(scale);

    const auto world = static_cast<std::size_t>(step.communicator.size());
    const RingGroup ring{step.communicator.ranks(), static_cast<std::size_t>(step.communicator.rank())};
    const RingLayout layout{.elements = elements, .parts = world, .chunk_elements = kChunkElements};
    VoteCodec codec(bucket, gradient, residual, step, ring);
    ring_all_reduce(step.communicator, ring, layout, kVotesTag, codec);

    step.clock.enter(Phase::decompress);
    double squares = 0;
    for_each_chunk(layout, [&](const RingChunk& chunk) {
      if (world == 1) codec.pack_majority(chunk);
      squares += apply_signs(step.executor, codec.words(chunk), scale,
                             gradient.subspan(chunk.begin, chunk.elements()),
                             residual.subspan(chunk.begin, chunk.elements()));
    });
    if (!residual.empty()) step.report.residual_norm = std::sqrt(squares);
  }

  std::uint64_t payload_bytes(const Workload& workload) const override {
    const auto world = static_cast<std::size_t>(workload.world_size);
    const auto rank = static_cast<std::size_t>(workload.rank);
    auto segment_bytes = [&](std::size_t segment) -> std::uint64_t {
      return (part_size(workload.elements, world, segment % world) + 7) / 8;
    };
    if (world == 1 || workload.elements == 0) return 0;
    std::uint64_t sent = scalar_payload_bytes(workload.world_size);
    for (std::size_t hop = 0; hop + 1 < world; ++hop) {
      sent += segment_bytes(rank + world - hop) *
              static_cast<std::uint64_t>(vote_planes(static_cast<std::uint32_t>(hop + 1)));
      sent += segment_bytes(rank + 1 + world - hop);
    }
    return sent;
  }

 private:
  std::optional<float> scale_;
};

}  // namespace

SystemInfo signsgd_info() {
  SystemInfo info;
  info.name = "signsgd";
  info.summary = "majority vote of signs, counters growing along a ring";
  info.paper = "Bernstein et al., ICML 2018; on a ring as in Marsit, section 3.1";
  info.formula = "sum over m = 1..W-1 of (ceil(log2(m+1)) + 1) * ceil(len/8), and 8 for each other rank";
  info.options = {{"scale", "auto", "step size; auto: the mean over ranks of mean |gradient|"}};
  info.make = [](const Options& options, Inner) -> std::unique_ptr<Synchronizer> {
    std::optional<float> scale;
    if (options.text("scale") != "auto") scale = static_cast<float>(options.real("scale", 1e-30, 1e30));
    return std::make_unique<SignSgd>(scale);
  };
  return info;
}

}  // namespace thinwire
