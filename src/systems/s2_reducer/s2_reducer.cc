// S2 Reducer: a sparse gradient summed by dense all-reduces, as a bitmap of its non-zero blocks and a count
// sketch of their values.
//
// Source: K. Ge et al., "S2 Reducer: high-performance sparse communication to accelerate distributed deep
// learning", section 3.1, algorithm 1.
//
//   p --> non-zero blocks --> count, finite?  --all-gather---------> mean nnz m, columns
//                        \--> bitmap C        --all-reduce (OR)----> union U
//                         \-> sketch S        --all-reduce (sum)---> estimates of U's elements, / W
//
// A block is a row of a row-sparse gradient, or `block` consecutive elements of a dense bucket. The sketch
// has rows * columns = lambda * m cells (the paper's lambda = m / (alpha d), with our m = alpha d elements in
// non-zero blocks); an element's estimate is the median over the rows. Every element outside the union is
// exactly 0.
//
// Bytes per rank: 8 (W-1) for the counts, R * 8 ceil(blocks / 64) for the bitmap, R * 4 * cells for the
// sketch, with R = 2(W-1)/W; lambda=exact sends the union's elements instead, R * 4 |U|, and loses nothing.
//
// Deviations from the paper:
// - Theorem 2 does not hold: the sketch's relative squared error is about gamma / lambda, so error feedback
//   over it diverges. The sketch's noise has mean 0 and is left to average out; what a sparsifier leaves out
//   is kept by the stage in front (block_top_k). With shrink=on, estimates are scaled by 1 / (1 + (N-1) /
//   columns), N = |U|, one row: that does contract, and allows feedback=on, residual = p - mean.
// - Hashes are drawn anew for every step and bucket; with fixed ones the same elements collide for ever.
// - Elements are hashed in runs (kernels/sketches/count_sketch.h). That is as accurate as one by one, and ten
//   times as fast.
// - Ranks hold different numbers of non-zeros: columns come from their mean.
// - An even number of rows takes the mean of the two middle values; one of them alone would be biased.

#include "systems/s2_reducer/s2_reducer.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>

#include "core/partition.h"
#include "exchange/row_residual.h"
#include "exchange/rows.h"
#include "kernels/dense/dense.h"
#include "kernels/rows/bitmap.h"
#include "kernels/rows/row_access.h"
#include "kernels/selection/block_norms.h"
#include "kernels/sketches/count_sketch.h"
#include "systems/s2_reducer/sketch_all_reduce.h"

namespace thinwire {
namespace {

class S2Reducer final : public Synchronizer {
 public:
  explicit S2Reducer(const SketchSettings& settings) : settings_(settings) {}

  bool takes_rows() const override { return true; }
  void synchronize(BucketId bucket, Span<float> gradient, Span<float> residual, Step& step) override;
  RowSparse synchronize_rows(BucketId bucket, const RowSparse& gradient, Span<float> residual,
                             Step& step) override;
  std::uint64_t payload_bytes(const Workload& workload) const override;

