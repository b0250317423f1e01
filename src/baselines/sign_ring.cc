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

/// The ranks of this rank's row or column, where `rows` rows have `columns` ranks each.
RingGroup group_of(Step& step, int rows, bool in_row) {
  const int columns = step.communicator.size() / rows;
  const int rank = step.communicator.rank();
  const auto members = step.workspace.take<int>(static_cast<std::size_t>(in_row ? columns : rows));
  for (std::size_t i = 0; i < members.size(); ++i) {
    const int at = static_cast<int>(i);
    members[i] = in_row ? rank / columns * columns + at : at * columns + rank % columns;
  }
  return {members, static_cast<std::size_t>(in_row ? rank % columns : rank / columns)};
}

RingLayout layout_of(std::size_t elements, std::size_t parts) {
  return {.elements = elements, .parts = parts, .chunk_elements = kChunkElements};
}

/// A row's segments have a part for each rank of a column.
RingLayout of_row(RingLayout layout, const RingGroup& column) {
  layout.parts_per_segment = column.size();
  return layout;
}

/// The column shares the segment that its ranks own after the row's reduce-scatter.
RingLayout of_column(RingLayout layout, const RingGroup& row, const RingGroup& column) {
  layout.first_part = ring_owned_segment(row.position, row.size()) * column.size();
  return layout;
}

}  // namespace

int sign_rows(SignTopology topology, int world_size) {
  return topology == SignTopology::torus ? squarest_rows(world_size) : 1;
}

SignRing::SignRing(BucketId bucket, std::size_t elements, Step& step, SignTopology topology,
                   SignsGathered gathered, SumCoding coding, PackSigns pack)
    : bucket_(bucket),
      gathered_(gathered),
      coding_(coding),
      headers_(bucket, step),
      step_(step),
      pack_(pack),
      row_(group_of(step, sign_rows(topology, step.communicator.size()), true)),
      column_(group_of(step, sign_rows(topology, step.communicator.size()), false)),
      layout_(layout_of(elements, world_)),
      row_layout_(of_row(layout_, column_)),
      column_layout_(of_column(layout_, row_, column_)),
      most_bytes_((std::min(kChunkElements, elements / world_ + 1) + 63) / 64 * 8),
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
        pack_planes(bits, plane_bytes(chunk), 1, payload_in(gathered_frame(chunk)));
      } else {
        std::ranges::copy(bits, majority(chunk).begin());
      }
    });
    return;
  }
  for (const Phase phase :
       {Phase::row_reduce, Phase::column_reduce, Phase::column_gather, Phase::row_gather}) {
    run_phase(phase);
  }
}

void SignRing::run_phase(Phase phase) {
  phase_ = phase;
  if (coding_ == SumCoding::elias) {
    run_coded();
  } else if (gathers()) {
    ring_all_gather(step_.communicator, ring(), layout(), kVotesTag, *this);
  } else {
    ring_reduce_scatter(step_.communicator, ring(), layout(), kVotesTag, *this);
  }
}

/// One phase of the way. How long a coded chunk is only its header says, which goes first.
void SignRing::run_coded() {
  const std::size_t size = ring().size();
  const std::size_t ahead = ring().position + (gathers() ? 1 : 0) + size;
  const std::size_t first = layout().first_part;
  const auto for_each_of = [&](std::size_t hop, std::size_t segment, auto&& body) {
    for_each([&](RingChunk chunk) {
      chunk.hop = hop;
      if (chunk.part >= first && (chunk.part - first) / layout().parts_per_segment == segment % size)
        body(chunk);
    });
  };
  PendingLease sends(step_.communicator.pending_storage());
  for (std::size_t hop = 0; hop + 1 < size; ++hop) {
    for_each_of(hop, ahead - hop, [&](const RingChunk& chunk) { send_coded(chunk, sends); });
    for_each_of(hop, ahead - hop + size - 1, [&](const RingChunk& chunk) { receive_coded(chunk); });
  }
  sends.wait_all();
}

void SignRing::send_coded(const RingChunk& chunk, PendingLease& sends) {
  const auto message = frame(chunk);
  if (phase_ == Phase::row_reduce && chunk.hop == 0) {
    pack_planes(pack(chunk), plane_bytes(chunk), 1, payload_in(message));
  }
  FrameContents sent = contents(chunk);
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
  sends.push(step_.communicator.send(ring().next(), kVotesTag, header));
  sends.push(step_.communicator.send(ring().next(), kVotesTag, payload));
}

