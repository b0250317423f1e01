#pragma once
// Zen's Algorithm 1 (section 3.2), hierarchical hashing: many threads split indices among owners
// without sorting and without losing one. This is the scalar definition that a GPU version is held against;
// the CPU itself splits by a counting sort (kernels/hash_partition.h).
//
// Memory of an owner: `slots` slots for parallel writes and a serial area behind them. An index tries one
// slot per second-level hash; where all of them are taken it goes to the serial area. A slot is claimed by
// compare-and-swap, since the paper's check followed by a write loses an index when two threads check at
// once. 0 means empty, so index + 1 is stored (in 32 bits: indices are below 2^32 - 1). A serial area that is
// full grows instead of dropping.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <vector>

#include "core/philox.h"

namespace thinwire {

struct HierarchicalHashShape {
  std::size_t owners = 1;
  std::size_t slots = 0;        ///< r1 per owner.
  std::size_t serial_room = 0;  ///< r2 per owner, to begin with.
  int rounds = 3;               ///< k, the number of second-level hashes; at least 1.

  /// The paper's: r1 = 2 nnz over all owners, r2 = r1 / 10, k = 3.
  static HierarchicalHashShape for_nonzeros(std::size_t nonzeros, std::size_t owners);
};

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

  std::size_t slot_of(std::uint32_t index, int round) const;

  HierarchicalHashShape shape_;
  RandomStream stream_;
  std::deque<Owner> owners_;  // stable addresses: they hold mutexes
};

}  // namespace thinwire
