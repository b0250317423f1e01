#include "systems/s2_reducer/sketch_all_reduce.h"

#include <algorithm>
#include <cmath>

#include "exchange/collectives.h"
#include "kernels/dense/dense.h"
#include "kernels/rows/bitmap.h"
#include "kernels/rows/row_access.h"
#include "kernels/rows/row_merge.h"
#include "kernels/selection/block_norms.h"
#include "thinwire/errors.h"

namespace thinwire {
namespace {

/// In place of a count: this rank has a value that is not finite.
constexpr std::uint64_t kNonFinite = ~std::uint64_t{0};

}  // namespace

SketchPlan::SketchPlan(const SketchSettings& settings, double mean_nonzeros, std::size_t union_elements) {
  const double cells = settings.cells_per_nonzero * mean_nonzeros;
  exact = settings.size == SketchSize::exact ||
          (settings.size == SketchSize::automatic && static_cast<double>(union_elements) <= cells);
  columns = std::max<std::size_t>(
      1, static_cast<std::size_t>(std::ceil(cells / static_cast<double>(settings.rows))));
}

SketchAllReduce::SketchAllReduce(const SketchSettings& settings, BucketId bucket, std::size_t elements,
                                 std::size_t width, Step& step)
    : settings_(settings),
      bucket_(bucket),
      elements_(elements),
      width_(width),
      blocks_(block_count(elements, width)),
      world_(static_cast<std::size_t>(step.communicator.size())),
      step_(step) {}

Span<const float> SketchAllReduce::average(const OwnBlocks& own, Span<std::uint64_t> bits, bool finite) {
  step_.report.formula_bytes = 0;
  bits_ = bits;
  step_.report.density_in = static_cast<double>(own.list.listed()) / static_cast<double>(elements_);
  step_.report.density_out = 0;
  if (!agree(own.list.listed(), finite)) return {};
  unite();
  step_.report.density_out = static_cast<double>(union_.listed()) / static_cast<double>(elements_);
  const SketchPlan plan(settings_, mean_nonzeros_, union_.listed());
  exact_ = plan.exact;
  return plan.exact ? sum_exactly(own) : sum_sketches(own, plan.columns);
}

/// Whether there is anything to send: every value finite and one of them not 0, on any rank.
bool SketchAllReduce::agree(std::size_t nonzeros, bool finite) {
  const std::uint64_t own = finite ? nonzeros : kNonFinite;
  const auto all = gather(step_, own);
  step_.report.formula_bytes += sizeof own * (world_ - 1);
  double total = 0;
  for (std::size_t rank = 0; rank < world_; ++rank) {
    if (all[rank] == kNonFinite) {
      step_.report.finite = false;
      return false;
    }
    if (all[rank] > elements_) {
      throw CorruptFrame("rank " + std::to_string(rank) + " announces " + std::to_string(all[rank]) +
                         " elements in non-zero blocks, bucket " + std::to_string(bucket_) + " has " +
                         std::to_string(elements_));
    }
    total += static_cast<double>(all[rank]);
  }
  mean_nonzeros_ = total / static_cast<double>(world_);
  return total != 0;
}

void SketchAllReduce::unite() {
  const auto own = step_.workspace.take<std::uint64_t>(bits_.size());
  std::copy(bits_.begin(), bits_.end(), own.begin());
  all_reduce_or(step_, bits_);
  step_.report.formula_bytes += step_.communicator.ring_sent_bytes(bits_.size(), sizeof(std::uint64_t));
  bool whole = blocks_ % 64 == 0 || (bits_[bits_.size() - 1] >> (blocks_ % 64)) == 0;
  for (std::size_t word = 0; word < own.size(); ++word) whole = whole && (own[word] & ~bits_[word]) == 0;
  if (!whole) {
    throw CorruptFrame("the union of the ranks' bitmaps in bucket " + std::to_string(bucket_) +
                       " lacks blocks of this rank or names some beyond the last");
  }
  before_ = step_.workspace.take<std::uint32_t>(bits_.size());
  const std::size_t count = count_bits_before(step_.executor, bits_, before_);
  const auto united = step_.workspace.take<std::uint32_t>(count);
  list_bits(step_.executor, bits_, before_, united);
  union_ = {united, width_, elements_};
}

Span<const float> SketchAllReduce::sum_exactly(const OwnBlocks& own) {
  // Whole blocks, of which a bucket's last lacks some elements: those stay behind.
  const auto blocks = step_.scratch.take<float>(union_.blocks.size() * width_);
  const auto sums = blocks.first(union_.listed());
  if (own.layout == BlockLayout::packed) {
    fill(step_.executor, sums, 0);
    accumulate_rows(step_.executor, own.list.blocks, own.values, width_, bits_, before_, true, sums);
  } else {
    gather_rows(step_.executor, own.values, own.residual, union_.blocks, width_, blocks);
  }
  all_reduce_sum(step_, sums);
  step_.report.formula_bytes += step_.communicator.ring_sent_bytes(sums.size(), sizeof(float));
  step_.clock.enter(Phase::decompress);
  // Finite values whose sum is not: every rank sees the same sums.
  step_.report.finite = scale(step_.executor, sums, 1.0f / static_cast<float>(world_));
  return sums;
}

Span<const float> SketchAllReduce::sum_sketches(const OwnBlocks& own, std::size_t columns) {
  const CountSketch sketch =
      make_count_sketch(random_stream(step_.seed, step_.index, bucket_, RandomPurpose::sketch),
                        settings_.rows, columns, settings_.run);
  const auto table = step_.scratch.take<float>(sketch.cells());
  fill(step_.executor, table, 0);
  insert_blocks(step_.executor, sketch, own.list, own.layout, own.values, own.residual, table);
  all_reduce_sum(step_, table);
  step_.report.formula_bytes += step_.communicator.ring_sent_bytes(table.size(), sizeof(float));
  step_.clock.enter(Phase::decompress);
  double factor = 1.0 / static_cast<double>(world_);
  if (settings_.shrink) {
    factor /= 1 + (static_cast<double>(union_.listed()) - 1) / static_cast<double>(columns);
  }
  // A cell that is not finite would show in some estimates and hide from others behind the median.
  step_.report.finite = scale(step_.executor, table, static_cast<float>(factor));
  const auto mean = step_.scratch.take<float>(union_.listed());
  if (step_.report.finite) query_blocks(step_.executor, sketch, union_, BlockLayout::packed, table, mean);
  return mean;
}

}  // namespace thinwire
