#include "planner/trials.h"

#include <algorithm>

namespace thinwire {

Trial::Trial(const TrialOptions& options, std::optional<std::size_t> before)
    : options_(options), turn_(options.first_is_late ? 1 : 0) {
  std::fill(dropped_.begin() + static_cast<std::ptrdiff_t>(options.candidates), dropped_.end(), true);
  // The first step of all prepares memory.
  skipped_ = std::max<std::size_t>(options.settle, before == turn_ ? 0 : 1);
}

std::size_t Trial::left() const {
  return static_cast<std::size_t>(std::ranges::count(dropped_, false));
}

/// The next candidate of the round; nothing: the first one of it.
std::optional<std::size_t> Trial::after(std::optional<std::size_t> position) const {
  if (forwards()) {
    for (std::size_t i = position ? *position + 1 : 0; i < options_.candidates; ++i) {
      if (has_turns(i)) return i;
    }
  } else {
    for (std::size_t i = position ? *position : options_.candidates; i-- > 0;) {
      if (has_turns(i)) return i;
    }
  }
  return {};
}

void Trial::next_turn() {
  auto next = after(turn_);
  if (!next) {
    ending_ = true;
    if (++round_ < options_.rounds) next = after({});
  }
  at_ = 0;
  skipped_ = next == turn_ ? 0 : 1;
  turn_ = next.value_or(turn_);
}

void Trial::begin_step(std::optional<double> seconds, double inside, bool replaced) {
  if (counting_ && seconds && counts_[*counting_] < kMostTimes) {
    if (replaced && replaced_[*counting_] == 0 && !options_.in_pairs) counts_[*counting_] = 0;
    double& least = least_inside_[*counting_];
    least = counts_[*counting_] == 0 ? inside : std::min(least, inside);
    times_[*counting_][counts_[*counting_]++] = *seconds;
    ++timed_[*counting_];
    replaced_[*counting_] += replaced ? 1 : 0;
  }
  over_ = ending_;
  ending_ = false;
  counting_.reset();
  if (at_ >= skipped_) counting_ = turn_;
  if (++at_ >= skipped_ + options_.steps && round_ < options_.rounds) next_turn();
}

void Trial::drop(std::size_t candidate) {
  dropped_[candidate] = true;
  if (turn_ != candidate) return;
  // This step is its last one, and says nothing that matters.
  counting_.reset();
  const auto next = after(turn_);
  turn_ = next ? *next : after({}).value_or(turn_);
  at_ = 0;
  skipped_ = 1;
}

std::array<float, Trial::kNumbers> Trial::numbers() const {
  unsigned dropped = 0;
  for (std::size_t i = 0; i < kMostCandidates; ++i) dropped |= dropped_[i] ? 1u << i : 0u;
  const auto flags = (ending_ ? 1u : 0u) | (over_ ? 2u : 0u);
  return {static_cast<float>(round_),  static_cast<float>(turn_),
          static_cast<float>(at_),     static_cast<float>(skipped_),
          static_cast<float>(dropped), counting_ ? static_cast<float>(*counting_ + 1) : 0.0f,
          static_cast<float>(flags)};
}

bool Trial::resume(Span<const float> numbers) {
  // Whole numbers, each below its bound.
  const std::array<std::size_t, kNumbers> bounds = {
      options_.rounds + 1,
      options_.candidates,
      std::max<std::size_t>(1, options_.settle) + options_.steps + 1,
      std::max<std::size_t>(1, options_.settle) + 1,
      std::size_t{1} << kMostCandidates,
      options_.candidates + 1,
      4};
  std::array<std::size_t, kNumbers> read{};
  for (std::size_t i = 0; i < kNumbers; ++i) {
    if (!(numbers[i] >= 0 && numbers[i] < static_cast<float>(bounds[i]))) return false;
    read[i] = static_cast<std::size_t>(numbers[i]);
    if (static_cast<float>(read[i]) != numbers[i]) return false;
  }
  const std::size_t beyond = (std::size_t{1} << kMostCandidates) - (std::size_t{1} << options_.candidates);
  if ((read[4] & beyond) != beyond || (read[4] >> read[1] & 1) != 0) return false;
  round_ = read[0];
  turn_ = read[1];
  at_ = read[2];
  skipped_ = read[3];
  for (std::size_t i = 0; i < kMostCandidates; ++i) dropped_[i] = (read[4] >> i & 1) != 0;
  counting_.reset();
  if (read[5] != 0) counting_ = read[5] - 1;
  ending_ = (read[6] & 1) != 0;
  over_ = (read[6] & 2) != 0;
  counts_ = {};
  timed_ = {};
  replaced_ = {};
  least_inside_ = {};
  return true;
}

double median(Span<double> values) {
  if (values.empty()) return 0;
  double* const middle = values.begin() + values.size() / 2;
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

Timing timing_of(Span<const double> seconds) {
  std::array<double, Trial::kMostTimes> sorted{};
  std::ranges::copy(seconds, sorted.begin());
  std::sort(sorted.begin(), sorted.begin() + static_cast<std::ptrdiff_t>(seconds.size()));
  const std::size_t last = seconds.size() - 1;
  // Of two the longer one may hold an evaluation or a checkpoint.
  const std::size_t taken = last >= 2 ? 1 : 0;
  const double undisturbed = sorted[taken];
  const double next = sorted[std::min(taken + 1, last)];
  const double middle = taken == 0 ? undisturbed : sorted[seconds.size() / 2];
  return {undisturbed, undisturbed > 0 ? next / undisturbed - 1 : 0, middle};
}

Pairs pairs_of(Span<const double> first, Span<const double> second, double bound) {
  std::array<double, Trial::kMostTimes> ratios{};
  std::size_t count = 0, longer = 0;
  for (std::size_t i = 0; i < std::min(first.size(), second.size()); ++i) {
    if (second[i] <= 0) continue;
    ratios[count] = first[i] / second[i];
    longer += ratios[count++] > bound ? 1 : 0;
  }
  if (count == 0) return {};
  const auto all = static_cast<double>(count);
  return {all, median({ratios.data(), count}), static_cast<double>(longer) / all};
}

namespace {

bool differ(double before, double now, double ratio) {
  return now > ratio * before || before > ratio * now;
}

}  // namespace

bool has_drifted(double before, double now) {
  return differ(before, now, 1.25);
}

bool has_drifted_far(double before, double now) {
  return differ(before, now, 1.5);
}

}  // namespace thinwire
