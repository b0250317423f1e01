#include "baselines/sign_ring.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "core/partition.h"
#include "kernels/signs/random_signs.h"
#include "kernels/signs/sign_bits.h"
#include "kernels/signs/sign_votes.h"
#include "thinwire/errors.h"
#include "wire/elias.h"

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

Span<std::byte> payload_in(Span<std::byte> message) {
  return message.subspan(FrameHeader::kBytes, message.size() - FrameHeader::kBytes);
}

RingLayout layout_of(std::size_t elements, std::size_t parts) {
  return {.elements = elements, .parts = parts, .chunk_elements = kChunkElements};
}

}  // namespace

SignRing::SignRing(BucketId bucket, std::size_t elements, Step& step, SignsGathered gathered,
                   SumCoding coding, PackSigns pack)
    : bucket_(bucket),
      gathered_(gathered),
      coding_(coding),
      headers_(bucket, step),
      step_(step),
      pack_(pack),
      ring_{step.communicator.ranks(), static_cast<std::size_t>(step.communicator.rank())},
      layout_(layout_of(elements, ring_.size())),
      most_bytes_((std::min(kChunkElements, elements / ring_.size() + 1) + 63) / 64 * 8),
      most_planes_bytes_(most_bytes_ * static_cast<std::size_t>(vote_planes(world_))),
      votes_(step.workspace, elements, world_, kChunkElements, most_planes_bytes_),
      gathered_bits_(step.workspace, elements, world_, kChunkElements,
                     keeps_counters() ? most_planes_bytes_ : most_bytes_),
      own_bits_(step.workspace, keeps_counters() ? elements : 0, world_, kChunkElements, most_bytes_),
      receive_stride_(FrameHeader::kBytes + most_planes_bytes_),
      receive_buffers_(step.workspace.take<std::byte>(kRingWindow * receive_stride_)),
      planes_(step.workspace.take<std::uint64_t>(most_planes_bytes_ / 8)),
      own_(step.workspace.take<std::uint64_t>(most_bytes_ / 8)) {}

void SignRing::run() {
  if (world_ == 1) {
    // One worker: its own signs are the majority, and the counters.
    for_each([&](const RingChunk& chunk) {
      const auto bits = pack(chunk);
      if (keeps_counters()) {
        pack_planes(bits, plane_bytes(chunk), 1, payload_in(frame(chunk, true)));
      } else {
        std::ranges::copy(bits, majority(chunk).begin());
      }
    });
    return;
  }
  if (coding_ == SumCoding::elias) {
    run_coded(false);
    run_coded(true);
  } else {
    ring_all_reduce(step_.communicator, ring_, layout_, kVotesTag, *this);
  }
}

/// One half of the ring's way. How long a coded chunk is only its header says, which goes first.
void SignRing::run_coded(bool gathering) {
  gathering_ = gathering;
  const std::size_t world = ring_.size();
  const std::size_t ahead = ring_.position + (gathering ? 1 : 0) + world;
  PendingLease sends(step_.communicator.pending_storage());
  for (std::size_t hop = 0; hop + 1 < world; ++hop) {
    for_each([&](RingChunk chunk) {
      chunk.hop = hop;
      if (chunk.part == (ahead - hop) % world) send_coded(chunk, sends);
    });
    for_each([&](RingChunk chunk) {
      chunk.hop = hop;
      if (chunk.part == (ahead - hop + world - 1) % world) receive_coded(chunk);
    });
  }
  sends.wait_all();
}

void SignRing::send_coded(const RingChunk& chunk, PendingLease& sends) {
  const auto message = frame(chunk, gathering_);
  if (!gathering_ && chunk.hop == 0) pack_planes(pack(chunk), plane_bytes(chunk), 1, payload_in(message));
  FrameContents sent = contents(chunk, gathering_);
  Span<const std::byte> payload = payload_in(message);
  if (sent.type == FrameType::sign_votes && sent.workers > 1) {
    const SignSums sums{sent.workers, chunk.elements()};
    const auto planes = static_cast<std::size_t>(vote_planes(sent.workers));
    const auto counters = planes_.first(sums.words() * planes);
    unpack_planes(payload, plane_bytes(chunk), vote_planes(sent.workers), counters);
    const auto codes = step_.workspace.take<std::byte>(payload.size());
    const std::size_t bytes = write_elias(sums, counters, codes);
    if (bytes != 0 && bytes < payload.size()) {
      payload = codes.first(bytes);
      sent.type = FrameType::sign_sums;
      sent.payload_bytes = bytes;
    }
  }
  const auto header = message.first(FrameHeader::kBytes);
  headers_.seal_alone(header, sent, payload);
  headers_.count();
  coded_payload_bytes_ += payload.size();
  sends.push(step_.communicator.send(ring_.next(), kVotesTag, header));
  sends.push(step_.communicator.send(ring_.next(), kVotesTag, payload));
}

