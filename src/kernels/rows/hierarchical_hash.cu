// Zen's Algorithm 1 on a CUDA device. The owners' memory is one table, owner after owner: `slots` entries for
// parallel writes and `room` serial ones, so that one prefix-sum compaction brings everything in order.

#include "kernels/rows/hierarchical_hash.h"

#include <algorithm>
#include <memory>
#include <stdexcept>

#include "kernels/device/device.h"
#include "kernels/rows/bit_list.h"

namespace thinwire {
using namespace cuda;
namespace {

/// Positions are 32 bits.
constexpr std::size_t kMostEntries = 0xffffffffu;

/// What kernels need to know of the table.
struct Table {
  std::uint32_t* entries = nullptr;
  std::uint32_t* serial_counts = nullptr;  ///< [owners]
  std::size_t slots = 0;
  std::size_t room = 0;

  __device__ std::uint32_t* memory_of(std::size_t owner) const { return entries + owner * (slots + room); }

  /// What does not fit in the serial area is counted all the same.
  __device__ void append(std::uint32_t index, std::size_t owner) const {
    const std::size_t at = atomicAdd(serial_counts + owner, 1u);
    if (at < room) memory_of(owner)[slots + at] = index + 1;
  }
};

THINWIRE_KERNEL void insert_kernel(RandomStream stream, int rounds, Reads<std::uint32_t> indices,
                                   Reads<std::uint16_t> owner_of, std::size_t count, Table table) {
  for (std::size_t k = thread_of_grid(); k < count; k += threads_of_grid()) {
    const std::uint32_t index = indices[k];
    const std::size_t owner = owner_of[k];
    std::uint32_t* memory = table.memory_of(owner);
    const bool placed = probe_slots(stream, index, rounds, table.slots, [&](std::size_t slot) {
      return atomicCAS(memory + slot, 0u, index + 1) == 0;
    });
    if (!placed) table.append(index, owner);
  }
}

/// Moves the slots to a table whose serial areas are larger.
THINWIRE_KERNEL void move_kernel(Table from, Table to, std::size_t owners) {
  for (std::size_t owner = 0; owner < owners; ++owner) {
    for (std::size_t slot = thread_of_grid(); slot < from.slots; slot += threads_of_grid()) {
      to.memory_of(owner)[slot] = from.memory_of(owner)[slot];
    }
  }
}

/// Appends what lies in none of its slots.
THINWIRE_KERNEL void append_kernel(RandomStream stream, int rounds, Reads<std::uint32_t> indices,
                                   Reads<std::uint16_t> owner_of, std::size_t count, Table table) {
  for (std::size_t k = thread_of_grid(); k < count; k += threads_of_grid()) {
    const std::uint32_t index = indices[k];
    const std::size_t owner = owner_of[k];
    const std::uint32_t* memory = table.memory_of(owner);
    const bool placed = probe_slots(stream, index, rounds, table.slots,
                                    [&](std::size_t slot) { return memory[slot] == index + 1; });
    if (!placed) table.append(index, owner);
  }
}

struct IsTaken {
  const std::uint32_t* entries;
  __device__ bool operator()(std::size_t i) const { return entries[i] != 0; }
};

struct WriteIndex {
  const std::uint32_t* entries;
  std::uint32_t* split;
  __device__ void operator()(std::size_t k, std::size_t position) const { split[k] = entries[position] - 1; }
};

/// The number of taken entries in front of `position`.
__device__ std::size_t taken_before(const std::uint64_t* bits, const std::uint32_t* before,
                                    std::size_t position, std::size_t entries, std::size_t total) {
  return position == entries ? total : rank_at(bits, before, position);
}

THINWIRE_KERNEL void count_kernel(Reads<std::uint64_t> bits, Reads<std::uint32_t> before, std::size_t total,
                                  Table table, std::size_t owners, Writes<std::size_t> counts,
                                  Writes<std::size_t> serial_counts) {
  const std::size_t share = table.slots + table.room;
  for (std::size_t p = thread_of_grid(); p < owners; p += threads_of_grid()) {
    counts[p] = taken_before(bits, before, (p + 1) * share, owners * share, total) -
                taken_before(bits, before, p * share, owners * share, total);
    serial_counts[p] = table.serial_counts[p];
  }
}

/// A table, empty at first.
class TableMemory {
 public:
  TableMemory(CudaExecutor& executor, std::size_t owners, std::size_t slots, std::size_t room)
      : entries_(executor, owners * (slots + room)), serial_counts_(executor, owners) {
    table_ = {entries_.data(), serial_counts_.data(), slots, room};
    clear(executor, entries_.data(), owners * (slots + room));
    clear(executor, serial_counts_.data(), owners);
  }
  const Table& table() const { return table_; }

 private:
  static void clear(CudaExecutor& executor, std::uint32_t* memory, std::size_t count) {
    if (count == 0) return;
    check(cudaMemsetAsync(memory, 0, count * sizeof(std::uint32_t), executor.stream()),
          "a table could not be cleared");
  }

  Scratch<std::uint32_t> entries_;
  Scratch<std::uint32_t> serial_counts_;
  Table table_;
};

/// The largest of the owners' serial counts; waits.
std::size_t most_serial(CudaExecutor& executor, const Table& table, std::size_t owners) {
  auto* counts = static_cast<std::uint32_t*>(executor.results(owners * sizeof(std::uint32_t)));
  submit_copy(executor, table.serial_counts, counts, owners, "counts could not be copied");
  executor.wait();
  return *std::max_element(counts, counts + owners);
}

}  // namespace

void split_by_hash_on_cuda(Executor& executor, const HierarchicalHashShape& shape, const RandomStream& stream,
                           Span<const std::uint32_t> indices, Span<const std::uint16_t> owner_of,
                           Span<std::uint32_t> split, Span<std::size_t> counts,
                           Span<std::size_t> serial_counts) {
  CudaExecutor& own = executor_on_device(executor);
  Operand i(own, indices);
  Operand o(own, owner_of);
  Operand s(own, split);
  Operand c(own, counts);
  Operand r(own, serial_counts);
  const std::size_t owners = shape.owners;
  const std::size_t count = indices.size();
  auto memory = std::make_unique<TableMemory>(own, owners, shape.slots, shape.serial_room);
  launch(own.stream(), grid_for(count), insert_kernel, stream, shape.rounds, i.data(), o.data(), count,
         memory->table());
  if (const std::size_t most = most_serial(own, memory->table(), owners); most > shape.serial_room) {
    if (shape.slots + most > kMostEntries / owners)
      throw std::length_error("serial areas have no room to grow");
    auto larger = std::make_unique<TableMemory>(own, owners, shape.slots, most);
    launch(own.stream(), grid_for(shape.slots), move_kernel, memory->table(), larger->table(), owners);
    launch(own.stream(), grid_for(count), append_kernel, stream, shape.rounds, i.data(), o.data(), count,
           larger->table());
    memory = std::move(larger);
  }
  const Table& table = memory->table();
  const std::size_t entries = owners * (table.slots + table.room);
  const Marks taken(own, entries, IsTaken{table.entries});
  taken.list(WriteIndex{table.entries, s.data()});
  launch(own.stream(), grid_for(owners), count_kernel, taken.bits(), taken.before(), taken.total(), table,
         owners, c.data(), r.data());
  finish(own, i, o, s, c, r);
}

}  // namespace thinwire
