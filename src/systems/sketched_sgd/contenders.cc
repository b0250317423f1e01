#include "systems/sketched_sgd/contenders.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "exchange/collectives.h"
#include "kernels/dense/dense.h"
#include "kernels/rows/row_access.h"
#include "stages/learning_rate.h"
#include "stages/momentum.h"

namespace thinwire {
namespace {

constexpr double kSmallestRatio = 1e-9;

}  // namespace

std::size_t GlobalTopKSettings::wanted(std::size_t contending) const {
  if (k != 0) return std::min(k, contending);
  const double share = std::round(ratio * static_cast<double>(contending));
  return std::min(contending, static_cast<std::size_t>(std::max(1.0, share)));
}

std::vector<OptionInfo> global_top_k_options() {
  return {
      {"k", "0", "elements to deliver per bucket; smaller buckets are sent in full; 0: by ratio"},
      {"ratio", "0.002", "share of a bucket's elements to deliver, above 0, up to 1; at least one element"},
      {"dense_below", "0",
       "parameters with fewer elements than this (biases, norms) are always sent: at every step"},
      {"momentum", "0", "decay of the velocity per step, 0 to 1; 0: none. Leave the optimizer's at 0"},
      {"lr_after", "off",
       "off: what waits was multiplied by the learning rate of its own step; on: it meets that of its "
       "delivery"}};
}

GlobalTopKSettings read_global_top_k(const Options& options) {
  return {.k = static_cast<std::size_t>(options.integer("k", 0, 0xffffffff)),
          .ratio = options.real("ratio", kSmallestRatio, 1),
          .dense_below = static_cast<std::size_t>(options.integer("dense_below", 0, 0xffffffff))};
}

bool has_rate_inside(const Options& options) {
  return !options.flag("lr_after");
}

std::string units_of_global_top_k(const Options& options) {
  return has_rate_inside(options) ? "set its lr_after=on" : "";
}

std::unique_ptr<Synchronizer> with_momentum_and_rate(const Options& options,
                                                     std::unique_ptr<Synchronizer> system) {
  const double momentum = options.real("momentum", 0, 1);
  if (momentum != 0) system = correct_momentum(static_cast<float>(momentum), std::move(system));
  return has_rate_inside(options) ? put_learning_rate_inside(std::move(system)) : std::move(system);
}

// ---------------------------------------------------------------------------------------------------------

Contenders::Contenders(std::size_t elements, Span<const std::size_t> parameter_ends, std::size_t dense_below)
    : elements_(elements), parameter_ends_(parameter_ends), dense_below_(dense_below) {
  for_each_range([&](std::size_t begin, std::size_t end, bool always_sent) {
    if (!always_sent) contending_ += end - begin;
  });
}

template <class Body>
void Contenders::for_each_range(Body body) const {
  if (parameter_ends_.empty() || dense_below_ == 0) {
    body(std::size_t{0}, elements_, elements_ < dense_below_);
    return;
  }
  std::size_t begin = 0;
  for (const std::size_t end : parameter_ends_) {
    body(begin, end, end - begin < dense_below_);
    begin = end;
  }
}

void Contenders::pack(Executor& executor, Span<const float> gradient, Span<const float> residual,
                      Span<float> contending, Span<float> always_sent) const {
  std::size_t to_contending = 0;
  std::size_t to_always = 0;
  for_each_range([&](std::size_t begin, std::size_t end, bool is_always_sent) {
    const std::size_t count = end - begin;
    std::size_t& to = is_always_sent ? to_always : to_contending;
    add_residual(executor, gradient.subspan(begin, count), residual.subspan(begin, count),
                 (is_always_sent ? always_sent : contending).subspan(to, count));
    to += count;
  });
}

void Contenders::deliver(const Selection& chosen, Span<const float> always_sums, Span<float> gradient,
                         Span<float> residual, Step& step) const {
  Span<const std::uint32_t> indices = chosen.indices;
  Span<const float> sums = chosen.values;
  if (always_sent() != 0) {
    const auto always_here = step.workspace.take<float>(always_sent());
    copy(step.executor, always_sums, always_here);
    // Both kinds in the order of the bucket.
    const Selection merged{step.workspace.take<std::uint32_t>(chosen.size() + always_sent()),
                           step.workspace.take<float>(chosen.size() + always_sent())};
    std::size_t out = 0;
    std::size_t next = 0;         // among the chosen
    std::size_t next_always = 0;  // among those always sent
    std::size_t contending = 0;   // elements before this range
    for_each_range([&](std::size_t begin, std::size_t end, bool is_always_sent) {
      if (is_always_sent) {
        for (std::size_t i = begin; i < end; ++i, ++out) {
          merged.indices[out] = static_cast<std::uint32_t>(i);
          merged.values[out] = always_here[next_always++];
        }
        return;
      }
      for (; next < chosen.size() && chosen.indices[next] < contending + (end - begin); ++next, ++out) {
        merged.indices[out] = static_cast<std::uint32_t>(begin + (chosen.indices[next] - contending));
        merged.values[out] = chosen.values[next];
      }
      contending += end - begin;
    });
    indices = merged.indices;
    sums = merged.values;
  }
  const auto world = static_cast<float>(step.communicator.size());
  const auto means = step.workspace.take<float>(sums.size());
  for (std::size_t i = 0; i < sums.size(); ++i) means[i] = sums[i] / world;
  hold_back(step.executor, gradient, residual);
  scatter_rows(step.executor, indices, means, 1, gradient);
  if (!residual.empty()) fill_rows(step.executor, indices, 1, 0, residual);
  step.delivered = {.kind = Delivered::Kind::indices, .bits = {}, .indices = indices};
  step.report.density_out = static_cast<double>(indices.size()) / static_cast<double>(gradient.size());
}

// ---------------------------------------------------------------------------------------------------------

Selection largest_sums(Executor& executor, Workspace& workspace, Span<const float> sums, std::size_t k) {
  if (k < sums.size()) return select_largest(executor, workspace, sums, {}, k);
  const Selection all{workspace.take<std::uint32_t>(sums.size()), workspace.take<float>(sums.size())};
  std::iota(all.indices.begin(), all.indices.end(), 0u);
  copy(executor, sums, all.values);
  return all;
}

void synchronize_global_top_k(const Contenders& contenders, std::size_t k, Span<float> gradient,
                              Span<float> residual, Step& step) {
  const auto sums = step.scratch.take<float>(gradient.size());
  const auto contending = sums.first(contenders.contending());
  const auto always_sent = sums.subspan(contenders.contending(), contenders.always_sent());
  contenders.pack(step.executor, gradient, residual, contending, always_sent);
  all_reduce_sum(step, sums);
  step.report.formula_bytes = step.communicator.ring_sent_bytes(sums.size(), sizeof(float));
  step.clock.enter(Phase::decompress);
  step.report.finite = all_finite(step.executor, sums);
  if (!step.report.finite) return;
  contenders.deliver(largest_sums(step.executor, step.workspace, contending, k), always_sent, gradient,
                     residual, step);
}

}  // namespace thinwire
