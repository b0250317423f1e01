// A guard over what a system leaves out. Now and then the exact mean of a sample is summed as well. Where the
// delivered mean is too far from it, the bucket is synchronized by a milder system for a while.
//
//   gradient ---------------every 73rd element--> float32 all-reduce --> G, noise of G -.
//   p = gradient + residual --every 73rd element-'                  \-> exact -----------> error
//    \--> inner system, or the one of `with` --> mean, residual ----------------------'
//
// error = |mean - exact| / max(noise, |exact| / 5). The noise is how far the mean gradient would be from
// itself with other examples: its square is the mean over ranks of |gradient - G|^2, divided by W - 1.
// What is small beside it costs no loss: late in training, where gradients are mostly noise, a system may
// leave out more than in the first steps, where all ranks see the same (docs/why_systems_lose.md has errors
// beside losses). Ranks with the same examples have no noise, so with the default bound 10 % of the gradient
// are always free.
//
// A bucket is measured in the 4th, 8th, 16th, ... step and then once in every N steps that the inner system
// takes in a row, where one bucket has its turn after the other, each two steps later from round to round. So
// what a system does every so many steps, such as sending everything, is not all that is measured.
//
// An error above the bound is followed by N steps of `with`, then the inner system is tried again. Each time
// that it fails again there are twice as many, up to 64 N.
//
// All ranks decide alike, by the mean over ranks of their errors. Both systems are given the same residual,
// so nothing is lost where they change. A step without effect (a value that is not finite, an error) measures
// nothing.
//
// Bytes per rank: those of the system whose step it is. In a measured one 2(W-1)/W * 8d / 73 and two numbers
// more, half of it without a residual. Of a small bucket it is a larger share: 4,093 elements or a seventh.

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

#include "core/bucket_vectors.h"
#include "exchange/collectives.h"
#include "kernels/dense/dense.h"
#include "stages/forwarding.h"
#include "stages/stages.h"

namespace thinwire {
namespace {

/// Of every parameter, since it may come to another bucket: until which step the other system has it, how
/// many steps the inner one took in a row and which was the last, how many steps the next failure costs,
/// and how many there were. Steps are in two parts.
constexpr StateKind kGuard = {.name = "guard"};
constexpr std::size_t kGuardNumbers = 12;
constexpr std::uint64_t kPart = 1 << 20;  // so that a float holds both

/// No divisor of common widths of matrices, so that all columns are seen.
constexpr std::uint64_t kSampled = 73;
constexpr std::uint64_t kLeastSample = 4093;
constexpr std::uint64_t kMostOfSmall = 7;

/// Of the exact mean: what the noise is at least.
constexpr double kFree = 0.2;

constexpr std::uint64_t kFirstMeasured = 4;
constexpr std::uint64_t kMostPatience = 64;
/// So many measured steps in a row without a failure, and the next one costs as much as the first.
constexpr std::uint64_t kCalm = 10;
/// Of all buckets, that are remembered.
constexpr std::size_t kMostChanges = 1000;

std::uint64_t sample_of(std::uint64_t elements) {
  return std::max(elements / kSampled, std::min(elements / kMostOfSmall + 1, kLeastSample));
}

struct Rules {
  std::uint64_t every = 0;
  double bound = 0;
};

class Guard final : public Forwarding {
 public:
  Guard(const Rules& rules, std::string other_name, std::unique_ptr<Synchronizer> other,
        std::unique_ptr<Synchronizer> inner)
      : Forwarding(std::move(inner)),
        rules_(rules),
        other_name_(std::move(other_name)),
        other_(std::move(other)) {
    changes_.reserve(kMostChanges);
  }