 private:
  SketchSettings settings_;
};

// ---------------------------------------------------------------------------------------------------------
// Dense buckets.

void S2Reducer::synchronize(BucketId bucket, Span<float> gradient, Span<float> residual, Step& step) {
  require_matching(gradient, residual);
  const std::size_t elements = gradient.size();
  const std::size_t width = settings_.block;
  const std::size_t blocks = block_count(elements, width);
  const auto bits = step.workspace.take<std::uint64_t>(bitmap_words(blocks));
  const bool finite = flag_nonzero_blocks(step.executor, gradient, residual, width, bits);
  const auto before = step.workspace.take<std::uint32_t>(bits.size());
  const auto listed =
      step.workspace.take<std::uint32_t>(blocks).first(count_bits_before(step.executor, bits, before));
  list_bits(step.executor, bits, before, listed);

  SketchAllReduce exchange(settings_, bucket, elements, width, step);
  const OwnBlocks own{{listed, width, elements}, BlockLayout::in_bucket, gradient, residual};
  const auto mean = exchange.average(own, bits, finite);
  if (!step.report.finite) return;

  step.clock.enter(Phase::decompress);
  const auto united = exchange.united().blocks;
  if (!residual.empty()) {
    // Outside the union p is 0.
    const auto p = step.scratch.take<float>(exchange.exact() ? 0 : united.size() * width);
    if (!p.empty()) gather_rows(step.executor, gradient, residual, united, width, p);
    fill(step.executor, residual, 0);
    if (!p.empty()) {
      scatter_rows(step.executor, united, p, width, residual);
      subtract_rows(step.executor, united, mean, width, residual);
    }
  }
  fill(step.executor, gradient, 0);
  scatter_rows(step.executor, united, mean, width, gradient);
}

// ---------------------------------------------------------------------------------------------------------
// Rows.

/// residual = p, less the mean unless nothing was lost; `touched`: all rows in which p or residual is not 0.
void keep(const RowSparse& touched, const RowSparse& mean, bool exact, Span<float> residual, Step& step) {
  if (residual.empty()) return;
  const std::size_t width = touched.width;
  if (exact) {
    fill_rows(step.executor, touched.row_indices, width, 0, residual);
    return;
  }
  scatter_rows(step.executor, touched.row_indices, touched.values, width, residual);
  subtract_rows(step.executor, mean.row_indices, mean.values, width, residual);
}

RowSparse S2Reducer::synchronize_rows(BucketId bucket, const RowSparse& gradient, Span<float> residual,
                                      Step& step) {
  if (!residual.empty() && residual.size() != gradient.elements()) {
    throw std::invalid_argument("residual has " + std::to_string(residual.size()) + " elements, the table " +
                                std::to_string(gradient.elements()) +
                                ": pass one of the same size, or an empty one to keep nothing");
  }
  const RowSparse touched = residual.empty() ? gradient : add_residual_rows(gradient, residual, step);
  bool finite = true;
  const RowSparse p = without_zero_rows(touched, step, finite);
  const auto bits = step.workspace.take<std::uint64_t>(bitmap_words(gradient.rows));
  std::fill(bits.begin(), bits.end(), 0);
  set_bits(step.executor, p.row_indices, bits);

  SketchAllReduce exchange(settings_, bucket, gradient.elements(), gradient.width, step);
  const OwnBlocks own{{p.row_indices, p.width, p.elements()}, BlockLayout::packed, p.values, {}};
  const auto values = exchange.average(own, bits, finite);
  if (!step.report.finite) return gradient;
  step.clock.enter(Phase::decompress);
  const RowSparse mean{exchange.united().blocks, values, gradient.rows, gradient.width};
  keep(touched, mean, exchange.exact(), residual, step);
  return mean;
}

std::uint64_t S2Reducer::payload_bytes(const Workload& workload) const {
  if (workload.elements == 0) return 0;
  const auto world = static_cast<std::size_t>(workload.world_size);
  const auto rank = static_cast<std::size_t>(workload.rank);
  const std::uint64_t counts = 8 * static_cast<std::uint64_t>(world - 1);
  // Of a dense bucket, density and densification are taken to be those of its blocks.
  const std::size_t width = workload.row_sparse ? workload.row_width : settings_.block;
  const auto elements = static_cast<double>(workload.elements);
  const double nonzeros = std::round(workload.density * elements);
  if (nonzeros == 0) return counts;
  const auto united = static_cast<std::size_t>(
      std::min(elements, std::round(workload.density * workload.densification * elements)));
  const std::size_t words = bitmap_words(block_count(workload.elements, width));
  const std::size_t values = SketchPlan(settings_, nonzeros, united).values(settings_, united);
  return counts + 8 * ring_sent_elements(words, world, rank) + 4 * ring_sent_elements(values, world, rank);
}

SketchSettings read_sketch_settings(const Options& options) {
  SketchSettings settings;
  const std::string lambda = options.text("lambda");
  if (lambda == "exact") {
    settings.size = SketchSize::exact;
  } else if (lambda == "auto") {
    settings.size = SketchSize::automatic;
    settings.cells_per_nonzero = options.real("budget", 0.001, 1000);
  } else {
    try {
      settings.cells_per_nonzero = options.real("lambda", 0.001, 1000);
    } catch (const std::invalid_argument& error) {
      throw std::invalid_argument(std::string(error.what()) + ", or exact, or auto");
    }
  }
  settings.rows = static_cast<std::size_t>(options.integer("rows", 1, kMostSketchRows));
  settings.run = static_cast<std::size_t>(std::stoul(options.choice("run", {"16", "32", "64"})));
  settings.block = static_cast<std::size_t>(options.integer("block", 1, 1 << 20));
  settings.shrink = options.flag("shrink");
  if (settings.shrink && settings.size == SketchSize::exact) {
    throw std::invalid_argument(
        "s2_reducer: shrink=on with lambda=exact: nothing is estimated, so there is "
        "nothing to shrink; leave shrink out");
  }
  if (settings.shrink && settings.rows != 1) {
    throw std::invalid_argument("s2_reducer: shrink=on with rows=" + std::to_string(settings.rows) +
                                ": the factor is known for one row only; take rows=1");
  }
  if (options.flag("feedback") && !settings.shrink && settings.size != SketchSize::exact) {
    throw std::invalid_argument(
        "s2_reducer: feedback=on with lambda=" + lambda +
        " diverges: the sketch's error is larger than what it compresses; take shrink=on or lambda=exact, or "
        "feedback=off behind a stage that keeps a residual, as in 'block_top_k+s2_reducer'");
  }
  return settings;
}

}  // namespace

SystemInfo s2_reducer_info() {
  SystemInfo info;
  info.name = "s2_reducer";
  info.summary = "bitmap and count sketch of the non-zero blocks, by dense all-reduces";
  info.paper = "Ge et al., S2 Reducer, ICASSP 2022";
  info.formula = "2(W-1)/W * (4 lambda nnz + 8 ceil(blocks/64)) + 8(W-1); exact: 4 |U| for 4 lambda nnz";
  info.takes_rows = true;
  info.options = {
      {"lambda", "0.5",
       "cells of the sketch per element in a rank's non-zero blocks (mean over ranks); exact: send the "
       "union's "
       "blocks as they are; auto: exact where that costs no more than `budget`, else a sketch of that size"},
      {"budget", "2", "lambda=auto: floats to spend per element in a rank's non-zero blocks"},
      {"rows", "1", "rows of the sketch, 1 to 31; estimates are their median"},
      {"run", "64", "neighbouring elements that are hashed together: 16, 32 or 64"},
      {"block", "256", "elements per block of a dense bucket; of row-sparse gradients a block is a row"},
      {"shrink", "off", "scale estimates so that feedback contracts; rows=1 only"}};
  info.make = [](const Options& options, Inner) -> std::unique_ptr<Synchronizer> {
    return std::make_unique<S2Reducer>(read_sketch_settings(options));
  };
  return info;
}

}  // namespace thinwire
