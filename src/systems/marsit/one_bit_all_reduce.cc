#include "systems/marsit/one_bit_all_reduce.h"

#include <algorithm>
#include <stdexcept>

#include "core/partition.h"
#include "kernels/signs/random_signs.h"
#include "kernels/signs/sign_bits.h"
#include "wire/frame.h"

namespace thinwire {
namespace {

/// 128 KiB of bits per message: packing one reads up to 8 MiB, long enough to hide a hop's latency.
constexpr std::size_t kChunkElements = std::size_t{1} << 20;

/// To a rank outside the rectangle, which receives one chunk after the other.
constexpr std::size_t kSendsUnderWay = 64;

std::size_t payload_bytes(const RingChunk& chunk) {
  return (chunk.elements() + 7) / 8;
}

std::size_t largest_chunk_bytes(std::size_t elements, std::size_t parts) {
  return sign_words(std::min(kChunkElements, elements / parts + 1)) * 8;
}

}  // namespace

Torus::Torus(int world_size, int rows) : world_size_(world_size), rows_(rows) {
  if (rows == 0) {
    rows_ = squarest_rows(world_size);
    if (rows_ == 1 && world_size > 3) {
      rows_ = squarest_rows(world_size - 1);
      columns_ = (world_size - 1) / rows_;
      return;
    }
  }
  if (rows_ > world_size) {
    throw std::invalid_argument("marsit: rows=" + std::to_string(rows_) + " in a world of " +
                                std::to_string(world_size) + ": there cannot be more rows than workers");
  }
  columns_ = world_size / rows_;
  if (folded() > core()) {
    throw std::invalid_argument("marsit: rows=" + std::to_string(rows_) + " leaves " +
                                std::to_string(folded()) + " of " + std::to_string(world_size) +
                                " workers outside the torus, more than stand in it");
  }
}

std::uint32_t Torus::row_weight(int row) const {
  const int first = row * columns_;
  return static_cast<std::uint32_t>(columns_ + std::clamp(folded() - first, 0, columns_));
}

OneBitAllReduce::OneBitAllReduce(BucketId bucket, Span<const float> gradient, Span<const float> residual,
                                 Step& step, const Torus& torus)
    : bucket_(bucket),
      gradient_(gradient),
      residual_(residual),
      step_(step),
      torus_(torus),
      layout_{.elements = gradient.size(),
              .parts = static_cast<std::size_t>(torus.core()),
              .chunk_elements = kChunkElements},
      chunk_bytes_(largest_chunk_bytes(gradient.size(), layout_.parts)) {}

void OneBitAllReduce::run() {
  const int rank = step_.communicator.rank();
  if (rank < torus_.core()) {
    run_core();
  } else {
    run_folded(rank - torus_.core());
  }
}

void OneBitAllReduce::run_core() {
  const int rank = step_.communicator.rank();
  const int row = rank / torus_.columns();
  const int column = rank % torus_.columns();
  const auto row_size = static_cast<std::size_t>(torus_.columns());
  const auto column_size = static_cast<std::size_t>(torus_.rows());
  const auto members = step_.workspace.take<int>(row_size + column_size);
  const auto weights = step_.workspace.take<std::uint32_t>(row_size + column_size);
  for (std::size_t i = 0; i < row_size; ++i) {
    members[i] = row * torus_.columns() + static_cast<int>(i);
    weights[i] = torus_.weight(members[i]);
  }
  for (std::size_t i = 0; i < column_size; ++i) {
    members[row_size + i] = static_cast<int>(i) * torus_.columns() + column;
    weights[row_size + i] = torus_.row_weight(static_cast<int>(i));
  }
  const RingGroup row_ring{members.first(row_size), static_cast<std::size_t>(column)};
  const RingGroup column_ring{members.subspan(row_size, column_size), static_cast<std::size_t>(row)};
  const auto row_weights = weights.first(row_size);
  const auto column_weights = weights.subspan(row_size, column_size);
  RingLayout row_layout = layout_;
  row_layout.parts_per_segment = column_size;
  RingLayout column_layout = layout_;
  column_layout.first_part = ring_owned_segment(row_ring.position, row_size) * column_size;

  const bool hosts = rank < torus_.folded();
  if (hosts) {
    fold_in(rank + torus_.core());
  } else if (row_size == 1) {
    for_each_chunk([this](const RingChunk& chunk) { pack(chunk); });  // no row phase would do it
  }
  enter(RingPhase::row_reduce, row_ring, row_weights);
  ring_reduce_scatter(step_.communicator, row_ring, row_layout, kOneBitTag, *this);
  enter(RingPhase::column_reduce, column_ring, column_weights);
  ring_reduce_scatter(step_.communicator, column_ring, column_layout, kOneBitTag, *this);
  enter(RingPhase::column_gather, column_ring, column_weights);
  ring_all_gather(step_.communicator, column_ring, column_layout, kOneBitTag, *this);
  enter(RingPhase::row_gather, row_ring, row_weights);
  ring_all_gather(step_.communicator, row_ring, row_layout, kOneBitTag, *this);
  if (hosts) fold_out(rank + torus_.core());
}

// --- Ranks outside the rectangle: all bits to the host before, all bits back after.

void OneBitAllReduce::fold_in(int guest) {
  phase_ = RingPhase::fold;
  for_each_chunk([&](const RingChunk& chunk) {
    const auto message = receive_buffers_.first(message_bytes(chunk));
    Pending arriving = step_.communicator.receive(guest, kOneBitTag, message);
    pack(chunk);
    draw(chunk, 0, 1, 1);
    arriving.wait();
    reduce(chunk, message, guest, 1);
  });
  packed_ = true;
}

void OneBitAllReduce::fold_out(int guest) {
  Pendings sends(step_.workspace, kSendsUnderWay);
  for_each_chunk([&](const RingChunk& chunk) {
    sends.push(step_.communicator.send(guest, kOneBitTag, seal(chunk, world_weight())));
  });
  sends.wait_all();
}

void OneBitAllReduce::run_folded(int host) {
  Pendings sends(step_.workspace, kSendsUnderWay);
  for_each_chunk([&](const RingChunk& chunk) {
    pack(chunk);
    sends.push(step_.communicator.send(host, kOneBitTag, seal(chunk, 1)));
  });
  sends.wait_all();
  for_each_chunk([&](const RingChunk& chunk) {
    step_.communicator.receive(host, kOneBitTag, frame(chunk)).wait();
    check(chunk, frame(chunk), host, world_weight());
  });
}

// --- What is done to a chunk.

void OneBitAllReduce::enter(RingPhase phase, const RingGroup& ring, Span<const std::uint32_t> weights) {
  phase_ = phase;
  weights_ = weights;
  position_ = ring.position;
  previous_ = ring.previous();
  // The column sums up the rows, so from then on every frame stands for the whole world.
  gathered_weight_ = world_weight();
}

void OneBitAllReduce::pack(const RingChunk& chunk) {
  headers_.note(pack_signs(step_.executor, gradient_.subspan(chunk.begin, chunk.elements()),
                           residual_.subspan(chunk.begin, chunk.elements()), words(chunk)));
}

/// Choices between this rank's bits, which stand for `own` workers, and arriving ones that stand for
/// `received`.
void OneBitAllReduce::draw(const RingChunk& chunk, std::uint32_t hop, std::uint32_t own,
                           std::uint32_t received) {
  // Hops of different phases draw from different streams.
  const RandomStream stream = random_stream(step_.seed, step_.index, bucket_, RandomPurpose::merge,
                                            static_cast<std::uint32_t>(step_.communicator.rank()),
                                            hop | static_cast<std::uint32_t>(phase_) << 16);
  // Any numbering that no two chunks share will do: words are counted per part, chunks being whole words.
  const std::size_t part_words = sign_words(gradient_.size() / layout_.parts + 1);
  const std::size_t first_word = chunk.part * part_words + chunk.index * (kChunkElements / 64);
  bernoulli_bits(step_.executor, stream, static_cast<std::uint32_t>(first_word), own, own + received,
                 masks_.first(sign_words(chunk.elements())));
}

void OneBitAllReduce::reduce(const RingChunk& chunk, Span<const std::byte> message, int source,
                             std::uint32_t received) {
  check(chunk, message, source, received);
  const std::size_t count = sign_words(chunk.elements());
  merge_signs(step_.executor, words(chunk), payload_words(message, count), masks_.first(count));
}

void OneBitAllReduce::check(const RingChunk& chunk, Span<const std::byte> message, int source,
                            std::uint32_t workers) {
  headers_.check(message, static_cast<std::size_t>(source), contents(chunk, workers));
}

/// The last frames carry everything bad that this rank has seen to everyone.
Span<const std::byte> OneBitAllReduce::seal(const RingChunk& chunk, std::uint32_t workers) {
  headers_.seal(frame(chunk), contents(chunk, workers));
  headers_.count();
  return frame(chunk);
}

FrameContents OneBitAllReduce::contents(const RingChunk& chunk, std::uint32_t workers) const {
  return {.type = FrameType::sign_bits,
          .workers = workers,
          .first = chunk.begin,
          .count = chunk.elements(),
          .payload_bytes = payload_bytes(chunk)};
}

Span<std::byte> OneBitAllReduce::frame(const RingChunk& chunk) const {
  return bits_.frame(chunk.part, chunk.index, payload_bytes(chunk));
}

Span<std::uint64_t> OneBitAllReduce::words(const RingChunk& chunk) const {
  return bits_.words(chunk.part, chunk.index, sign_words(chunk.elements()));
}

/// Segment s starts at position s, so after hop h its message stands for positions s to s + h.
std::uint32_t OneBitAllReduce::reduced_weight(const RingChunk& chunk) const {
  std::uint32_t weight = 0;
  for (std::size_t k = 0; k <= chunk.hop; ++k) weight += weights_[(chunk.segment + k) % weights_.size()];
  return weight;
}

// --- RingCodec

std::size_t OneBitAllReduce::message_bytes(const RingChunk& chunk) const {
  return FrameHeader::kBytes + payload_bytes(chunk);
}

Span<const std::byte> OneBitAllReduce::outgoing(const RingChunk& chunk) {
  if (gathering()) return seal(chunk, gathered_weight_);
  if (phase_ == RingPhase::row_reduce && chunk.hop == 0 && !packed_) pack(chunk);
  return seal(chunk, reduced_weight(chunk));
}

void OneBitAllReduce::prepare(const RingChunk& chunk) {
  if (gathering()) return;
  if (phase_ == RingPhase::row_reduce && !packed_) pack(chunk);
  draw(chunk, static_cast<std::uint32_t>(chunk.hop), weights_[position_], reduced_weight(chunk));
}

Span<std::byte> OneBitAllReduce::receive_buffer(const RingChunk& chunk) {
  if (gathering()) return frame(chunk);
  return receive_buffers_.subspan(chunk.slot * (FrameHeader::kBytes + chunk_bytes_), message_bytes(chunk));
}

void OneBitAllReduce::incoming(const RingChunk& chunk, Span<const std::byte> message) {
  if (gathering()) {
    check(chunk, message, previous_, gathered_weight_);
  } else {
    reduce(chunk, message, previous_, reduced_weight(chunk));
  }
}

std::uint64_t one_bit_payload_bytes(std::size_t elements, const Torus& torus, int rank) {
  const auto parts = static_cast<std::size_t>(torus.core());
  const auto columns = static_cast<std::size_t>(torus.columns());
  const auto rows = static_cast<std::size_t>(torus.rows());
  auto part_bytes = [&](std::size_t part) -> std::uint64_t {
    return (part_size(elements, parts, part) + 7) / 8;
  };
  auto segment_bytes = [&](std::size_t segment) {
    std::uint64_t sum = 0;
    for (std::size_t part = segment * rows; part < (segment + 1) * rows; ++part) sum += part_bytes(part);
    return sum;
  };
  std::uint64_t all = 0;
  for (std::size_t part = 0; part < parts; ++part) all += part_bytes(part);
  if (rank >= torus.core()) return all;

  std::uint64_t sent = rank < torus.folded() ? all : 0;
  const std::size_t row = static_cast<std::size_t>(rank) / columns;
  const std::size_t column = static_cast<std::size_t>(rank) % columns;
  // Each ring sends everything twice but for one segment per phase, as ring_sent_elements counts it.
  if (columns > 1)
    sent += 2 * all - segment_bytes((column + 1) % columns) - segment_bytes((column + 2) % columns);
  if (rows > 1) {
    const std::size_t owned = (column + 1) % columns;
    sent += 2 * segment_bytes(owned) - part_bytes(owned * rows + (row + 1) % rows) -
            part_bytes(owned * rows + (row + 2) % rows);
  }
  return sent;
}

}  // namespace thinwire
