// Parameters that travel as they are, while the system behind the stage takes the rest. Norms and biases are
// few elements, but an error in them moves whole channels: leaving them out of compression costs hardly any
// bytes.
//
//   p --chosen parameters--> float32 all-reduce --> their mean
//    \--the others, with zeros in place of the chosen ones--> inner system --> the other means
//
// Chosen are vectors (a leading dimension as long as the parameter), parameters below a size, and those whose
// name fits a pattern. The inner system still has the chosen elements in its buckets, as zeros: so nothing is
// copied, and what a choice costs is its float32 values beside the zeros' codes. Large parameters are better
// left to a session's other pipeline, or to a bucket of their own.
//
// Bytes per rank: 2(W-1)/W * 4 * (chosen elements) + the inner system's for the whole bucket.

#include <algorithm>
#include <cmath>

#include "core/closest.h"
#include "exchange/collectives.h"
#include "kernels/dense/dense.h"
#include "kernels/rows/bitmap.h"
#include "stages/forwarding.h"
#include "stages/name_patterns.h"
#include "stages/stages.h"

namespace thinwire {
namespace {

/// Which parameters of a bucket are chosen.
struct Choice {
  std::uint64_t below = 0;
  bool vectors = true;
  NamePatterns names{};

  bool holds(std::size_t elements, std::size_t rows, std::string_view name) const {
    return elements < below || (vectors && elements > 0 && rows == elements) || names.match(name);
  }
};

/// body(begin, elements) for each chosen parameter in order. parameters: a Step's or a Workload's
/// description.
template <class Parameters, class Body>
void for_each_chosen(const Choice& choice, const Parameters& parameters, std::size_t elements, Body&& body) {
  const auto& ends = parameters.parameter_ends;
  const std::size_t count = ends.empty() ? 1 : ends.size();
  std::size_t begin = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t end = ends.empty() ? elements : ends[i];
    const std::size_t rows = parameters.parameter_rows.empty() ? 0 : parameters.parameter_rows[i];
    const std::string_view name =
        parameters.parameter_names.empty() ? std::string_view() : parameters.parameter_names[i];
    if (end > begin && choice.holds(end - begin, rows, name)) body(begin, end - begin);
    begin = end;
  }
}

class Whole final : public Forwarding {
 public:
  Whole(Choice choice, std::unique_ptr<Synchronizer> inner)
      : Forwarding(std::move(inner)), choice_(std::move(choice)) {}

  void synchronize(BucketId bucket, Span<float> gradient, Span<float> residual, Step& step) override {
    const Span<const VectorChunk> chunks = chosen_chunks(gradient.size(), step);
    if (chunks.empty()) return inner().synchronize(bucket, gradient, residual, step);
    const Span<float> mean = sum_chosen(chunks, gradient, residual, step);
    const std::uint64_t bytes = step.communicator.ring_sent_bytes(mean.size(), sizeof(float));
    inner().synchronize(bucket, gradient, residual, step);
    if (step.report.formula_bytes != StepReport::kUnknown) step.report.formula_bytes += bytes;
    if (!step.report.finite) return;
    step.clock.enter(Phase::decompress);
    if (step.report.residual_norm > 0) subtract_squares(chunks, mean.size(), residual, step);
    scatter_chunks(step.executor, chunks, mean, gradient, residual);
    deliver(chunks, gradient.size(), step);
  }

  std::uint64_t payload_bytes(const Workload& workload) const override {
    std::uint64_t chosen = 0;
    for_each_chosen(choice_, workload, workload.elements,
                    [&](std::size_t, std::size_t count) { chosen += count; });
    return workload.ring_sent_bytes(chosen, sizeof(float)) + inner().payload_bytes(workload);
  }

 private:
  /// What the inner system left of the chosen elements, which is dropped, from the residual's norm.
  static void subtract_squares(Span<const VectorChunk> chunks, std::size_t count, Span<const float> residual,
                               Step& step) {
    const auto left = step.scratch.take<float>(count);
    gather_chunks(step.executor, chunks, residual, left);
    const double norm = step.report.residual_norm;
    const double squares = norm * norm - sum_of_squares(step.executor, left, {});
    step.report.residual_norm = std::sqrt(std::max(0.0, squares));
  }