void SignRing::receive_coded(const RingChunk& chunk) {
  const auto previous = static_cast<std::size_t>(ring_.previous());
  const auto bytes = step_.workspace.take<std::byte>(FrameHeader::kBytes);
  step_.communicator.receive(ring_.previous(), kVotesTag, bytes).wait();
  FrameContents expected = contents(chunk, gathering_);
  const FrameHeader header = headers_.read_alone(bytes, previous);
  if (header.type == FrameType::sign_sums && expected.type == FrameType::sign_votes) {
    expected.type = header.type;
    expected.payload_bytes = header.payload_bytes;
  }
  headers_.check_alone(bytes, previous, expected);
  const auto payload = step_.workspace.take<std::byte>(header.payload_bytes);
  step_.communicator.receive(ring_.previous(), kVotesTag, payload).wait();
  check_payload(header, payload);
  const auto own = payload_in(frame(chunk, true));
  if (gathering_ && header.type != FrameType::sign_sums) {
    std::ranges::copy(payload, own.begin());
    return;
  }
  const std::size_t count = sign_words(chunk);
  const int received = vote_planes(expected.workers);
  const int planes = gathering_ ? received : vote_planes(expected.workers + 1);
  const auto counters = planes_.first(count * static_cast<std::size_t>(planes));
  std::ranges::fill(counters, 0);
  if (header.type == FrameType::sign_sums) {
    try {
      read_elias({expected.workers, chunk.elements()}, payload,
                 counters.first(count * static_cast<std::size_t>(received)));
    } catch (const CorruptFrame& error) {
      throw CorruptFrame(std::string(error.what()) + " (" + whose(header) + ")");
    }
  } else {
    unpack_planes(payload, plane_bytes(chunk), received, counters);
  }
  if (gathering_) {
    pack_planes(counters, plane_bytes(chunk), planes, own);
  } else {
    reduce(chunk, pack(chunk), counters);
  }
}

int SignRing::planes() const {
  return vote_planes(world_);
}

Span<const std::uint64_t> SignRing::counters(const RingChunk& chunk) {
  const auto counters = planes_.first(sign_words(chunk) * static_cast<std::size_t>(planes()));
  unpack_planes(payload_in(frame(chunk, true)), plane_bytes(chunk), planes(), counters);
  return counters;
}

std::size_t SignRing::message_bytes(const RingChunk& chunk) const {
  return FrameHeader::kBytes + static_cast<std::size_t>(contents(chunk, gathering_).payload_bytes);
}

Span<const std::byte> SignRing::outgoing(const RingChunk& chunk) {
  const auto message = frame(chunk, gathering_);
  // One worker's counters are its bits.
  if (!gathering_ && chunk.hop == 0) pack_planes(pack(chunk), plane_bytes(chunk), 1, payload_in(message));
  headers_.seal(message, contents(chunk, gathering_));
  headers_.count();
  return message;
}

void SignRing::prepare(const RingChunk& chunk) {
  if (!gathering_) pack(chunk);
}

Span<std::byte> SignRing::receive_buffer(const RingChunk& chunk) {
  return gathering_ ? frame(chunk, true)
                    : receive_buffers_.subspan(chunk.slot * receive_stride_, message_bytes(chunk));
}

