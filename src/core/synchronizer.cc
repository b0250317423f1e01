#include "thinwire/synchronizer.h"

#include <stdexcept>

#include "core/partition.h"

namespace thinwire {

std::uint64_t Workload::ring_sent_bytes(std::uint64_t n, std::size_t element_bytes) const {
  if (world_size == 1) return 0;
  return ring_sent_elements(n, static_cast<std::size_t>(world_size), static_cast<std::size_t>(rank)) *
         element_bytes;
}

bool Synchronizer::sum_in_type(BucketId, Span<const float> residual, Step&,
                               const std::function<void()>& sum) {
  if (!is_plain_sum() || !residual.empty()) return false;
  sum();
  return true;
}

RowSparse Synchronizer::synchronize_rows(BucketId, const RowSparse&, Span<float>, Step&) {
  throw std::logic_error("this system takes no rows: densify them first");
}

}  // namespace thinwire
