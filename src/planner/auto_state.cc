// What `auto` saves: its plan, of which a resumed run goes on.

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <optional>
#include <vector>

#include "planner/auto_parts.h"
#include "thinwire/state.h"

namespace thinwire::planner {

namespace {

constexpr std::size_t kOfTrial = 7;
constexpr std::size_t kOfSeconds = kOfTrial + Trial::kNumbers;
constexpr std::size_t kOfLooks = kOfSeconds + Trial::kMostCandidates;
constexpr std::size_t kPlanNumbers = kOfLooks + 4;

}  // namespace

void Auto::save(BucketWriter& writer) const {
  for (const Pipeline& member : members_) member.synchronizer->save(writer);
  const std::vector<float> numbers = this->numbers();
  for (const auto& [bucket, state] : buckets_) {
    for (std::size_t i = 0; i < state.parameters; ++i) {
      writer.array(kPlan, bucket, i, Span<const float>(numbers));
    }
  }
}

/// Where it throws, nothing of its own has changed, and the members are undone with the next undo_step().
void Auto::load(const BucketReader& reader) {
  if (reader.is_rescaled()) {
    for (const Pipeline& member : members_) member.synchronizer->load(reader);
    return;
  }
  std::map<BucketId, BucketState> buckets;
  // Parameters may come from sessions that had chosen otherwise: the mildest of all.
  std::optional<Plan> mildest;
  bool complete = true;
  for (BucketId bucket = 0; complete && bucket < reader.buckets(); ++bucket) {
    for (std::size_t i = 0; complete && i < reader.parameters(bucket); ++i) {
      std::array<float, kPlanNumbers> numbers{};
      complete = reader.array(kPlan, bucket, i, Span<float>(numbers));
      if (!complete) break;
      buckets[bucket].parameters = reader.parameters(bucket);
      buckets[bucket].counted = true;
      const std::optional<Plan> read = read_plan(numbers);
      complete = read.has_value();
      if (complete && (!mildest || mildness(*read) < mildness(*mildest))) mildest = read;
    }
  }
  try {
    for (const Pipeline& member : members_) member.synchronizer->load(reader);
  } catch (...) {
    for (auto& [bucket, own] : buckets_) own.used.reset();  // any member may have loaded
    throw;
  }
  // Until it is kept, a step that does not count takes it back like other changes.
  if (!before_) before_ = plan_;
  loaded_ = true;
  plan_ = complete && mildest ? *mildest : Plan(trial_of_members(rules_.trial, {}));
  changes_.clear();
  buckets_ = std::move(buckets);
  begun_ = timed_ = follows_ = false;
  suspicion_ = {};
}

std::vector<float> Auto::numbers() const {
  std::vector<float> numbers = {
      plan_.tried ? static_cast<float>(plan_.choice + 1) : 0.0f,
      static_cast<float>(plan_.usual),
      static_cast<float>(plan_.ranks),
      (plan_.chosen ? 1.0f : 0.0f) + (plan_.inferred ? 2.0f : 0.0f) + (plan_.duels ? 4.0f : 0.0f),
      static_cast<float>(plan_.coming),
      static_cast<float>(plan_.base),
      static_cast<float>(plan_.quarters)};
  const auto trial = plan_.trial.numbers();
  numbers.insert(numbers.end(), trial.begin(), trial.end());
  for (const double one : plan_.seconds) numbers.push_back(is_time(one) ? static_cast<float>(one) : 0.0f);
  numbers.insert(numbers.end(),
                 {static_cast<float>(plan_.least_inside), static_cast<float>(plan_.looks_to_retry),
                  static_cast<float>(plan_.looks_to_try_again),
                  plan_.watch.is_known() ? static_cast<float>(plan_.watch.usual) : 0.0f});
  return numbers;
}

/// Nothing for numbers that no plan has.
std::optional<Auto::Plan> Auto::read_plan(Span<const float> numbers) const {
  const auto all = static_cast<float>(candidates());
  const auto known = [&](std::size_t place, float end) {
    return numbers[place] >= 0 && numbers[place] < end && numbers[place] == std::floor(numbers[place]);
  };
  Plan plan(trial_of_members(rules_.trial, {}));
  plan.duels = known(3, 8) && numbers[3] >= 4;
  if (plan.duels) plan.trial = Trial(of_duel());
  if (!(known(0, all + 1) && is_time(static_cast<double>(numbers[1])) && known(2, 1e7f) && known(3, 8) &&
        known(4, all) && known(5, static_cast<float>(members_.size())) && known(6, kQuarters)) ||
      !plan.trial.resume(numbers.subspan(kOfTrial, Trial::kNumbers)) ||
      (plan.duels && plan.trial.left() != 2) ||
      !std::ranges::all_of(numbers.subspan(kOfSeconds, Trial::kMostCandidates + 1),
                           [](float one) { return is_time(static_cast<double>(one)); }) ||
      !known(kOfLooks + 1, kMostLooksToRetry + 1) || !known(kOfLooks + 2, kMostLooksToTryAgain + 1) ||
      !is_time(static_cast<double>(numbers[kOfLooks + 3]))) {
    return {};
  }
  plan.tried = numbers[0] >= 1;
  const auto flags = static_cast<unsigned>(numbers[3]);
  plan.chosen = plan.tried && (flags & 1) != 0;
  plan.inferred = (flags & 2) != 0;
  plan.choice = plan.tried ? static_cast<std::size_t>(numbers[0]) - 1 : 0;
  plan.usual = static_cast<double>(numbers[1]);
  plan.ranks = static_cast<int>(numbers[2]);
  plan.coming = static_cast<std::size_t>(numbers[4]);
  plan.base = static_cast<std::size_t>(numbers[5]);
  plan.quarters = static_cast<std::size_t>(numbers[6]);
  for (std::size_t i = 0; i < Trial::kMostCandidates; ++i) {
    plan.seconds[i] = static_cast<double>(numbers[kOfSeconds + i]);
  }
  plan.least_inside = static_cast<double>(numbers[kOfLooks]);
  plan.looks_to_retry = std::max(static_cast<int>(numbers[kOfLooks + 1]), kLooksToRetry);
  plan.looks_to_try_again = std::max(static_cast<int>(numbers[kOfLooks + 2]), kLooksToTryAgain);
  plan.watch.usual = static_cast<double>(numbers[kOfLooks + 3]);
  if (plan.watch.usual > 0) plan.watch.seen = LinkWatch::kFirst;
  plan.loaded = plan.chosen;
  return plan;
}

}  // namespace thinwire::planner