  void synchronize(BucketId bucket, Span<float> gradient, Span<float> residual, Step& step) override {
    State& own = open(bucket);
    own.parameters = std::max<std::size_t>(1, step.parameter_ends.size());
    if (labels_.find(bucket) == labels_.end()) labels_[bucket] = label_of(bucket, step);
    if (step.index < own.begin) {
      other_->synchronize(bucket, gradient, residual, step);
      step.report.scheme = other_name_.c_str();
      return;
    }
    const std::uint64_t run = run_with(own, step.index);
    if (own.last < own.begin) add_change(bucket, own, step, false);
    if (measures(bucket, run)) {
      synchronize_measured(bucket, own, gradient, residual, step);
    } else {
      inner().synchronize(bucket, gradient, residual, step);
    }
    if (!step.report.finite || step.index < own.begin) return;
    own.run = run;
    own.last = step.index;
  }

  void require_world(int world_size) const override {
    other_->require_world(world_size);
    inner().require_world(world_size);
  }

  std::uint64_t payload_bytes(const Workload& workload) const override {
    const State* found = states_.find(workload.bucket);
    const State own = found != nullptr ? *found : fresh();
    if (workload.step < own.begin) return other_->payload_bytes(workload);
    const std::uint64_t bytes = inner().payload_bytes(workload);
    if (!measures(workload.bucket, run_with(own, workload.step))) return bytes;
    const std::uint64_t sampled = (workload.feedback ? 2 : 1) * sample_of(workload.elements);
    return bytes + workload.ring_sent_bytes(sampled, sizeof(float)) +
           2 * scalar_payload_bytes(workload.world_size);
  }

  std::vector<Change> changes() const override;
  std::vector<Change> explanation() const override;

  void save(BucketWriter& writer) const override;
  void load(const BucketReader& reader) override;
  bool keeps_little(BucketId) const override { return false; }
  void keep_step(BucketId bucket) override {
    states_.keep(bucket);
    replaced_by_load_.reset();
    Forwarding::keep_step(bucket);
  }
  void undo_step(BucketId bucket) override {
    states_.undo(bucket);
    if (replaced_by_load_) changes_ = std::move(*replaced_by_load_);
    replaced_by_load_.reset();
    const State* own = states_.find(bucket);
    const std::uint64_t left = own == nullptr ? 0 : own->changes;
    std::erase_if(changes_, [&](const OfBucket& one) { return one.bucket == bucket && one.number >= left; });
    Forwarding::undo_step(bucket);
  }
  using Forwarding::undo_step;

 private:
  struct State {
    std::uint64_t begin = 0;     // before this step the other system has the bucket
    std::uint64_t run = 0;       // steps of the inner system in a row,
    std::uint64_t last = 0;      // up to this one
    std::uint64_t patience = 0;  // steps of the other system after the next failure
    std::uint64_t failures = 0;
    std::uint64_t calm = 0;  // measured steps since the last failure
    std::uint64_t changes = 0;
    std::size_t parameters = 1;
    std::uint64_t measured = 0;  // the last step that was
    double error = -1;           // that it had; -1: none was since the start or a restart
  };

  /// One of a bucket's changes, with this number. Its text is made when it is asked for.
  struct OfBucket {
    BucketId bucket;
    std::uint64_t number;
    std::uint64_t step;
    std::uint64_t begin;   // State's
    std::uint64_t failed;  // the step that was measured last
    double error;
    bool fails;  // else the inner system is tried again
  };

  State fresh() const {
    State state;
    state.patience = rules_.every;
    return state;
  }
  State& open(BucketId bucket) {
    if (State* found = states_.find(bucket)) return *found;
    return states_.open(bucket) = fresh();
  }

  static std::uint64_t run_with(const State& own, std::uint64_t index) {
    return index == own.last + 1 ? own.run + 1 : 1;
  }

  /// In its `run`-th step in a row, from 1 on. Neighbours in turn: together their sums would make one step
  /// long. And later from round to round: else the exact steps of a system could be all that is measured.
  bool measures(BucketId bucket, std::uint64_t run) const {
    const std::uint64_t round = run / rules_.every;
    if (round > 0) return run % rules_.every == 2 * (bucket + round - 1) % rules_.every;
    return run >= kFirstMeasured && (run & (run - 1)) == 0;
  }

