#pragma once
// Splitting rows among owners: a counting sort, which keeps the order inside each part and loses nothing.
//
// Zen's Algorithm 1 (section 3.2), hierarchical hashing: many threads split indices among owners without
// sorting and without losing one. HierarchicalHash is the scalar definition that the others are held against.
// Zen splits by the stable sort unless told otherwise: frames list their rows in order, and what a rank sends
// must not depend on which thread came first. With split=hash it takes split_positions_by_hash, which puts in
// order what each owner got, and deliver_rows.
//
// Memory of an owner: `slots` slots for parallel writes and a serial area behind them. An index tries one
// slot per second-level hash; where all of them are taken it goes to the serial area. A slot is claimed by
// compare-and-swap, since the paper's check followed by a write loses an index when two threads check at
// once. 0 means empty, so index + 1 is stored (in 32 bits: indices are below 2^32 - 1). A serial area that is
// full grows instead of dropping.
//
// What the paper holds against it: owners by thresholds between indices (section 3.1), and Algorithm 3
// (section 3.2 and appendix A), one hash into one memory, where an index overwrites another one.

#include <atomic>
#include <deque>
#include <mutex>
#include <vector>

#include "core/philox.h"
#include "thinwire/executor.h"
#include "thinwire/span.h"

namespace thinwire {

/// owner_of[k] = the part of [0, size), cut into `owners` nearly equal ones (core/partition.h), in which
/// slots[k] lies; counts[p] = how many lie in part p. Slots are below size. owners: 1 to 2^16.
void find_owners(Executor& executor, Span<const std::uint32_t> slots, std::size_t size, std::size_t owners,
                 Span<std::uint16_t> owner_of, Span<std::size_t> counts);

/// The same for owners that begin at thresholds: owner 0 has what lies below thresholds[0], owner p what lies
/// from thresholds[p - 1] on and below thresholds[p]. slots ascend, as thresholds do; counts has one entry
/// more than thresholds. All of them lie in host memory.
void find_owners_by_thresholds(Span<const std::uint32_t> slots, Span<const std::uint32_t> thresholds,
                               Span<std::uint16_t> owner_of, Span<std::size_t> counts);

/// Thresholds that cut the slots of a union evenly, as many slots into every part of it; slots ascend and
/// are at least one. thresholds: [owners - 1].
void cut_evenly(Span<const std::uint32_t> slots, Span<std::uint32_t> thresholds);

/// Where an owner's rows go: the next ones are written there, and both pointers move on.
struct RowCursor {
  std::uint32_t* index = nullptr;
  float* values = nullptr;
};

/// Writes every row, in order, to its owner's cursor: [k] indices, [k * width] values. Where rows lie on a
/// device, its kernels reach what the cursors point to (memory of the device, or a workspace's), and cursors
/// lie in host memory.
void split_by_owner(Executor& executor, Span<const std::uint16_t> owner_of, Span<const std::uint32_t> indices,
                    Span<const float> values, std::size_t width, Span<RowCursor> cursors);

/// The same for an order that is given: row positions[k] goes to the cursor of owner_of[positions[k]]. The
/// positions of an owner lie side by side, and owners ascend.
void deliver_rows(Executor& executor, Span<const std::uint32_t> positions, Span<const std::uint16_t> owner_of,
                  Span<const std::uint32_t> indices, Span<const float> values, std::size_t width,
                  Span<RowCursor> cursors);

/// The owner of a slot, from owners and 1 / size: part p begins at floor(size p / owners), so x lies in part
/// floor(((x + 1) owners - 1) / size). The quotient is taken half a unit of the numerator higher, which keeps
/// it at least 1/(2 size) away from every integer: more than the rounding of doubles for size < 2^32 and
/// owners <= 2^16.
constexpr std::uint16_t owner_of_slot(std::uint32_t slot, double owners, double per_size) {
  const double above = (static_cast<double>(slot) + 1) * owners - 0.5;
  return static_cast<std::uint16_t>(static_cast<std::int32_t>(above * per_size));
}

struct HierarchicalHashShape {
  std::size_t owners = 1;
  std::size_t slots = 0;        ///< r1 per owner.
  std::size_t serial_room = 0;  ///< r2 per owner, to begin with.
  int rounds = 3;               ///< k, the number of second-level hashes; at least 1.
};

/// What Algorithm 1 lets one choose. The defaults are the paper's (section 4.2).
struct HierarchicalHashParameters {
  int hashes = 3;       ///< k; at least 1.
  double slots = 2;     ///< r1 of all owners together, in non-zeros; above 0.
  double serial = 0.1;  ///< r2, in r1; not negative.

