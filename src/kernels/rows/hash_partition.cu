// Splitting rows among owners on a CUDA device: a stable sort of row numbers by owner, then every owner's
// rows are written side by side, which matters most where they go to frames in host memory.
//
// Zen's Algorithm 1 on a CUDA device. The owners' slots lie owner after owner, so that one prefix-sum
// compaction gives each owner's. What found no slot is placed behind them, and each owner's part is sorted.

#include "kernels/rows/hash_partition.h"

#include <algorithm>
#include <bit>

#include "kernels/device/device.h"
#include "kernels/device/device_algorithms.h"
#include "kernels/rows/bit_list.h"

namespace thinwire {
using namespace cuda;
namespace {

/// More owners than this are counted in global memory: enough of them to keep out of each other's way.
constexpr std::size_t kCountedInBlock = 4096;

/// totals[p] += slots of owner p.
THINWIRE_KERNEL void owners_kernel(Reads<std::uint32_t> slots, std::size_t count, double owners,
                                   double per_size, Writes<std::uint16_t> owner_of,
                                   Writes<unsigned long long> totals) {
  THINWIRE_SHARED_MEMORY(std::uint32_t, counts);
  const auto bins = static_cast<std::uint32_t>(owners);
  const bool in_block = bins <= kCountedInBlock;
  if (in_block) {
    for (std::uint32_t p = threadIdx.x; p < bins; p += blockDim.x) counts[p] = 0;
    __syncthreads();
  }
  for (std::size_t k = thread_of_grid(); k < count; k += threads_of_grid()) {
    const std::uint16_t owner = owner_of_slot(slots[k], owners, per_size);
    owner_of[k] = owner;
    if (in_block) {
      atomicAdd(counts + owner, 1u);
    } else {
      atomicAdd(totals + owner, 1ull);
    }
  }
  if (!in_block) return;
  __syncthreads();
  for (std::uint32_t p = threadIdx.x; p < bins; p += blockDim.x) {
    if (counts[p] != 0) atomicAdd(totals + p, static_cast<unsigned long long>(counts[p]));
  }
}

THINWIRE_KERNEL void number_kernel(Writes<std::uint32_t> rows, std::size_t count) {
  for (std::size_t k = thread_of_grid(); k < count; k += threads_of_grid()) {
    rows[k] = static_cast<std::uint32_t>(k);
  }
}

/// begins[p] = first position of owner p in the sorted list; begins: [owners + 1].
THINWIRE_KERNEL void begins_kernel(Reads<std::uint16_t> sorted, std::size_t count, std::size_t owners,
                                   Writes<std::uint32_t> begins) {
  for (std::size_t p = thread_of_grid(); p <= owners; p += threads_of_grid()) {
    const std::size_t first = partition_point(0, count, [&](std::size_t k) { return sorted[k] < p; });
    begins[p] = static_cast<std::uint32_t>(first);
  }
}

/// Row `rows[k]` goes to the cursor of its owner, sorted[k].
THINWIRE_KERNEL void deliver_kernel(Reads<std::uint16_t> sorted, Reads<std::uint32_t> rows, std::size_t count,
                                    Reads<std::uint32_t> begins, Reads<std::uint32_t> indices,
                                    Reads<float> values, std::size_t width, RowLanes lanes,
                                    Reads<RowCursor> cursors) {
  for (std::size_t k = lanes.first_row(); k < count; k += lanes.row_step()) {
    const std::uint16_t owner = sorted[k];
    const RowCursor cursor = cursors[owner];
    const std::size_t at = k - begins[owner];
    const std::size_t row = rows[k];
    if (lanes.first_element() == 0) cursor.index[at] = indices[row];
    for (std::size_t i = lanes.first_element(); i < width; i += lanes.element_step()) {
      cursor.values[at * width + i] = values[row * width + i];
    }
  }
}

THINWIRE_KERNEL void advance_kernel(Reads<std::uint32_t> begins, std::size_t owners, std::size_t width,
                                    Writes<RowCursor> cursors) {
  for (std::size_t p = thread_of_grid(); p < owners; p += threads_of_grid()) {
    const std::size_t count = begins[p + 1] - begins[p];
    cursors[p].index += count;
    cursors[p].values += count * width;
  }
}

/// owner_of of the rows in the order of positions.
THINWIRE_KERNEL void owners_of_kernel(Reads<std::uint32_t> positions, Reads<std::uint16_t> owner_of,
                                      std::size_t count, Writes<std::uint16_t> sorted) {
  for (std::size_t k = thread_of_grid(); k < count; k += threads_of_grid()) {
    sorted[k] = owner_of[positions[k]];
  }
}

/// Rows owner after owner, on the device.
struct SortedRows {
  const std::uint16_t* owners_of = nullptr;  ///< [count], ascending
  const std::uint32_t* rows = nullptr;       ///< [count]
  std::uint32_t* begins = nullptr;           ///< [owners + 1], to be filled in
  std::size_t count = 0;
  std::size_t owners = 0;
};

/// Submits the delivery to cursors that lie on the device.
void deliver(CudaExecutor& executor, const SortedRows& sorted, const std::uint32_t* indices,
             const float* values, std::size_t width, RowCursor* cursors) {
  launch(executor.stream(), grid_for(sorted.owners + 1), begins_kernel, sorted.owners_of, sorted.count,
         sorted.owners, sorted.begins);
  const RowLanes lanes = RowLanes::of(width);
  launch(executor.stream(), lanes.grid(sorted.count), deliver_kernel, sorted.owners_of, sorted.rows,
         sorted.count, sorted.begins, indices, values, width, lanes, cursors);
  launch(executor.stream(), grid_for(sorted.owners), advance_kernel, sorted.begins, sorted.owners, width,
         cursors);
}

struct IsTaken {
  const std::uint32_t* entries;
  __device__ bool operator()(std::size_t i) const { return entries[i] != 0; }
};

/// The number of taken entries in front of `position`.
__device__ std::size_t taken_before(const std::uint64_t* bits, const std::uint32_t* before,
                                    std::size_t position, std::size_t entries, std::size_t total) {
  return position == entries ? total : rank_at(bits, before, position);
}

void clear(CudaExecutor& executor, std::uint32_t* memory, std::size_t count) {
  if (count == 0) return;
  check(cudaMemsetAsync(memory, 0, count * sizeof(std::uint32_t), executor.stream()),
        "a table could not be cleared");
}

/// What kernels need to know of HashMemory. k + 1 is stored of what lies at indices[k].
struct PositionTable {
  std::uint32_t* slots = nullptr;   ///< owner after owner
  std::uint32_t* serial = nullptr;  ///< of all owners
  std::uint32_t* serial_count = nullptr;
  std::size_t slots_each = 0;
  std::size_t serial_room = 0;
};

THINWIRE_KERNEL void insert_positions_kernel(RandomStream stream, int rounds, Reads<std::uint32_t> indices,
                                             Reads<std::uint16_t> owner_of, std::size_t count,
                                             PositionTable table) {
  for (std::size_t k = thread_of_grid(); k < count; k += threads_of_grid()) {
    const auto stored = static_cast<std::uint32_t>(k + 1);
    std::uint32_t* own = table.slots + owner_of[k] * table.slots_each;
    const bool placed = probe_slots(stream, indices[k], rounds, table.slots_each,
                                    [&](std::size_t slot) { return atomicCAS(own + slot, 0u, stored) == 0; });
    if (placed) continue;
    const std::size_t at = atomicAdd(table.serial_count, 1u);
    if (at < table.serial_room) table.serial[at] = stored;
  }
}

/// Of owners, on the device, [owners] each.
struct OwnerPlaces {
  std::uint32_t* begins = nullptr;  ///< where its part of the positions begins
  std::uint32_t* ends = nullptr;
  std::uint32_t* shifts = nullptr;  ///< from the number of a taken slot to its place: serial ones before
  std::uint32_t* serial = nullptr;  ///< where its next serial one goes
};

THINWIRE_KERNEL void places_kernel(Reads<std::uint64_t> bits, Reads<std::uint32_t> before, std::size_t total,
                                   std::size_t slots_each, Reads<std::size_t> counts, Reads<std::size_t> sums,
                                   std::size_t owners, OwnerPlaces places) {
  for (std::size_t p = thread_of_grid(); p < owners; p += threads_of_grid()) {
    const std::size_t first = taken_before(bits, before, p * slots_each, owners * slots_each, total);
    const std::size_t next = taken_before(bits, before, (p + 1) * slots_each, owners * slots_each, total);
    places.begins[p] = static_cast<std::uint32_t>(sums[p]);
    places.ends[p] = static_cast<std::uint32_t>(sums[p] + counts[p]);
    places.shifts[p] = static_cast<std::uint32_t>(sums[p] - first);
    places.serial[p] = static_cast<std::uint32_t>(sums[p] + next - first);
  }
}

struct WritePosition {
  const std::uint32_t* slots;
  const std::uint16_t* owner_of;
  const std::uint32_t* shifts;
  std::uint32_t* positions;
  __device__ void operator()(std::size_t k, std::size_t slot) const {
    const std::uint32_t position = slots[slot] - 1;
    positions[k + shifts[owner_of[position]]] = position;
  }
};

THINWIRE_KERNEL void place_serial_kernel(PositionTable table, Reads<std::uint16_t> owner_of,
                                         OwnerPlaces places, Writes<std::uint32_t> positions) {
  for (std::size_t k = thread_of_grid(); k < *table.serial_count; k += threads_of_grid()) {
    const std::uint32_t position = table.serial[k] - 1;
    positions[atomicAdd(places.serial + owner_of[position], 1u)] = position;
  }
}

}  // namespace

void find_owners_on_cuda(Executor& executor, Span<const std::uint32_t> slots, std::size_t size,
                         std::size_t owners, Span<std::uint16_t> owner_of, Span<std::size_t> counts) {
  CudaExecutor& own = executor_on_device(executor);
  Operand p(own, slots);
  Operand o(own, owner_of);
  Resident c(own, counts, false);
  static_assert(sizeof(unsigned long long) == sizeof(std::size_t));
  auto* totals = reinterpret_cast<unsigned long long*>(c.data());
  check(cudaMemsetAsync(totals, 0, counts.size_bytes(), own.stream()), "counts could not be cleared");
  Grid grid = grid_for(slots.size(), 4);
  if (owners <= kCountedInBlock) grid.shared_bytes = owners * sizeof(std::uint32_t);
  launch(own.stream(), grid, owners_kernel, p.data(), slots.size(), static_cast<double>(owners),
         1.0 / static_cast<double>(size), o.data(), totals);
  finish(own, p, o, c);
}

void split_by_owner_on_cuda(Executor& executor, Span<const std::uint16_t> owner_of,
                            Span<const std::uint32_t> indices, Span<const float> values, std::size_t width,
                            Span<RowCursor> cursors) {
  const std::size_t count = indices.size();
  const std::size_t owners = cursors.size();
  if (count == 0) return;
  CudaExecutor& own = executor_on_device(executor);
  Operand o(own, owner_of);
  Resident i(own, indices);
  Resident v(own, values);
  Resident c(own, cursors);
  const Scratch<std::uint32_t> numbers(own, count);
  const Scratch<std::uint32_t> rows(own, count);
  const Scratch<std::uint16_t> sorted(own, count);
  launch(own.stream(), grid_for(count, 4), number_kernel, numbers.data(), count);
  sort_pairs(own, o.data(), sorted.data(), numbers.data(), rows.data(), count,
             std::max(1, static_cast<int>(std::bit_width(owners - 1))));
  const Scratch<std::uint32_t> begins(own, owners + 1);
  deliver(own, {sorted.data(), rows.data(), begins.data(), count, owners}, i.data(), v.data(), width,
          c.data());
  // What the cursors point to may be the host's.
  finish(own, o, i, v, c);
}

void deliver_rows_on_cuda(Executor& executor, Span<const std::uint32_t> positions,
                          Span<const std::uint16_t> owner_of, Span<const std::uint32_t> indices,
                          Span<const float> values, std::size_t width, Span<RowCursor> cursors) {
  const std::size_t count = positions.size();
  const std::size_t owners = cursors.size();
  if (count == 0) return;
  CudaExecutor& own = executor_on_device(executor);
  Operand p(own, positions);
  Operand o(own, owner_of);
  Resident i(own, indices);
  Resident v(own, values);
  Resident c(own, cursors);
  const Scratch<std::uint16_t> sorted(own, count);
  launch(own.stream(), grid_for(count, 4), owners_of_kernel, p.data(), o.data(), count, sorted.data());
  const Scratch<std::uint32_t> begins(own, owners + 1);
  deliver(own, {sorted.data(), p.data(), begins.data(), count, owners}, i.data(), v.data(), width, c.data());
  finish(own, p, o, i, v, c);
}

std::size_t split_positions_by_hash_on_cuda(Executor& executor, const HierarchicalHashShape& shape,
                                            const RandomStream& stream, Span<const std::uint32_t> indices,
                                            Span<const std::uint16_t> owner_of,
                                            Span<const std::size_t> counts, const HashMemory& memory,
                                            Span<std::uint32_t> positions) {
  const std::size_t owners = shape.owners;
  const std::size_t count = indices.size();
  CudaExecutor& own = executor_on_device(executor);
  Operand i(own, indices);
  Operand o(own, owner_of);
  Resident c(own, counts);
  Operand s(own, memory.slots);
  Operand r(own, memory.serial);
  Operand p(own, positions);
  const Scratch<std::uint32_t> serial_count(own, 1);
  clear(own, s.data(), owners * shape.slots);
  clear(own, serial_count.data(), 1);
  const PositionTable table{s.data(), r.data(), serial_count.data(), shape.slots, memory.serial.size()};
  launch(own.stream(), grid_for(count), insert_positions_kernel, stream, shape.rounds, i.data(), o.data(),
         count, table);
  const Marks taken(own, owners * shape.slots, IsTaken{s.data()});
  const std::size_t overflow = count - taken.total();
  if (overflow > memory.serial.size()) {
    finish(own, i, o, c, s, r, p);
    return overflow;
  }
  const Scratch<std::size_t> sums(own, owners);
  exclusive_sum(own, c.data(), sums.data(), owners);
  const Scratch<std::uint32_t> begins(own, owners), ends(own, owners), shifts(own, owners),
      serial(own, owners);
  const OwnerPlaces places{begins.data(), ends.data(), shifts.data(), serial.data()};
  launch(own.stream(), grid_for(owners), places_kernel, taken.bits(), taken.before(), taken.total(),
         shape.slots, c.data(), sums.data(), owners, places);
  const Scratch<std::uint32_t> mixed(own, count);
  taken.list(WritePosition{s.data(), o.data(), shifts.data(), mixed.data()});
  if (overflow > 0) {
    launch(own.stream(), grid_for(overflow), place_serial_kernel, table, o.data(), places, mixed.data());
  }
  // In order within each owner, so that which thread came first leaves no trace.
  sort_segments(own, mixed.data(), p.data(), count, begins.data(), ends.data(), owners);
  finish(own, i, o, c, s, r, p);
  return overflow;
}

}  // namespace thinwire
