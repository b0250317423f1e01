#include "comm/ring.h"

#include <algorithm>
#include <array>

#include "wire/crc32c.h"

namespace thinwire {
namespace {

/// Walks the chunks of a ring phase, hop by hop, in the order in which they travel.
class ChunkWalk {
 public:
  /// first_segment travels in hop 0, the one before it in hop 1, and so on.
  ChunkWalk(std::size_t size, const RingLayout& layout, std::size_t first_segment)
      : size_(size), layout_(layout), first_segment_(first_segment) {
    enter_hop(0);
  }

  bool done() const { return chunk_.hop + 1 >= size_; }
  const RingChunk& chunk() const { return chunk_; }

  void advance() {
    chunk_.slot = (chunk_.slot + 1) % kRingWindow;
    ++chunk_.index;
    chunk_.begin = chunk_.end;
    chunk_.end = std::min(chunk_.begin + layout_.chunk_elements, part_end_);
    if (chunk_.begin == part_end_ && !enter_part(chunk_.part + 1)) enter_hop(chunk_.hop + 1);
  }

 private:
  void enter_hop(std::size_t hop) {
    for (chunk_.hop = hop; !done(); ++chunk_.hop) {
      chunk_.segment = (first_segment_ + size_ - chunk_.hop) % size_;
      if (enter_part(layout_.first_part + chunk_.segment * layout_.parts_per_segment)) return;
    }
  }

  /// The first part from `part` on, in the current segment, that is not empty; false if there is none.
  bool enter_part(std::size_t part) {
    const std::size_t last = layout_.first_part + (chunk_.segment + 1) * layout_.parts_per_segment;
    for (; part < last; ++part) {
      chunk_.part = part;
      chunk_.index = 0;
      chunk_.begin = part_begin(layout_.elements, layout_.parts, part);
      part_end_ = part_begin(layout_.elements, layout_.parts, part + 1);
      chunk_.end = std::min(chunk_.begin + layout_.chunk_elements, part_end_);
      if (chunk_.begin != part_end_) return true;
    }
    return false;
  }

  std::size_t size_;
  RingLayout layout_;
  std::size_t first_segment_;
  std::size_t part_end_ = 0;
  RingChunk chunk_;
};

/// One phase. What arrives in hop h leaves in hop h + 1; what leaves in hop 0 is this rank's own.
void run_phase(Communicator& communicator, const RingGroup& group, const RingLayout& layout,
               std::size_t own_segment, Communicator::Tag tag, RingCodec& codec) {
  const std::size_t size = group.size();
  if (size == 1) return;
  const std::size_t arriving_segment = (own_segment + size - 1) % size;

  // Sends are waited for at the end only: what a rank sends for a later hop is received when its neighbour
  // gets there, which may take chunks that this rank has yet to send.
  PendingLease sends(communicator.pending_storage());
  std::array<std::uint32_t, kRingWindow> seals{};
  std::array<Pending, kRingWindow> receives;
  std::array<Pending, kRingWindow> seal_receives;
  std::array<Span<std::byte>, kRingWindow> receive_buffers;
  ChunkWalk posted(size, layout, arriving_segment);
  auto post_receive = [&] {
    if (posted.done()) return;
    const RingChunk& chunk = posted.chunk();
    receive_buffers[chunk.slot] = codec.receive_buffer(chunk);
    receives[chunk.slot] = communicator.receive(group.previous(), tag, receive_buffers[chunk.slot]);
    if (codec.seal_of(chunk) != nullptr) {
      seal_receives[chunk.slot] = communicator.receive(
          group.previous(), tag, as_writable_bytes(Span<std::uint32_t>(&seals[chunk.slot], 1)));
    }
    posted.advance();
  };
  auto send = [&](const RingChunk& chunk) {
    const auto message = codec.outgoing(chunk);
    sends.push(communicator.send(group.next(), tag, message));
    if (std::uint32_t* seal = codec.seal_of(chunk)) {
      *seal = crc32c(message);
      sends.push(communicator.send_guard(group.next(), tag, as_bytes(Span<const std::uint32_t>(seal, 1))));
    }
  };
  for (std::size_t i = 0; i < kRingWindow; ++i) post_receive();
  for (ChunkWalk own(size, layout, own_segment); !own.done() && own.chunk().hop == 0; own.advance()) {
    send(own.chunk());
  }
  for (ChunkWalk arriving(size, layout, arriving_segment); !arriving.done(); arriving.advance()) {
    RingChunk chunk = arriving.chunk();
    codec.prepare(chunk);
    receives[chunk.slot].wait();
    if (codec.seal_of(chunk) != nullptr) {
      seal_receives[chunk.slot].wait();
      communicator.check_seal(group.previous(), receive_buffers[chunk.slot], seals[chunk.slot]);
    }
    codec.incoming(chunk, receive_buffers[chunk.slot]);
    if (chunk.hop + 2 < size) {
      ++chunk.hop;
      send(chunk);
    }
    post_receive();
  }
  sends.wait_all();
}

}  // namespace

void ring_reduce_scatter(Communicator& communicator, const RingGroup& group, const RingLayout& layout,
                         Communicator::Tag tag, RingCodec& codec) {
  run_phase(communicator, group, layout, group.position, tag, codec);
}

void ring_all_gather(Communicator& communicator, const RingGroup& group, const RingLayout& layout,
                     Communicator::Tag tag, RingCodec& codec) {
  run_phase(communicator, group, layout, ring_owned_segment(group.position, group.size()), tag, codec);
}

void ring_all_reduce(Communicator& communicator, const RingGroup& group, const RingLayout& layout,
                     Communicator::Tag tag, RingCodec& codec) {
  ring_reduce_scatter(communicator, group, layout, tag, codec);
  codec.start_gather();
  ring_all_gather(communicator, group, layout, tag, codec);
}

}  // namespace thinwire