  HierarchicalHashShape shape(std::size_t nonzeros, std::size_t owners) const;
};

/// Calls try_slot(slot) for the slots in which an index may lie, in the order of the second-level hashes,
/// until one of them returns true. Returns whether one did. A block of the stream serves four hashes.
template <class TrySlot>
constexpr bool probe_slots(const RandomStream& stream, std::uint32_t index, int rounds, std::size_t slots,
                           TrySlot&& try_slot) {
  if (slots == 0) return false;
  for (int first = 0; first < rounds; first += 4) {
    const PhiloxCounter words = stream.block(index, static_cast<std::uint32_t>(first / 4));
    for (int i = 0; i < 4; ++i) {
      if (first + i >= rounds) return false;
      const std::uint64_t scaled = std::uint64_t{words[static_cast<std::size_t>(i)]} * slots;
      if (try_slot(static_cast<std::size_t>(scaled >> 32))) return true;
    }
  }
  return false;
}

class HierarchicalHash {
 public:
  /// The second-level hashes are drawn from the stream; ranks may draw different ones, since only the owner,
  /// the first level, must be agreed.
  HierarchicalHash(const HierarchicalHashShape& shape, const RandomStream& stream);

  /// Files an index under its owner (below shape.owners). Each index at most once. Any number of threads.
  void insert(std::uint32_t index, std::size_t owner);

  /// The owner's indices: slots in order, then the serial area. Not while another thread inserts.
  std::vector<std::uint32_t> extract(std::size_t owner) const;

  /// How many indices found no slot.
  std::size_t serial_count(std::size_t owner) const { return owners_[owner].serial.size(); }

 private:
  struct Owner {
    explicit Owner(std::size_t slots_wanted) : slots(slots_wanted) {}
    std::vector<std::atomic<std::uint32_t>> slots;
    std::mutex mutex;
    std::vector<std::uint32_t> serial;
  };

  HierarchicalHashShape shape_;
  RandomStream stream_;
  std::deque<Owner> owners_;  // stable addresses: they hold mutexes
};

/// Memory of one split, uninitialised, where the executor's kernels work on it. The serial area is one for
/// all owners.
struct HashMemory {
  Span<std::uint32_t> slots;   ///< [shape.owners * shape.slots]
  Span<std::uint32_t> serial;  ///< With room for every index it is never too small.
  Span<std::size_t> cursors;   ///< [shape.owners]; of no use on a device
};

/// Algorithm 1 for rows that stay where they are; on the CPU without allocating. positions [indices.size()],
/// out: owner after owner the k of what it has, owner_of[k] being that owner. Ascending within each owner, so
/// which thread came first leaves no trace. indices are distinct, owner_of[k] below shape.owners; counts[p]:
/// how often p is in owner_of. Returns how many indices found no slot. Where these are more than serial has
/// room for, positions are without meaning, and the split is to be made again with more room.
std::size_t split_positions_by_hash(Executor& executor, const HierarchicalHashShape& shape,
                                    const RandomStream& stream, Span<const std::uint32_t> indices,
                                    Span<const std::uint16_t> owner_of, Span<const std::size_t> counts,
                                    const HashMemory& memory, Span<std::uint32_t> positions);

/// The place in [0, size) that Algorithm 3's hash gives an index; size: 1 to 2^32.
constexpr std::size_t lossy_hash_place(const RandomStream& stream, std::uint32_t index, std::uint64_t size) {
  return static_cast<std::size_t>((stream.block(index, 0)[0] * size) >> 32);
}

/// Algorithm 3, on the CPU, to be compared with: every index is written to its place in memory
/// [owners * slots], whatever was there, and then read out of it, owner after owner. What another index
/// overwrote is lost. split: [indices.size()], of which the survivors are the first; counts[p]: how many of
/// them owner p has. Returns how many survive, which is how many places are hit. On one thread the last one
/// written to a place survives; on several any of them may. indices are distinct and below 2^32 - 1;
/// counts: [owners]; memory: a multiple of the owners, at most 2^32 entries, else std::invalid_argument.
std::size_t split_by_lossy_hash(Executor& executor, const RandomStream& stream,
                                Span<const std::uint32_t> indices, Span<std::uint32_t> memory,
                                Span<std::uint32_t> split, Span<std::size_t> counts);

}  // namespace thinwire
