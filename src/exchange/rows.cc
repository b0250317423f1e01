#include "exchange/rows.h"

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <string>

#include "kernels/dense/dense.h"
#include "kernels/rows/bitmap.h"
#include "kernels/rows/row_access.h"
#include "kernels/selection/block_norms.h"

namespace thinwire {

void require_rows(const RowSparse& gradient) {
  constexpr std::size_t kWidthLimit = std::size_t{1} << 28;  // that of frames
  if (gradient.width == 0 || gradient.width > kWidthLimit) {
    throw std::invalid_argument("rows of width " + std::to_string(gradient.width) + ": it must be 1 to " +
                                std::to_string(kWidthLimit));
  }
  if (gradient.values.size() != gradient.size() * gradient.width) {
    throw std::invalid_argument(std::to_string(gradient.size()) + " rows of width " +
                                std::to_string(gradient.width) + " need " +
                                std::to_string(gradient.size() * gradient.width) + " values, got " +
                                std::to_string(gradient.values.size()));
  }
  for (std::size_t k = 0; k < gradient.size(); ++k) {
    if (gradient.row_indices[k] >= gradient.rows) {
      throw std::invalid_argument("row index " + std::to_string(gradient.row_indices[k]) + " at position " +
                                  std::to_string(k) + " is not below the table's " +
                                  std::to_string(gradient.rows) + " rows");
    }
  }
}

RowSparse merge_repeated_rows(Executor& executor, Workspace& workspace, const RowSparse& gradient) {
  const auto indices = gradient.row_indices;
  const bool ascending =
      std::adjacent_find(indices.begin(), indices.end(), std::greater_equal<>()) == indices.end();
  if (ascending) return gradient;
  const auto bitmap = workspace.take<std::uint64_t>(bitmap_words(gradient.rows));
  const auto before = workspace.take<std::uint32_t>(bitmap.size());
  std::ranges::fill(bitmap, 0);
  set_bits(executor, indices, bitmap);
  const std::size_t distinct = count_bits_before(executor, bitmap, before);
  const auto merged = workspace.take<std::uint32_t>(distinct);
  const auto sums = workspace.take<float>(distinct * gradient.width);
  list_bits(executor, bitmap, before, merged);
  fill(executor, sums, 0);
  accumulate_rows(executor, indices, gradient.values, gradient.width, bitmap, before, false, sums);
  return {merged, sums, gradient.rows, gradient.width};
}

RowSparse row_of_nan(Workspace& workspace, const RowSparse& gradient) {
  const std::size_t count = gradient.rows == 0 ? 0 : 1;
  const auto index = workspace.take<std::uint32_t>(count);
  const auto values = workspace.take<float>(count * gradient.width);
  std::ranges::fill(index, 0);
  std::ranges::fill(values, std::numeric_limits<float>::quiet_NaN());
  return {index, values, gradient.rows, gradient.width};
}

RowSparse add_residual_rows(const RowSparse& gradient, Span<const float> residual, Step& step) {
  const auto bits = step.workspace.take<std::uint64_t>(bitmap_words(gradient.rows));
  const auto before = step.workspace.take<std::uint32_t>(bits.size());
  flag_nonzero_blocks(step.executor, residual, {}, gradient.width, bits);
  set_bits(step.executor, gradient.row_indices, bits);
  const std::size_t count = count_bits_before(step.executor, bits, before);
  const auto indices = step.workspace.take<std::uint32_t>(count);
  const auto values = step.workspace.take<float>(count * gradient.width);
  list_bits(step.executor, bits, before, indices);
  gather_rows(step.executor, residual, {}, indices, gradient.width, values);
  accumulate_rows(step.executor, gradient.row_indices, gradient.values, gradient.width, bits, before, true,
                  values);
  return {indices, values, gradient.rows, gradient.width};
}

RowSparse without_zero_rows(const RowSparse& gradient, Step& step, bool& finite) {
  const auto bits = step.workspace.take<std::uint64_t>(bitmap_words(gradient.size()));
  const auto before = step.workspace.take<std::uint32_t>(bits.size());
  finite = flag_nonzero_blocks(step.executor, gradient.values, {}, gradient.width, bits);
  const std::size_t kept = count_bits_before(step.executor, bits, before);
  if (kept == gradient.size()) return gradient;
  const auto indices = step.workspace.take<std::uint32_t>(kept);
  const auto values = step.workspace.take<float>(kept * gradient.width);
  list_bits(step.executor, bits, before, indices);
  gather_rows(step.executor, gradient.values, {}, indices, gradient.width, values);
  for (auto& index : indices) index = gradient.row_indices[index];
  return {indices, values, gradient.rows, gradient.width};
}

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