  void synchronize_measured(BucketId bucket, State& own, Span<float> gradient, Span<float> residual,
                            Step& step) {
    const Sample sample = summed_sample(gradient, residual, step);
    inner().synchronize(bucket, gradient, residual, step);
    if (step.report.formula_bytes != StepReport::kUnknown) {
      step.report.formula_bytes += step.communicator.ring_sent_bytes(sample.sums.size(), sizeof(float)) +
                                   2 * scalar_payload_bytes(step.communicator.size());
    }
    const double error = error_of(gradient, sample, step);
    if (!step.report.finite || !std::isfinite(error)) return;
    judge(bucket, own, error, step);
  }

  /// Of some elements, the means over ranks: of the gradient, and of p where that is something else.
  struct Sample {
    Span<float> sums;
    std::size_t count = 0;
    double squares = 0;  // of this rank's gradient
  };

  static void take_sample(Span<const float> vector, Span<float> sample, Step& step) {
    sample_evenly(step.executor, vector, 0, vector.size(), sample);
  }

  static Sample summed_sample(Span<const float> gradient, Span<const float> residual, Step& step) {
    const std::size_t count = sample_of(gradient.size());
    const Span<float> sums = step.scratch.take<float>(residual.empty() ? count : 2 * count);
    take_sample(gradient, sums.first(count), step);
    const double squares = sum_of_squares(step.executor, sums.first(count), {});
    if (!residual.empty()) {
      take_sample(residual, sums.subspan(count, count), step);
      add(step.executor, sums.subspan(count, count), sums.first(count));
    }
    // A value that is not finite is for the inner system to find.
    scale(step.executor, sums, 1.0f / static_cast<float>(step.communicator.size()));
    all_reduce_sum(step, sums);
    return {.sums = sums, .count = count, .squares = squares};
  }

  /// The same on all ranks; NaN where nothing was to be delivered, or values overflow. Also reports the
  /// relative error and the cosine. Changes the sample. Collective.
  static double error_of(Span<const float> mean, const Sample& sample, Step& step) {
    const double squares = mean_over_ranks(step, sample.squares);
    const double mean_squares = sum_of_squares(step.executor, sample.sums.first(sample.count), {});
    const Span<float> exact = sample.sums.subspan(sample.sums.size() - sample.count, sample.count);
    const double whole = sum_of_squares(step.executor, exact, {});
    scale(step.executor, exact, -1);
    const Span<float> delivered = step.scratch.take<float>(sample.count);
    take_sample(mean, delivered, step);
    const double left = sum_of_squares(step.executor, delivered, exact);
    const double noise = std::max(squares - mean_squares, 0.0) / std::max(step.communicator.size() - 1, 1);
    const double scale_squared = std::max(noise, whole * kFree * kFree);
    const bool known = whole > 0 && std::isfinite(whole) && std::isfinite(left);
    const double error = mean_over_ranks(step, known ? std::sqrt(left / scale_squared) : std::nan(""));
    if (step.report.finite && known) {
      step.report.relative_error = std::sqrt(left / whole);
      const double squared = sum_of_squares(step.executor, delivered, {});
      // |delivered - exact|^2 = |delivered|^2 + |exact|^2 - 2 (their product).
      if (squared > 0) {
        step.report.cosine =
            std::clamp((squared + whole - left) / (2 * std::sqrt(squared * whole)), -1.0, 1.0);
      }
    }
    return error;
  }

  void judge(BucketId bucket, State& own, double error, Step& step) {
    own.measured = step.index;
    own.error = error;
    if (error <= rules_.bound) {
      if (++own.calm >= kCalm) own.patience = rules_.every;
      return;
    }
    own.begin = step.index + 1 + own.patience;
    own.run = 0;
    own.patience = std::min(2 * own.patience, kMostPatience * rules_.every);
    own.calm = 0;
    ++own.failures;
    add_change(bucket, own, step, true);
  }

