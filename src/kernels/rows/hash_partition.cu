// Splitting rows among owners on a CUDA device: a stable sort of row numbers by owner, then every owner's
// rows are written side by side, which matters most where they go to frames in host memory.

#include "kernels/rows/hash_partition.h"

#include <algorithm>
#include <bit>

#include "kernels/device/device.h"
#include "kernels/device/device_algorithms.h"

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
  const Scratch<std::uint32_t> begins(own, owners + 1);
  launch(own.stream(), grid_for(count, 4), number_kernel, numbers.data(), count);
  sort_pairs(own, o.data(), sorted.data(), numbers.data(), rows.data(), count,
             std::max(1, static_cast<int>(std::bit_width(owners - 1))));
  launch(own.stream(), grid_for(owners + 1), begins_kernel, sorted.data(), count, owners, begins.data());
  const RowLanes lanes = RowLanes::of(width);
  launch(own.stream(), lanes.grid(count), deliver_kernel, sorted.data(), rows.data(), count, begins.data(),
         i.data(), v.data(), width, lanes, c.data());
  launch(own.stream(), grid_for(owners), advance_kernel, begins.data(), owners, width, c.data());
  // What the cursors point to may be the host's.
  finish(own, o, i, v, c);
}

}  // namespace thinwire
