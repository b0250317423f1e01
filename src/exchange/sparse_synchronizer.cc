#include "exchange/sparse_synchronizer.h"

#include <algorithm>
#include <cmath>

#include "exchange/rows.h"
#include "kernels/dense/dense.h"
#include "kernels/rows/bitmap.h"
#include "kernels/rows/nonzeros.h"
#include "kernels/rows/row_access.h"
#include "kernels/selection/block_norms.h"

namespace thinwire {
namespace {

/// The same rows, ascending: places them by their rank in a bitmap of the table.
RowSparse in_order(const RowSparse& rows, Step& step) {
  const auto bitmap = step.scratch.take<std::uint64_t>(bitmap_words(rows.rows));
  const auto before = step.scratch.take<std::uint32_t>(bitmap.size());
  const auto indices = step.scratch.take<std::uint32_t>(rows.size());
  const auto slots = step.scratch.take<std::uint32_t>(rows.size());
  const auto values = step.scratch.take<float>(rows.values.size());
  clear_bitmap(step.executor, bitmap);
  set_bits(step.executor, rows.row_indices, bitmap);
  count_bits_before(step.executor, bitmap, before);
  list_bits(step.executor, bitmap, before, indices);
  find_ranks(step.executor, bitmap, before, rows.row_indices, slots);
  scatter_rows(step.executor, slots, rows.values, rows.width, values);
  return {indices, values, rows.rows, rows.width};
}

}  // namespace

void SparseSynchronizer::synchronize(BucketId bucket, Span<float> gradient, Span<float> residual,
                                     Step& step) {
  const RowSparse own = collect(gradient, residual, step);
  const RowMean mean = exchange_checked(bucket, own, step);
  step.clock.enter(Phase::decompress);
  if (!mean.finite) return;
  const auto rows = static_cast<double>(own.rows);
  step.report.density_in = static_cast<double>(own.size()) / rows;
  step.report.density_out = static_cast<double>(mean.rows.size()) / rows;
  fill(step.executor, gradient, 0);
  scatter_rows(step.executor, mean.rows.row_indices, mean.rows.values, block_, gradient);
  if (residual.empty()) return;
  fill(step.executor, step.turn.write(residual).after, 0);
  step.report.residual_norm = 0;
}

RowSparse SparseSynchronizer::synchronize_rows(BucketId bucket, const RowSparse& gradient,
                                               Span<float> residual, Step& step) {
  // Single elements have blocks only where they lie in the table.
  const bool in_blocks = block_ > 1 && (gradient.width == 1 || rows_in_blocks_);
  if (!residual.empty() || in_blocks) {
    return synchronize_densified(*this, bucket, gradient, residual, step);
  }
  const RowMean mean = exchange_checked(bucket, gradient, step);
  step.clock.enter(Phase::decompress);
  return mean.finite && !mean.ascending ? in_order(mean.rows, step) : mean.rows;
}

RowMean SparseSynchronizer::exchange_checked(BucketId bucket, const RowSparse& own, Step& step) {
  const bool finite = all_finite(step.executor, own.values);
  if (step.communicator.size() > 1) return exchange(bucket, own, finite, step);
  step.report.formula_bytes = 0;
  step.report.finite = finite;
  return {own, finite, true};
}

RowSparse SparseSynchronizer::collect(Span<const float> gradient, Span<const float> residual,
                                      Step& step) const {
  const std::size_t n = gradient.size();
  if (block_ <= 1) {
    const Elements found = find_nonzeros(step.executor, gradient, residual, step.scratch);
    return {found.indices, found.values, n, 1};
  }
  const std::size_t blocks = (n + block_ - 1) / block_;
  const auto flags = step.scratch.take<std::uint64_t>(bitmap_words(blocks));
  const auto before = step.scratch.take<std::uint32_t>(flags.size());
  flag_nonzero_blocks(step.executor, gradient, residual, block_, flags);
  const std::size_t found = count_bits_before(step.executor, flags, before);
  const auto indices = step.scratch.take<std::uint32_t>(found);
  const auto values = step.scratch.take<float>(found * block_);
  list_bits(step.executor, flags, before, indices);
  gather_rows(step.executor, gradient, residual, indices, block_, values);
  return {indices, values, blocks, block_};
}

SparseSynchronizer::Expected SparseSynchronizer::expected(const Workload& workload) const {
  const std::uint64_t width = workload.row_width > 1 && !rows_in_blocks_ ? workload.row_width : block_;
  const std::uint64_t table = (workload.elements + width - 1) / width;
  // Rows that lie apart are each in a block of their own: more blocks than these hold none.
  const double rows_of_block =
      workload.row_width > 1
          ? std::max(1.0, static_cast<double>(width) / static_cast<double>(workload.row_width))
          : 1.0;
  const double rows = static_cast<double>(table) * std::min(1.0, workload.density * rows_of_block);
  const double most = std::min(static_cast<double>(table), rows * workload.densification);
  return {.table_rows = table,
          .width = width,
          .rows = static_cast<std::uint64_t>(std::llround(rows)),
          .union_rows = static_cast<std::uint64_t>(std::llround(most)),
          .world = static_cast<std::uint64_t>(workload.world_size)};
}

}  // namespace thinwire
