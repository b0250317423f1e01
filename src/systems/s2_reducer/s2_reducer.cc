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

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "core/partition.h"
#include "exchange/collectives.h"
#include "exchange/rows.h"
#include "kernels/dense/dense.h"
#include "kernels/rows/bitmap.h"
#include "kernels/rows/row_access.h"
#include "kernels/selection/block_norms.h"
#include "kernels/sketches/count_sketch.h"
#include "systems/systems.h"
#include "thinwire/errors.h"

namespace thinwire {
namespace {

/// In place of a count: this rank has a value that is not finite.
constexpr std::uint64_t kNonFinite = ~std::uint64_t{0};

enum class SketchSize { lambda, exact, automatic };

struct SketchSettings {
  SketchSize size = SketchSize::lambda;
  double cells_per_nonzero = 0.5;  ///< lambda, or what `auto` may spend
  std::size_t rows = 1;
  std::size_t run = 64;
  std::size_t block = 256;
  bool shrink = false;
};

/// What follows the bitmap. Equal arguments give equal plans on all ranks.
struct SketchPlan {
  bool exact = false;
  std::size_t columns = 1;

  /// mean_nonzeros: elements in a rank's non-zero blocks, mean over ranks.
  SketchPlan(const SketchSettings& settings, double mean_nonzeros, std::size_t union_elements) {
    const double cells = settings.cells_per_nonzero * mean_nonzeros;
    exact = settings.size == SketchSize::exact ||
            (settings.size == SketchSize::automatic && static_cast<double>(union_elements) <= cells);
    columns = std::max<std::size_t>(
        1, static_cast<std::size_t>(std::ceil(cells / static_cast<double>(settings.rows))));
  }
  /// Floats to all-reduce.
  std::size_t values(const SketchSettings& settings, std::size_t union_elements) const {
    return exact ? union_elements : settings.rows * columns;
  }
};

/// A rank's non-zero blocks and where their values lie.
struct OwnBlocks {
  BlockList list;
  BlockLayout layout;
  Span<const float> values;
  Span<const float> residual;  ///< in_bucket only; may be empty
};

/// The exchange, one step of it: blocks that ranks hold, each its own, summed by dense all-reduces. The union
/// of blocks travels as a bitmap, the values as a count sketch or as they are.
class SketchAllReduce {
 public:
  /// elements: of the bucket, cut into blocks of `width`.
  SketchAllReduce(const SketchSettings& settings, BucketId bucket, std::size_t elements, std::size_t width,
                  Step& step)
      : settings_(settings), bucket_(bucket), elements_(elements), width_(width), step_(step) {}

  /// bits: this rank's non-zero blocks, those of own.list; becomes the union. finite: whether all values are.
  /// Returns the mean of the union's elements, block after block, in the step's scratch, and fills in the
  /// report's densities, formula and `finite`: where that is false the result holds nothing. Collective.
  /// Throws CorruptFrame for counts and bitmaps that cannot be.
  Span<const float> average(const OwnBlocks& own, Span<std::uint64_t> bits, bool finite) {
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

  /// The blocks that some rank holds, after average(); empty when no rank has any.
  const BlockList& united() const { return union_; }
  /// Whether nothing was lost.
  bool exact() const { return exact_; }

 private:
  /// Whether there is anything to send: every value finite and one of them not 0, on any rank.
  bool agree(std::size_t nonzeros, bool finite) {
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

  void unite() {
    const auto own = step_.workspace.take<std::uint64_t>(bits_.size());
    std::ranges::copy(bits_, own.begin());
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

  Span<const float> sum_exactly(const OwnBlocks& own) {
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

  Span<const float> sum_sketches(const OwnBlocks& own, std::size_t columns) {
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

  const SketchSettings& settings_;
  BucketId bucket_;
  std::size_t elements_;
  std::size_t width_;
  Step& step_;
  const std::size_t blocks_ = block_count(elements_, width_);
  const std::size_t world_ = static_cast<std::size_t>(step_.communicator.size());
  double mean_nonzeros_ = 0;
  bool exact_ = false;
  Span<std::uint64_t> bits_;
  Span<std::uint32_t> before_;
  BlockList union_;
};

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

class S2Reducer final : public Synchronizer {
 public:
  explicit S2Reducer(const SketchSettings& settings) : settings_(settings) {}

  bool takes_rows() const override { return true; }

  void synchronize(BucketId bucket, Span<float> gradient, Span<float> residual, Step& step) override {
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

  RowSparse synchronize_rows(BucketId bucket, const RowSparse& gradient, Span<float> residual,
                             Step& step) override {
    if (!residual.empty() && residual.size() != gradient.elements()) {
      throw std::invalid_argument("residual has " + std::to_string(residual.size()) +
                                  " elements, the table " + std::to_string(gradient.elements()) +
                                  ": pass one of the same size, or an empty one to keep nothing");
    }
    const RowSparse touched = residual.empty() ? gradient : add_residual_rows(gradient, residual, step);
    bool finite = true;
    const RowSparse p = without_zero_rows(touched, step, finite);
    const auto bits = step.workspace.take<std::uint64_t>(bitmap_words(gradient.rows));
    std::ranges::fill(bits, 0);
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

  std::uint64_t payload_bytes(const Workload& workload) const override {
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

 private:
  SketchSettings settings_;
};

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
