#include "exchange/densify.h"

#include <limits>
#include <stdexcept>
#include <string>

#include "exchange/rows.h"
#include "kernels/dense/dense.h"
#include "kernels/rows/bitmap.h"
#include "kernels/rows/row_access.h"
#include "kernels/selection/block_norms.h"

namespace thinwire {

RowSparse synchronize_densified(Synchronizer& system, BucketId bucket, const RowSparse& gradient,
                                Span<float> residual, Step& step) {
  if (gradient.elements() > std::numeric_limits<std::uint32_t>::max()) {
    throw std::invalid_argument(
        "a table of " + std::to_string(gradient.rows) + " rows of width " + std::to_string(gradient.width) +
        " cannot be made dense: that is 2^32 elements or more; use a system that takes rows, "
        "without a residual");
  }
  const auto table = step.scratch.take<float>(gradient.elements());
  fill(step.executor, table, 0);
  scatter_rows(step.executor, gradient.row_indices, gradient.values, gradient.width, table);
  system.synchronize(bucket, table, residual, step);
  if (!step.report.finite) return gradient;

  step.clock.enter(Phase::decompress);
  const auto bits = step.scratch.take<std::uint64_t>(bitmap_words(gradient.rows));
  const auto before = step.scratch.take<std::uint32_t>(bits.size());
  flag_nonzero_blocks(step.executor, table, {}, gradient.width, bits);
  const std::size_t kept = count_bits_before(step.executor, bits, before);
  const auto indices = step.scratch.take<std::uint32_t>(kept);
  const auto values = step.scratch.take<float>(kept * gradient.width);
  list_bits(step.executor, bits, before, indices);
  gather_rows(step.executor, table, {}, indices, gradient.width, values);
  return {indices, values, gradient.rows, gradient.width};
}

}  // namespace thinwire
