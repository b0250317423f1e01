// Sketched-SGD: the largest elements of the sum over ranks, found in a count sketch of it.
//
// Source: N. Ivkin et al., "Communication-efficient distributed SGD with sketching", NeurIPS 2019, algorithms
// 2 (HEAVYMIX) and 5.
//
//   p = gradient + residual --insert--> sketch --all-reduce--> estimates --P k largest--> candidates
//   p at the candidates                        --all-reduce--> sums      --k largest----> mean
//   residual = p, 0 where delivered
//
// Sketches are linear: the sum of the ranks' sketches is the sketch of the sum. Every rank sees the same
// table, so all choose the same candidates and no index travels. The second round makes what is delivered
// exact; what is not stays in the residual.
//
// fill=random is HEAVYMIX as the paper's theory has it: heavy are the elements whose squared estimate is at
// least l2^2 / k, with l2^2 the median over rows of the rows' sums of squares. They are the candidates, the
// P k largest of them; where they are fewer than k, others drawn at random, the same on all ranks, make them
// k, and all are delivered.
//
// Bytes per rank: R * 4 (rows * columns + P k), R = 2(W-1)/W; with fill=random the number of candidates in
// place of P k: k, or more where the sketch overestimates.
//
// Deviations from the paper:
// - Line 3 of algorithm 2 compares an estimate with a square; here both sides are squares.
// - Without fill=random (the paper's experiments) heaviness plays no part: the P k largest are candidates.
// - The sketch is not divided by W: comparing estimates needs no scale. The mean is.
// - All-reduces stand for the parameter server.
// - Hashes are drawn anew for every step and bucket, so that elements do not collide for ever. Elements are
//   hashed in runs (kernels/sketches/count_sketch.h).
// - A bucket for which table and candidates together are no smaller than the bucket is all-reduced as it is:
//   its true top-k, exact and cheaper. This includes P k >= d. A bucket of k or fewer is sent in full.
// - Momentum (u = m u + g) and the learning rate inside it (lr_after=off) are stages around the system,
//   stages/momentum.h and stages/learning_rate.h.

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

#include "core/partition.h"
#include "exchange/collectives.h"
#include "kernels/dense/dense.h"
#include "kernels/rows/bitmap.h"
#include "kernels/rows/row_access.h"
#include "kernels/sketches/count_sketch.h"
#include "kernels/sketches/sketch_select.h"
#include "systems/sketched_sgd/contenders.h"
#include "systems/systems.h"

namespace thinwire {
namespace {

struct Settings {
  GlobalTopKSettings top;
  std::size_t p = 8;
  std::size_t rows = 5;
  std::size_t columns = 0;  // 0: by columns_ratio
  double columns_ratio = 0.01;
  std::size_t run = 64;
  bool fill_randomly = false;
};

/// The sizes of a bucket's two rounds.
struct Plan {
  std::size_t k = 0;
  std::size_t candidates = 0;  // at most
  std::size_t columns = 1;
  std::size_t cells = 0;
  bool dense = true;  // the sketch would save nothing

  Plan(const Settings& settings, std::size_t contending);
};

Plan::Plan(const Settings& settings, std::size_t contending) {
  if (contending == 0) return;
  k = settings.top.wanted(contending);
  candidates = settings.p > contending / k ? contending : settings.p * k;
  columns = settings.columns;
  if (columns == 0) {
    columns = static_cast<std::size_t>(std::ceil(settings.columns_ratio * static_cast<double>(contending)));
  }
  dense = k == contending || columns >= contending;
  if (dense) return;
  cells = settings.rows * columns;
  dense = cells + candidates >= contending;
}

// For fill=random.

/// Median over rows of the rows' sums of squares, the mean of the two middle ones for an even number. Added
/// up one after the other in doubles, so that every rank has the same bits, whatever its vectors or device.
double squared_norm(const CountSketch& sketch, Span<const float> table, Step& step) {
  if (table.memory() != Memory::host) {
    const auto here = step.workspace.take<float>(table.size());
    copy(step.executor, table, here);
    table = here;
  }
  std::array<double, kMostSketchRows> of_row{};
  for (std::size_t row = 0; row < sketch.rows; ++row) {
    for (const float cell : table.subspan(row * sketch.columns, sketch.columns)) {
      of_row[row] += static_cast<double>(cell) * static_cast<double>(cell);
    }
  }
  const std::size_t middle = sketch.rows / 2;
  std::sort(of_row.begin(), of_row.begin() + static_cast<std::ptrdiff_t>(sketch.rows));
  return sketch.rows % 2 == 1 ? of_row[middle] : 0.5 * (of_row[middle - 1] + of_row[middle]);
}

/// The least magnitude whose square is at least `square`.
std::uint32_t root_bits(double square) {
  std::uint32_t bits = magnitude_bits(static_cast<float>(std::sqrt(square)));
  auto reaches = [&](std::uint32_t candidate) {
    const auto value = static_cast<double>(std::bit_cast<float>(candidate));
    return value * value >= square;
  };
  while (!reaches(bits)) ++bits;
  while (bits > 0 && reaches(bits - 1)) --bits;
  return bits;
}

class SketchedSgd final : public Synchronizer {
 public:
  explicit SketchedSgd(const Settings& settings) : settings_(settings) {}

