#pragma once
// Ring reduce-scatter and all-gather, cut into chunks so that computing on one chunk overlaps with the
// transfer of the next. What a chunk looks like on the wire and how two of them are reduced is the codec's
// business. The dense all-reduce and every one-bit system share this one ring.
//
// A range is cut into one segment per member of the ring, a segment into one or more parts, and a part into
// chunks of `chunk_elements`. (Parts let a torus cut a row's segment again for its column.)
//
//   reduce-scatter   In hop h position p receives segment p - h - 1, reduces it with its own and sends the
//                    result on in hop h + 1. After size - 1 hops it owns segment p + 1.
//   all-gather       In hop h position p sends segment p + 1 - h.
//
// Positions and segments count modulo the ring's size.

#include <algorithm>
#include <vector>

#include "core/partition.h"
#include "thinwire/communicator.h"
#include "thinwire/span.h"

namespace thinwire {

/// A list of messages under way, in storage that is kept between steps and so allocates once. The list itself
/// does not outlive the scope: on an exception its messages are abandoned while their communicator still
/// exists.
class PendingLease {
 public:
  /// `size` empty entries; more can be pushed.
  explicit PendingLease(std::vector<Pending>& storage, std::size_t size = 0) : storage_(storage) {
    storage_.resize(size);
  }
  ~PendingLease() { storage_.clear(); }
  PendingLease(const PendingLease&) = delete;
  PendingLease& operator=(const PendingLease&) = delete;

  Pending& operator[](std::size_t index) { return storage_[index]; }
  void push(Pending pending) { storage_.push_back(std::move(pending)); }
  void wait_all() {
    for (auto& pending : storage_) pending.wait();
  }

 private:
  std::vector<Pending>& storage_;
};

/// A ring: the member at position i sends to the one at position i + 1 (modulo the size).
struct RingGroup {
  Span<const int> members;  ///< Ranks, in ring order.
  std::size_t position = 0;

  std::size_t size() const { return members.size(); }
  int next() const { return members[(position + 1) % size()]; }
  int previous() const { return members[(position + size() - 1) % size()]; }
};

/// Which elements a ring works on: parts [first_part, first_part + size * parts_per_segment) of `elements`
/// elements cut into `parts` parts.
struct RingLayout {
  std::size_t elements = 0;
  std::size_t parts = 1;
  std::size_t first_part = 0;
  std::size_t parts_per_segment = 1;
  std::size_t chunk_elements = 1;
};

struct RingChunk {
  std::size_t hop = 0;      ///< The hop in which the message travels.
  std::size_t segment = 0;  ///< Whose message: 0 .. size - 1.
  std::size_t part = 0;     ///< Index of the part in the whole range.
  std::size_t index = 0;    ///< Position of the chunk inside its part.
  std::size_t begin = 0;    ///< Elements [begin, end) of the whole range.
  std::size_t end = 0;
  std::size_t slot = 0;  ///< Receives only: which of kRingWindow receive buffers is free for it.

  std::size_t elements() const { return end - begin; }
};

/// Receives posted ahead: while one chunk is reduced, the next are arriving.
inline constexpr std::size_t kRingWindow = 4;

class RingCodec {
 public:
  virtual ~RingCodec() = default;
  /// Size of the message that carries the chunk in its hop; the same on both sides.
  virtual std::size_t message_bytes(const RingChunk& chunk) const = 0;
  /// The message to send. Stays untouched until the phase returns.
  virtual Span<const std::byte> outgoing(const RingChunk& chunk) = 0;
  /// Where the checksum of an outgoing chunk lies until the phase returns; it travels in a message of its own
  /// behind the chunk's. Null, for all chunks alike: messages have no checksum, or bring their own.
  virtual std::uint32_t* seal_of(const RingChunk&) { return nullptr; }
  /// Work for a chunk that can be done while it is in flight.
  virtual void prepare(const RingChunk&) {}
  /// Where the message shall be received: message_bytes(chunk) bytes, free until incoming(chunk) returns.
  virtual Span<std::byte> receive_buffer(const RingChunk& chunk) = 0;
  /// What comes from here on belongs to the all-gather.
  virtual void start_gather() {}
  /// A message has arrived: reduces it with this rank's part (reduce-scatter) or stores it (all-gather).
  virtual void incoming(const RingChunk& chunk, Span<const std::byte> message) = 0;
};

/// Collective over the group's members. Empty parts are not sent. No message when the group has one member.
/// Uses pending_storage(). Throws what the codec and the communicator throw; a chunk whose checksum is wrong
/// is refused before the codec sees it.
void ring_reduce_scatter(Communicator& communicator, const RingGroup& group, const RingLayout& layout,
                         Communicator::Tag tag, RingCodec& codec);
void ring_all_gather(Communicator& communicator, const RingGroup& group, const RingLayout& layout,
                     Communicator::Tag tag, RingCodec& codec);
/// Both, with codec.start_gather() between them.
void ring_all_reduce(Communicator& communicator, const RingGroup& group, const RingLayout& layout,
                     Communicator::Tag tag, RingCodec& codec);

/// Rows of the most nearly square rectangle that n ranks fill: the largest divisor of n that is at most its
/// square root.
constexpr int squarest_rows(int n) {
  int rows = 1;
  for (int r = 2; r * r <= n; ++r) {
    if (n % r == 0) rows = r;
  }
  return rows;
}

/// The segment that `position` owns after the reduce-scatter.
constexpr std::size_t ring_owned_segment(std::size_t position, std::size_t size) {
  return (position + 1) % size;
}

/// Calls body(chunk) for every chunk of all parts, in ascending order.
template <class Body>
void for_each_chunk(const RingLayout& layout, Body body) {
  RingChunk chunk;
  for (chunk.part = 0; chunk.part < layout.parts; ++chunk.part) {
    const std::size_t end = part_begin(layout.elements, layout.parts, chunk.part + 1);
    chunk.begin = part_begin(layout.elements, layout.parts, chunk.part);
    for (chunk.index = 0; chunk.begin < end; chunk.begin = chunk.end, ++chunk.index) {
      chunk.end = std::min(chunk.begin + layout.chunk_elements, end);
      body(chunk);
    }
  }
}

}  // namespace thinwire