void SignRing::receive_coded(const RingChunk& chunk) {
  const auto previous = static_cast<std::size_t>(ring().previous());
  const auto bytes = step_.workspace.take<std::byte>(FrameHeader::kBytes);
  step_.communicator.receive(ring().previous(), kVotesTag, bytes).wait();
  FrameContents expected = contents(chunk);
  const FrameHeader header = headers_.read_alone(bytes, previous);
  if (header.type == FrameType::sign_sums && expected.type == FrameType::sign_votes) {
    expected.type = header.type;
    expected.payload_bytes = header.payload_bytes;
  }
  headers_.check_alone(bytes, previous, expected);
  const auto payload = step_.workspace.take<std::byte>(header.payload_bytes);
  step_.communicator.receive(ring().previous(), kVotesTag, payload).wait();
  check_payload(header, payload);
  const auto own = payload_in(gathered_frame(chunk));
  if (gathers() && header.type != FrameType::sign_sums) {
    std::ranges::copy(payload, own.begin());
    return;
  }
  const std::size_t count = sign_words(chunk);
  const int received = vote_planes(expected.workers);
  const int planes = gathers() ? received : vote_planes(expected.workers + own_workers());
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
  if (gathers()) {
    pack_planes(counters, plane_bytes(chunk), planes, own);
  } else {
    if (in_row()) pack(chunk);
    reduce(chunk, counters);
  }
}

int SignRing::planes() const {
  return vote_planes(world_);
}

Span<const std::uint64_t> SignRing::counters(const RingChunk& chunk) {
  const auto counters = planes_.first(sign_words(chunk) * static_cast<std::size_t>(planes()));
  unpack_planes(payload_in(gathered_frame(chunk)), plane_bytes(chunk), planes(), counters);
  return counters;
}

std::size_t SignRing::message_bytes(const RingChunk& chunk) const {
  return FrameHeader::kBytes + static_cast<std::size_t>(contents(chunk).payload_bytes);
}

Span<const std::byte> SignRing::outgoing(const RingChunk& chunk) {
  const auto message = frame(chunk);
  // One worker's counters are its bits.
  if (phase_ == Phase::row_reduce && chunk.hop == 0) {
    pack_planes(pack(chunk), plane_bytes(chunk), 1, payload_in(message));
  }
  headers_.seal(message, contents(chunk));
  headers_.count();
  return message;
}

void SignRing::prepare(const RingChunk& chunk) {
  if (phase_ == Phase::row_reduce) pack(chunk);
}

Span<std::byte> SignRing::receive_buffer(const RingChunk& chunk) {
  return gathers() ? gathered_frame(chunk)
                   : receive_buffers_.subspan(chunk.slot * receive_stride_, message_bytes(chunk));
}

void SignRing::incoming(const RingChunk& chunk, Span<const std::byte> message) {
  headers_.check(message, static_cast<std::size_t>(ring().previous()), contents(chunk));
  if (gathers()) return;
  const std::size_t count = sign_words(chunk);
  const std::uint32_t received = workers_at(chunk.hop);
  const int planes = vote_planes(received + own_workers());
  const auto counters = planes_.first(count * static_cast<std::size_t>(planes));
  std::ranges::fill(counters, 0);
  unpack_planes(message.subspan(FrameHeader::kBytes, message.size() - FrameHeader::kBytes),
                plane_bytes(chunk), vote_planes(received), counters);
  reduce(chunk, counters);
}

/// counters: of the workers before this one, with room for its own.
void SignRing::reduce(const RingChunk& chunk, Span<std::uint64_t> counters) {
  const std::uint32_t workers = workers_at(chunk.hop) + own_workers();
  const int planes = vote_planes(workers);
  add_own(chunk, counters, planes);
  if (workers < world_) {
    pack_planes(counters, plane_bytes(chunk), planes, payload_in(counters_frame(chunk, workers)));
  } else if (keeps_counters()) {
    pack_planes(counters, plane_bytes(chunk), planes, payload_in(gathered_frame(chunk)));
  } else {
    decide(chunk, counters, planes);
  }
}