  void add_change(BucketId bucket, State& own, Step& step, bool fails) {
    if (changes_.size() >= kMostChanges) {
      changes_.erase(changes_.begin(), changes_.begin() + kMostChanges / 2);
    }
    changes_.push_back({bucket, own.changes++, step.index, own.begin, own.measured, own.error, fails});
    ++step.report.changes;
  }

  Change told(const OfBucket& one) const {
    const std::string reason = one.fails ? found(one.error) + ", so " + other_name_ + " in its place for " +
                                               std::to_string(one.begin - one.failed - 1) + " steps"
                                         : "tried again " + std::to_string(one.begin - one.failed - 1) +
                                               " steps after it was given up for " + other_name_;
    return {one.step, "guard: bucket " + label_of(one.bucket) + ": " + reason};
  }

  std::vector<Change> own_changes() const {
    std::vector<Change> all;
    for (const OfBucket& one : changes_) all.push_back(told(one));
    return all;
  }

  std::string found(double error) const {
    std::array<char, 160> text{};
    std::snprintf(text.data(), text.size(),
                  "the mean that arrives is off by %.2f times the batches' noise, %s %.2f", error,
                  error > rules_.bound ? "more than" : "allowed are", rules_.bound);
    return text.data();
  }

  /// How explanation() calls the bucket: by names, since whoever asks may count buckets otherwise.
  static std::string label_of(BucketId bucket, const Step& step) {
    if (step.parameter_names.empty()) return std::to_string(bucket);
    const std::size_t more = step.parameter_names.size() - 1;
    return "of " + step.parameter_names[0] + (more > 0 ? " and " + std::to_string(more) + " more" : "");
  }
  std::string label_of(BucketId bucket) const {
    const auto label = labels_.find(bucket);
    return label == labels_.end() ? std::to_string(bucket) : label->second;
  }

