#include "exchange/row_residual.h"

#include "kernels/rows/bitmap.h"
#include "kernels/rows/row_access.h"
#include "kernels/rows/row_merge.h"
#include "kernels/selection/block_norms.h"

namespace thinwire {

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

}  // namespace thinwire