/// In a row this rank's signs, which pack() has left; in a column its row's counters, plane by plane.
void SignRing::add_own(const RingChunk& chunk, Span<std::uint64_t> counters, int planes) {
  const std::size_t count = sign_words(chunk);
  if (in_row()) {
    const auto signs = keeps_counters() ? own_signs(chunk) : own_.first(count);
    return add_votes(step_.executor, counters, planes, signs);
  }
  const std::size_t bytes = plane_bytes(chunk);
  const Span<const std::byte> own = payload_in(counters_frame(chunk, own_workers()));
  for (int k = 0; k < vote_planes(own_workers()); ++k) {
    const auto at = static_cast<std::size_t>(k);
    const auto plane = own_.first(count);
    unpack_planes(own.subspan(at * bytes, bytes), bytes, 1, plane);
    add_votes(step_.executor, counters.subspan(at * count, counters.size() - at * count), planes - k, plane);
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

FrameContents SignRing::contents(const RingChunk& chunk) const {
  return gathers() ? gathered_of(chunk) : counters_of(chunk, workers_at(chunk.hop));
}

FrameContents SignRing::counters_of(const RingChunk& chunk, std::uint32_t workers) const {
  return {.type = FrameType::sign_votes,
          .workers = workers,
          .first = chunk.begin,
          .count = chunk.elements(),
          .payload_bytes = frame_payload_bytes(FrameType::sign_votes, chunk.elements(), workers)};
}

FrameContents SignRing::gathered_of(const RingChunk& chunk) const {
  if (keeps_counters()) return counters_of(chunk, world_);
  return {.type = FrameType::sign_bits,
          .workers = world_,
          .first = chunk.begin,
          .count = chunk.elements(),
          .payload_bytes = frame_payload_bytes(FrameType::sign_bits, chunk.elements(), world_)};
}

Span<std::byte> SignRing::frame(const RingChunk& chunk) const {
  return gathers() ? gathered_frame(chunk) : counters_frame(chunk, workers_at(chunk.hop));
}

Span<std::byte> SignRing::counters_frame(const RingChunk& chunk, std::uint32_t workers) const {
  const auto bytes = static_cast<std::size_t>(counters_of(chunk, workers).payload_bytes);
  return votes_.frame(chunk.part, chunk.index, bytes);
}

Span<std::byte> SignRing::gathered_frame(const RingChunk& chunk) const {
  const auto bytes = static_cast<std::size_t>(gathered_of(chunk).payload_bytes);
  return gathered_bits_.frame(chunk.part, chunk.index, bytes);
}

OptionInfo sum_coding_option() {
  return {"coding", "planes", "of sums: planes of bits, or elias, Elias's gamma code where that is shorter"};
}

SumCoding sum_coding(const Options& options) {
  return options.choice("coding", {"planes", "elias"}) == "elias" ? SumCoding::elias : SumCoding::planes;
}

std::uint64_t sign_ring_payload_bytes(std::uint64_t elements, int world_size, int rank, SignTopology topology,
                                      SignsGathered gathered) {
  if (world_size == 1 || elements == 0) return 0;
  const auto world = static_cast<std::size_t>(world_size);
  const auto rows = static_cast<std::size_t>(sign_rows(topology, world_size));
  const std::size_t columns = world / rows;
  const std::size_t column = static_cast<std::size_t>(rank) % columns;
  const std::size_t row = static_cast<std::size_t>(rank) / columns;
  const auto part_bytes = [&](std::size_t part) -> std::uint64_t {
    return (part_size(elements, world, part) + 7) / 8;
  };
  const auto segment_bytes = [&](std::size_t segment) {
    std::uint64_t bytes = 0;
    for (std::size_t i = 0; i < rows; ++i) bytes += part_bytes(segment % columns * rows + i);
    return bytes;
  };
  const auto planes = [](std::size_t workers) {
    return static_cast<std::uint64_t>(vote_planes(static_cast<std::uint32_t>(workers)));
  };
  const std::uint64_t of_all = gathered == SignsGathered::counters ? planes(world) : 1;
  const std::size_t first = ring_owned_segment(column, columns) * rows;
  std::uint64_t sent = 0;
  for (std::size_t hop = 0; hop + 1 < columns; ++hop) {
    sent += segment_bytes(column + columns - hop) * planes(hop + 1);
    sent += segment_bytes(column + 1 + columns - hop) * of_all;
  }
  for (std::size_t hop = 0; hop + 1 < rows; ++hop) {
    sent += part_bytes(first + (row + rows - hop) % rows) * planes(columns * (hop + 1));
    sent += part_bytes(first + (row + 1 + rows - hop) % rows) * of_all;
  }
  return sent;
}

}  // namespace thinwire