  void synchronize(BucketId bucket, Span<float> gradient, Span<float> residual, Step& step) override {
    const Contenders contenders(gradient.size(), step.parameter_ends, settings_.top.dense_below);
    const std::size_t contending = contenders.contending();
    const Plan plan(settings_, contending);
    step.report.scheme = plan.dense ? "dense" : "sketch";
    if (plan.dense) {
      synchronize_global_top_k(contenders, plan.k, gradient, residual, step);
      return;
    }

    // First round: the sketch, and behind it what is always sent.
    Span<const float> p = gradient;
    Span<const float> p_residual = residual;
    const auto sums = step.scratch.take<float>(plan.cells + contenders.always_sent());
    const auto table = sums.first(plan.cells);
    const auto always_sent = sums.subspan(plan.cells, contenders.always_sent());
    if (contenders.always_sent() != 0) {
      const auto packed = step.scratch.take<float>(contending);
      contenders.pack(step.executor, gradient, residual, packed, always_sent);
      p = packed;
      p_residual = {};
    }
    const CountSketch sketch =
        make_count_sketch(random_stream(step.seed, step.index, bucket, RandomPurpose::sketch), settings_.rows,
                          plan.columns, settings_.run);
    fill(step.executor, table, 0);
    insert(step.executor, sketch, p, p_residual, table);
    all_reduce_sum(step, sums);
    step.report.formula_bytes = step.communicator.ring_sent_bytes(sums.size(), sizeof(float));

    // A value that is not finite spoils its cell of every row; medians could hide it from other elements.
    step.report.finite = all_finite(step.executor, sums);
    if (!step.report.finite) return;

    // Second round.
    const auto candidates = find_candidates(bucket, sketch, plan, contending, table, step);
    const auto exact = step.workspace.take<float>(candidates.size());
    gather_rows(step.executor, p, p_residual, candidates, 1, exact);
    if (!exact.empty()) all_reduce_sum(step, exact);
    step.report.formula_bytes += step.communicator.ring_sent_bytes(exact.size(), sizeof(float));
    step.clock.enter(Phase::decompress);
    step.report.finite = all_finite(step.executor, exact);
    if (!step.report.finite) return;
    const Selection chosen = largest_sums(step.executor, step.workspace, exact, plan.k);
    for (auto& index : chosen.indices) index = candidates[index];
    contenders.deliver(chosen, always_sent, gradient, residual, step);
  }

  std::uint64_t payload_bytes(const Workload& workload) const override {
    if (workload.elements == 0) return 0;
    const auto world = static_cast<std::size_t>(workload.world_size);
    const auto rank = static_cast<std::size_t>(workload.rank);
    const Contenders contenders(workload.elements, workload.parameter_ends, settings_.top.dense_below);
    const Plan plan(settings_, contenders.contending());
    if (plan.dense) return sizeof(float) * ring_sent_elements(workload.elements, world, rank);
    const std::size_t candidates = settings_.fill_randomly ? plan.k : plan.candidates;
    return sizeof(float) * (ring_sent_elements(plan.cells + contenders.always_sent(), world, rank) +
                            ring_sent_elements(candidates, world, rank));
  }

 private:
  /// Indices among the contending elements, ascending, the same on all ranks.
  Span<const std::uint32_t> find_candidates(BucketId bucket, const CountSketch& sketch, const Plan& plan,
                                            std::size_t contending, Span<const float> table,
                                            Step& step) const {
    if (settings_.fill_randomly) return heavy_and_random(bucket, sketch, plan, contending, table, step);
    return select_largest_estimates(step.executor, step.workspace, sketch, contending, table, plan.candidates)
        .indices;
  }

