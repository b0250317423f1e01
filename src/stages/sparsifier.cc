#include "stages/sparsifier.h"

#include <algorithm>
#include <cmath>

#include "exchange/rows.h"
#include "kernels/dense/dense.h"
#include "kernels/rows/bitmap.h"
#include "kernels/rows/row_access.h"
#include "kernels/selection/block_norms.h"

namespace thinwire {

Ramp::Ramp(const Options& options)
    : Ramp(Form::smooth, options.real("ramp_from", Sparsifier::kSmallestRatio, 1),
           static_cast<std::uint64_t>(options.integer("ramp_steps", 0, 1'000'000'000))) {}

std::vector<OptionInfo> Ramp::options() {
  return {{"ramp_from", "0.25", "share with which the ramp begins, above 0, up to 1"},
          {"ramp_steps", "0", "steps in which the share falls from there, exponentially; 0: no ramp"}};
}

Ramp Ramp::by_quarters(double ratio, std::uint64_t steps) {
  Ramp ramp(Form::quarters, 0.25, steps);
  double share = ramp.from_;
  while (share > ratio) {
    share /= 4;
    ++ramp.quarters_;
  }
  return ramp;
}

std::size_t Ramp::units_at(std::uint64_t step, std::size_t last, std::size_t units) const {
  if (step >= steps_) return last;
  const double gone = static_cast<double>(step) / static_cast<double>(steps_);
  if (form_ == Form::quarters) {
    return std::max(last, Sparsifier::share_of(std::pow(from_, std::floor(gone * quarters_) + 1), units));
  }
  const double all = static_cast<double>(units);
  const double end = static_cast<double>(last);
  if (from_ * all <= end) return last;
  const double wanted = std::round(end * std::pow(from_ * all / end, 1 - gone));
  return std::min(units, std::max(last, static_cast<std::size_t>(wanted)));
}

void Sparsifier::synchronize(BucketId bucket, Span<float> gradient, Span<float> residual, Step& step) {
  const std::size_t units = block_count(gradient.size(), width_);
  const RowSparse own = select(bucket, gradient, residual, wanted(units, step.index), step);
  Span<float> left;
  if (inner_feedback_ && !residual.empty()) {
    left = step.scratch.take<float>(own.elements());
    fill(step.executor, left, 0);
  }

  const RowSparse mean = inner().takes_rows() ? inner().synchronize_rows(bucket, own, left, step)
                                              : synchronize_densified(inner(), bucket, own, left, step);
  step.clock.enter(Phase::decompress);
  if (!step.report.finite) return;
  step.report.residual_norm = -1;  // the inner system knew of no other residual than `left`
  if (!residual.empty()) keep_rest(own, left, gradient, residual, step);
  write_mean(mean, gradient, step);
  step.delivered = delivered(own, gradient.size(), step);
  step.report.density_in = static_cast<double>(own.size()) / static_cast<double>(units);
  step.report.density_out = static_cast<double>(mean.size()) / static_cast<double>(units);
}

void Sparsifier::keep_rest(const RowSparse& own, Span<const float> left, Span<const float> gradient,
                           Span<float> residual, Step& step) const {
  add(step.executor, residual, gradient);
  fill_rows(step.executor, own.row_indices, width_, 0, residual);
  if (!left.empty()) add(step.executor, residual, left.first(residual.size()));
}

void Sparsifier::write_mean(const RowSparse& mean, Span<float> gradient, Step& step) const {
  fill(step.executor, gradient, 0);
  scatter_rows(step.executor, mean.row_indices, mean.values, width_, gradient);
}

Delivered Sparsifier::delivered(const RowSparse& own, std::size_t elements, Step& step) const {
  if (width_ == 1) return {.kind = Delivered::Kind::indices, .bits = {}, .indices = own.row_indices};
  const auto bits = step.workspace.take<std::uint64_t>(bitmap_words(elements));
  std::ranges::fill(bits, 0);
  for (const std::uint32_t unit : own.row_indices) {
    const std::size_t begin = unit * width_;
    const std::size_t end = std::min(elements, begin + width_);
    for (std::size_t word = begin / 64; word * 64 < end; ++word) {
      const std::size_t from = std::max(begin, word * 64) - word * 64;
      const std::size_t to = std::min(end, word * 64 + 64) - word * 64;
      bits[word] |= (~std::uint64_t{0} >> (64 - (to - from))) << from;
    }
  }
  return {.kind = Delivered::Kind::bitset, .bits = bits, .indices = {}};
}

std::uint64_t Sparsifier::payload_bytes(const Workload& workload) const {
  if (workload.elements == 0) return 0;
  const std::size_t units = block_count(workload.elements, width_);
  Workload of_inner = workload;
  of_inner.elements = units * width_;
  of_inner.row_width = width_;
  of_inner.row_sparse = inner().takes_rows();
  of_inner.density = std::min(workload.density,
                              static_cast<double>(wanted(units, workload.step)) / static_cast<double>(units));
  of_inner.feedback = workload.feedback && inner_feedback_;
  of_inner.parameter_ends = {};
  of_inner.parameter_rows = {};
  return inner().payload_bytes(of_inner);
}

std::size_t Sparsifier::share_of(double ratio, std::size_t units) {
  const double share = std::round(ratio * static_cast<double>(units));
  return std::min(units, static_cast<std::size_t>(std::max(1.0, share)));
}

SystemInfo sparsifier_info() {
  SystemInfo info;
  info.stage = true;
  info.sparsifies = true;
  info.delivers_all = false;
  info.feedback_default = true;
  info.alone = "agsparse";
  info.formula = "that of the system behind it, at the density that is selected";
  return info;
}

}  // namespace thinwire
