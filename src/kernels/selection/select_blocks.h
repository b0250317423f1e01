#pragma once
// How selections are made in parallel: every block of elements fills its own part of the output, and the
// parts are moved together. Which part holds what does not depend on the number of threads.

#include <algorithm>
#include <array>
#include <cstring>

#include "kernels/blocks.h"
#include "kernels/selection/select.h"

namespace thinwire {

/// Room for a selection out of `elements`; pages that are not written cost nothing.
inline Selection room_for(Workspace& workspace, std::size_t elements) {
  const auto indices = workspace.take<std::uint32_t>(elements);
  return {indices, workspace.take<float>(elements)};
}

/// select(begin, end, indices, values) writes what it chooses of [begin, end), at most end - begin, and
/// returns how many. room: [elements].
inline Selection select_by_blocks(
    Executor& executor, std::size_t elements, const Selection& room,
    FunctionRef<std::size_t(std::size_t, std::size_t, std::uint32_t*, float*)> select) {
  const std::size_t blocks = (elements + kBlockElements - 1) / kBlockElements;
  constexpr std::size_t kCountsAtOnce = 1024;
  std::array<std::size_t, kCountsAtOnce> counts;
  std::size_t total = 0;
  for (std::size_t base = 0; base < blocks; base += kCountsAtOnce) {
    const std::size_t here = std::min(kCountsAtOnce, blocks - base);
    executor.parallel_for(here, 1, [&](std::size_t first, std::size_t last) {
      for (std::size_t b = first; b < last; ++b) {
        const std::size_t begin = (base + b) * kBlockElements;
        counts[b] = select(begin, std::min(elements, begin + kBlockElements), room.indices.data() + begin,
                           room.values.data() + begin);
      }
    });
    for (std::size_t b = 0; b < here; ++b) {
      const std::size_t begin = (base + b) * kBlockElements;
      if (total != begin) {
        std::memmove(room.indices.data() + total, room.indices.data() + begin,
                     counts[b] * sizeof(std::uint32_t));
        std::memmove(room.values.data() + total, room.values.data() + begin, counts[b] * sizeof(float));
      }
      total += counts[b];
    }
  }
  return {room.indices.first(total), room.values.first(total)};
}

}  // namespace thinwire