  Span<const std::uint32_t> heavy_and_random(BucketId bucket, const CountSketch& sketch, const Plan& plan,
                                             std::size_t contending, Span<const float> table,
                                             Step& step) const {
    Workspace& workspace = step.workspace;
    const double share = squared_norm(sketch, table, step) / static_cast<double>(plan.k);
    Selection heavy =
        select_estimates_at_least(step.executor, workspace, sketch, contending, table, root_bits(share));
    if (heavy.size() > plan.candidates) {
      heavy = apply_cut(heavy, cut_of_largest(step.executor, heavy.values, {}, plan.candidates));
    }
    if (heavy.size() >= plan.k) return heavy.indices;

    const auto taken = workspace.take<std::uint64_t>(bitmap_words(contending));
    std::ranges::fill(taken, 0);
    set_bits(step.executor, heavy.indices, taken);
    const RandomStream stream = random_stream(step.seed, step.index, bucket, RandomPurpose::fill);
    std::size_t missing = plan.k - heavy.size();
    for (std::uint64_t draw = 0; missing != 0; ++draw) {
      const PhiloxCounter words =
          stream.block(static_cast<std::uint32_t>(draw), static_cast<std::uint32_t>(draw >> 32));
      for (std::size_t half = 0; half < 4 && missing != 0; half += 2) {
        // The high 64 bits of x * contending, with x of 64 bits.
        const std::uint64_t n = contending;
        const std::uint64_t i = (words[half + 1] * n + ((words[half] * n) >> 32)) >> 32;
        const std::uint64_t bit = std::uint64_t{1} << (i % 64);
        if ((taken[i / 64] & bit) != 0) continue;
        taken[i / 64] |= bit;
        --missing;
      }
    }
    const auto before = workspace.take<std::uint32_t>(taken.size());
    const auto candidates = workspace.take<std::uint32_t>(count_bits_before(step.executor, taken, before));
    list_bits(step.executor, taken, before, candidates);
    return candidates;
  }

  Settings settings_;
};

Settings read_sketched_sgd(const Options& options) {
  Settings settings;
  settings.top = read_global_top_k(options);
  settings.p = static_cast<std::size_t>(options.integer("p", 1, 1'000'000));
  settings.rows = static_cast<std::size_t>(options.integer("rows", 1, kMostSketchRows));
  settings.columns = static_cast<std::size_t>(options.integer("columns", 0, 0xffffffff));
  settings.columns_ratio = options.real("columns_ratio", 1e-9, 1);
  settings.run = static_cast<std::size_t>(std::stoul(options.choice("run", {"1", "16", "32", "64"})));
  settings.fill_randomly = options.choice("fill", {"none", "random"}) == "random";
  return settings;
}

}  // namespace

SystemInfo sketched_sgd_info() {
  SystemInfo info;
  info.name = "sketched_sgd";
  info.summary = "the largest elements of the sum over ranks, found in an all-reduced count sketch";
  info.paper = "Ivkin et al., Sketched-SGD, NeurIPS 2019";
  info.formula = "2(W-1)/W * 4 (rows columns + p k); 2(W-1)/W * 4 d where that is less";
  info.feedback_default = true;
  info.delivers_all = false;
  info.corrects_momentum = true;
  info.incomparable = units_of_global_top_k;
  info.rate_inside = has_rate_inside;
  info.momentum_option = "momentum";
  info.options = {{"p", "8", "candidates per delivered element, whose exact values are exchanged"},
                  {"rows", "5", "rows of the sketch, 1 to 31; estimates are their median"},
                  {"columns", "0", "columns of the sketch; 0: by columns_ratio"},
                  {"columns_ratio", "0.01", "columns as a share of a bucket's elements"},
                  {"run", "64", "neighbouring elements that are hashed together: 1, 16, 32 or 64"},
                  {"fill", "none",
                   "random: where fewer than k elements are heavy, deliver others drawn at random instead of "
                   "the next largest"}};
  const auto shared = global_top_k_options();
  info.options.insert(info.options.begin(), shared.begin(), shared.end());
  info.make = [](const Options& options, Inner) -> std::unique_ptr<Synchronizer> {
    return with_momentum_and_rate(options, std::make_unique<SketchedSgd>(read_sketched_sgd(options)));
  };
  return info;
}

}  // namespace thinwire