void SignRing::incoming(const RingChunk& chunk, Span<const std::byte> message) {
  headers_.check(message, static_cast<std::size_t>(ring_.previous()), contents(chunk, gathering_));
  if (gathering_) return;
  const std::size_t count = sign_words(chunk);
  const auto received = static_cast<std::uint32_t>(chunk.hop + 1);
  const int planes = vote_planes(received + 1);
  const auto counters = planes_.first(count * static_cast<std::size_t>(planes));
  std::ranges::fill(counters, 0);
  unpack_planes(message.subspan(FrameHeader::kBytes, message.size() - FrameHeader::kBytes),
                plane_bytes(chunk), vote_planes(received), counters);
  reduce(chunk, keeps_counters() ? own_signs(chunk) : own_.first(count), counters);
}

/// counters: of the workers before this one, with room for it.
void SignRing::reduce(const RingChunk& chunk, Span<const std::uint64_t> own, Span<std::uint64_t> counters) {
  const auto received = static_cast<std::uint32_t>(chunk.hop + 1);
  const int planes = vote_planes(received + 1);
  add_votes(step_.executor, counters, planes, own);
  if (received + 1 < world_) {
    RingChunk next = chunk;
    ++next.hop;
    pack_planes(counters, plane_bytes(chunk), planes, payload_in(frame(next, false)));
  } else if (keeps_counters()) {
    pack_planes(counters, plane_bytes(chunk), planes, payload_in(frame(chunk, true)));
  } else {
    decide(chunk, counters, planes);
  }
}

Span<std::uint64_t> SignRing::pack(const RingChunk& chunk) {
  const auto bits = keeps_counters() ? own_signs(chunk) : own_.first(sign_words(chunk));
  pack_(chunk, bits);
  return bits;
}

void SignRing::decide(const RingChunk& chunk, Span<const std::uint64_t> counters, int planes) {
  const auto ties = own_.first(sign_words(chunk));
  if (world_ % 2 == 0) {
    const RandomStream stream = random_stream(step_.seed, step_.index, bucket_, RandomPurpose::tie,
                                              static_cast<std::uint32_t>(step_.communicator.rank()));
    bernoulli_bits(step_.executor, stream, static_cast<std::uint32_t>(chunk.index * (kChunkElements / 64)), 1,
                   2, ties);
  }
  majority_of_votes(step_.executor, counters, planes, world_, ties, majority(chunk));
}

FrameContents SignRing::contents(const RingChunk& chunk, bool gathering) const {
  const auto workers = gathering ? world_ : static_cast<std::uint32_t>(chunk.hop + 1);
  const FrameType type = gathering && !keeps_counters() ? FrameType::sign_bits : FrameType::sign_votes;
  return {.type = type,
          .workers = workers,
          .first = chunk.begin,
          .count = chunk.elements(),
          .payload_bytes = frame_payload_bytes(type, chunk.elements(), workers)};
}

Span<std::byte> SignRing::frame(const RingChunk& chunk, bool gathering) const {
  const auto bytes = static_cast<std::size_t>(contents(chunk, gathering).payload_bytes);
  return (gathering ? gathered_bits_ : votes_).frame(chunk.part, chunk.index, bytes);
}

OptionInfo sum_coding_option() {
  return {"coding", "planes", "of sums: planes of bits, or elias, Elias's gamma code where that is shorter"};
}

SumCoding sum_coding(const Options& options) {
  return options.choice("coding", {"planes", "elias"}) == "elias" ? SumCoding::elias : SumCoding::planes;
}

std::uint64_t sign_ring_payload_bytes(std::uint64_t elements, int world_size, int rank,
                                      SignsGathered gathered) {
  const auto world = static_cast<std::size_t>(world_size);
  const auto position = static_cast<std::size_t>(rank);
  if (world == 1 || elements == 0) return 0;
  auto segment_bytes = [&](std::size_t segment) -> std::uint64_t {
    return (part_size(elements, world, segment % world) + 7) / 8;
  };
  const auto planes = [](std::size_t workers) {
    return static_cast<std::uint64_t>(vote_planes(static_cast<std::uint32_t>(workers)));
  };
  const std::uint64_t of_all = gathered == SignsGathered::counters ? planes(world) : 1;
  std::uint64_t sent = 0;
  for (std::size_t hop = 0; hop + 1 < world; ++hop) {
    sent += segment_bytes(position + world - hop) * planes(hop + 1);
    sent += segment_bytes(position + 1 + world - hop) * of_all;
  }
  return sent;
}

}  // namespace thinwire