  Span<const VectorChunk> chosen_chunks(std::size_t elements, Step& step) const {
    const auto chunks =
        step.workspace.take<VectorChunk>(std::max<std::size_t>(1, step.parameter_ends.size()));
    std::size_t used = 0;
    std::size_t offset = 0;
    for_each_chosen(choice_, step, elements, [&](std::size_t begin, std::size_t count) {
      chunks[used++] = {begin, count, offset};
      offset += count;
    });
    return chunks.first(used);
  }

  /// The mean of what is chosen. p of these elements becomes 0 for the inner system, and NaN on all ranks
  /// alike where the mean is not finite: so it is the inner system that leaves the step out.
  static Span<float> sum_chosen(Span<const VectorChunk> chunks, Span<float> gradient,
                                Span<const float> residual, Step& step) {
    const VectorChunk& last = chunks[chunks.size() - 1];
    const std::size_t count = last.offset + last.count;
    const auto mean = step.scratch.take<float>(count);
    gather_chunks(step.executor, chunks, gradient, mean);
    // Nothing is left of these elements, but a state of another spec may have brought something.
    const auto cancel = step.scratch.take<float>(count);
    fill(step.executor, cancel, 0);
    if (!residual.empty()) {
      gather_chunks(step.executor, chunks, residual, cancel);
      add(step.executor, mean, cancel);
      scale(step.executor, cancel, -1);
    }
    scatter_chunks(step.executor, chunks, cancel, gradient, {});
    if (!scale(step.executor, mean, 1.0f / static_cast<float>(step.communicator.size()))) {
      mark_not_finite(step.executor, mean);
    }
    all_reduce_sum(step, mean);
    if (!all_finite(step.executor, mean)) mark_not_finite(step.executor, gradient);
    return mean;
  }

  /// What is chosen is delivered, whatever the inner system says of it.
  static void deliver(Span<const VectorChunk> chunks, std::size_t elements, Step& step) {
    const Delivered inner = step.delivered;
    if (inner.kind == Delivered::Kind::all) return;
    const auto bits = step.workspace.take<std::uint64_t>(bitmap_words(elements));
    std::ranges::fill(bits, 0);
    const auto set = [&](std::size_t at) { bits[at / 64] |= std::uint64_t{1} << (at % 64); };
    if (inner.kind == Delivered::Kind::bitset) std::ranges::copy(inner.bits, bits.begin());
    for (const std::uint32_t at : inner.indices) set(at);
    for (const VectorChunk& chunk : chunks) {
      for (std::size_t i = 0; i < chunk.count; ++i) set(chunk.begin + i);
    }
    step.delivered = {.kind = Delivered::Kind::bitset, .bits = bits, .indices = {}};
  }

  Choice choice_;
};

}  // namespace

SystemInfo whole_info() {
  SystemInfo info;
  info.name = "whole";
  info.summary = "norms, biases and other chosen parameters travel as float32, the rest by the system behind";
  info.paper = "Vogels et al., PowerSGD, NeurIPS 2019, section 4: vectors travel uncompressed";
  info.formula = "2(W-1)/W * 4 * (chosen elements) + that of the system behind it";
  info.stage = true;
  info.options = {
      {"vectors", "on", "choose parameters of one dimension: norms and biases"},
      {"below", "0", "choose parameters of fewer elements than this"},
      {"names", "-", "choose parameters by name: patterns separated by |, in which * is any text; -: none"}};
  info.goes_around = true;
  info.idle_options = [](const Options& options, const std::vector<std::string>& names) {
    std::vector<std::string> idle;
    for (const std::string& pattern : NamePatterns(options.text("names")).unmatched(names)) {
      std::string& told = idle.emplace_back("whole:names=");
      told += pattern;
      told += " fits no parameter of this model";
      told += did_you_mean(pattern, names);
      told += ": it chooses nothing";
    }
    return idle;
  };
  info.make = [](const Options& options, Inner inner) -> std::unique_ptr<Synchronizer> {
    return std::make_unique<Whole>(
        Choice{static_cast<std::uint64_t>(options.integer("below", 0, std::int64_t{1} << 32)),
               options.flag("vectors"), NamePatterns(options.text("names"))},
        std::move(inner.synchronizer));
  };
  return info;
}

}  // namespace thinwire
