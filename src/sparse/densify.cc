#include "sparse/densify.h"

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <string>

#include "core/stopwatch.h"
#include "kernels/dense.h"
#include "kernels/row_merge.h"
#include "sparse/rows.h"

namespace thinwire {

RowSparse synchronize_densified(Synchronizer& system, BucketId bucket, const RowSparse& gradient,
                                Span<float> residual, Step& step) {
  if (gradient.elements() > std::numeric_limits<std::uint32_t>::max()) {
    throw std::invalid_argument(
        "a table of " + std::to_string(gradient.rows) + " rows of width " + std::to_string(gradient.width) +
        " cannot be made dense: that is 2^32 elements or more; use a system that takes rows, "
        "without a residual");
  }
  Stopwatch watch;
  const auto table = step.workspace.take<float>(gradient.elements());
  fill(step.executor, table, 0);
  scatter_rows(step.executor, gradient.row_indices, gradient.values, gradient.width, table);
  step.report.seconds_compress += watch.seconds();
  system.synchronize(bucket, table, residual, step);
  if (!step.report.finite) return row_of_nan(step.workspace, gradient);

  watch.restart();
  const auto indices = step.workspace.take<std::uint32_t>(gradient.rows);
  std::size_t kept = 0;
  for (std::size_t row = 0; row < gradient.rows; ++row) {
    const auto values = table.subspan(row * gradient.width, gradient.width);
    const bool zero = std::all_of(values.begin(), values.end(), [](float value) { return value == 0; });
    indices[kept] = static_cast<std::uint32_t>(row);
    kept += zero ? 0 : 1;
  }
  const auto listed = indices.first(kept);
  const auto values = step.workspace.take<float>(kept * gradient.width);
  gather_rows(step.executor, table, listed, gradient.width, values);
  step.report.seconds_decompress += watch.seconds();
  return {listed, values, gradient.rows, gradient.width};
}

}  // namespace thinwire