  Rules rules_;
  std::string other_name_;
  std::unique_ptr<Synchronizer> other_;
  BucketStates<State> states_;
  std::map<BucketId, std::string> labels_;
  std::vector<OfBucket> changes_;
  std::optional<std::vector<OfBucket>> replaced_by_load_;  // until what was loaded is kept
};

std::vector<Change> Guard::changes() const {
  std::vector<Change> all = Forwarding::changes();
  add_changes(all, own_changes());
  return all;
}

std::vector<Change> Guard::explanation() const {
  std::vector<Change> lines = own_changes();
  // And what was measured last, where that was no change.
  states_.for_each([&](BucketId bucket, const State& own) {
    const bool is_told = std::ranges::any_of(changes_, [&](const OfBucket& one) {
      return one.bucket == bucket && one.fails && one.step == own.measured;
    });
    if (own.error < 0 || is_told) return;
    std::string line = "guard: bucket " + label_of(bucket) + ": " + found(own.error);
    if (own.begin > own.measured)
      line += ", so " + other_name_ + " in its place for " + std::to_string(own.begin - own.measured - 1) +
              " steps";
    if (own.failures > 0) {
      line +=
          ", given up " + std::to_string(own.failures) + (own.failures == 1 ? " time" : " times") + " so far";
    }
    lines.push_back({own.measured, std::move(line)});
  });
  std::ranges::stable_sort(lines, {}, &Change::step);
  std::vector<Change> all = Forwarding::explanation();
  add_changes(all, lines);
  return all;
}

void Guard::save(BucketWriter& writer) const {
  states_.for_each([&](BucketId bucket, const State& own) {
    std::array<float, kGuardNumbers> numbers{};
    const std::array<std::uint64_t, 4> steps = {own.begin, own.run, own.last, own.measured};
    for (std::size_t i = 0; i < steps.size(); ++i) {
      const std::uint64_t parts = steps[i] / kPart;
      numbers[2 * i] = static_cast<float>(parts);
      numbers[2 * i + 1] = static_cast<float>(steps[i] % kPart);
    }
    numbers[8] = static_cast<float>(own.patience);
    numbers[9] = static_cast<float>(std::min(own.failures, kPart));
    numbers[10] = static_cast<float>(std::min(own.calm, kCalm));
    numbers[11] = static_cast<float>(std::clamp(own.error + 1, 0.0, static_cast<double>(kPart)));  // 0: none
    for (std::size_t i = 0; i < own.parameters; ++i) {
      writer.array(kGuard, bucket, i, Span<const float>(numbers));
    }
  });
  Forwarding::save(writer);
}

void Guard::load(const BucketReader& reader) {
  // Its numbers are shares and steps.
  if (reader.is_rescaled()) return Forwarding::load(reader);
  std::map<BucketId, State> states;
  for (BucketId bucket = 0; bucket < reader.buckets(); ++bucket) {
    for (std::size_t i = 0; i < reader.parameters(bucket); ++i) {
      std::array<float, kGuardNumbers> numbers{};
      if (!reader.array(kGuard, bucket, i, Span<float>(numbers))) continue;
      if (!std::ranges::all_of(numbers, [](float one) { return one >= 0 && one <= kPart; })) {
        throw std::runtime_error("the state of guard for parameter '" + reader.parameter(bucket, i).name +
                                 "' has numbers out of range: it was not written by guard");
      }
      const auto whole = [&](std::size_t at) { return static_cast<std::uint64_t>(numbers[at]); };
      const auto step = [&](std::size_t at) { return whole(at) * kPart + whole(at + 1); };
      // Of parameters from several buckets: the mildest, and what is measured sooner.
      const auto [at, first] = states.try_emplace(bucket, fresh());
      State& own = at->second;
      own.parameters = reader.parameters(bucket);
      own.begin = std::max(own.begin, step(0));
      own.run = first ? step(2) : std::min(own.run, step(2));
      own.last = first ? step(4) : std::min(own.last, step(4));
      own.measured = first ? step(6) : std::max(own.measured, step(6));
      own.patience = std::max(own.patience, std::min(whole(8), kMostPatience * rules_.every));
      own.failures = std::max(own.failures, whole(9));
      own.calm = first ? whole(10) : std::min(own.calm, whole(10));
      own.error = std::max(own.error, static_cast<double>(numbers[11]) - 1);
    }
  }
  states_.assign(std::move(states));
  if (!replaced_by_load_) replaced_by_load_ = std::move(changes_);
  changes_.clear();
  changes_.reserve(kMostChanges);
  Forwarding::load(reader);
}

}  // namespace

SystemInfo guard_info() {
  SystemInfo info;
  info.name = "guard";
  info.summary =
      "measures the error of the mean now and then, and takes a milder system where it is too large";
  info.paper = "src/stages/guard.cc";
  info.formula = "those of the system that runs in the step; every N-th step 2(W-1)/W * 8d / 73 more";
  info.stage = true;
  info.compares = true;
  info.state = {kGuard};
  info.undoes_steps = true;
  info.turns_residual = true;
  info.options = {
      {"noise", "0.5", "largest |mean - exact| of a bucket, in units of the noise of the mean gradient"},
      {"every", "50", "a bucket is measured once in so many steps, 8 to 10000"},
      {"with", "dense",
       "the system of a bucket after a larger error, without state; its options behind '/'"}};
  info.other_option = "with";
  info.make = [](const Options& options, Inner inner) -> std::unique_ptr<Synchronizer> {
    Rules rules;
    rules.bound = options.real("noise", 0, 1e6);
    rules.every = static_cast<std::uint64_t>(options.integer("every", 8, 10'000));
    std::string other = options.text("with");
    std::ranges::replace(other, '/', ':');  // as a spec has it elsewhere
    return std::make_unique<Guard>(rules, std::move(other), std::move(inner.other),
                                   std::move(inner.synchronizer));
  };
  return info;
}

}  // namespace thinwire
