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

/// Where each of a plan's numbers is, see kPlan.
enum Place : std::size_t {
  kChoice,  // counted from 1
  kUsual,
  kRanks,
  kFlags,
  kComing,
  kBase,
  kQuartersTried,
  kOfTrial,
  kOfSeconds = kOfTrial + Trial::kNumbers,
  kLeastInside = kOfSeconds + Trial::kMostCandidates,
  kNeededLooks,
  kLooksToTest,
  kOfMessage,
  kPlanNumbers
};

constexpr unsigned kIsChosen = 1;
constexpr unsigned kIsInferred = 2;
constexpr unsigned kDuels = 4;

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
  if (!replaced_by_load_)
    replaced_by_load_ = {std::move(changes_), std::move(buckets_), suspicion_, follows_, begun_};
  loaded_ = true;
  plan_ = complete && mildest ? *mildest : Plan(trial_of_members(rules_.trial, {}));
  changes_.clear();
  buckets_ = std::move(buckets);
  begun_ = timed_ = follows_ = false;
  suspicion_ = {};
}

std::vector<float> Auto::numbers() const {
  std::vector<float> numbers(kPlanNumbers);
  numbers[kChoice] = plan_.tried ? static_cast<float>(plan_.choice + 1) : 0.0f;
  numbers[kUsual] = static_cast<float>(plan_.usual);
  numbers[kRanks] = static_cast<float>(plan_.ranks);
  numbers[kFlags] = static_cast<float>((plan_.chosen ? kIsChosen : 0) | (plan_.inferred ? kIsInferred : 0) |
                                       (plan_.duels ? kDuels : 0));
  numbers[kComing] = static_cast<float>(plan_.coming);
  numbers[kBase] = static_cast<float>(plan_.base);
  numbers[kQuartersTried] = static_cast<float>(plan_.quarters);
  std::ranges::copy(plan_.trial.numbers(), numbers.begin() + kOfTrial);
  std::ranges::transform(plan_.seconds, numbers.begin() + kOfSeconds,
                         [](double one) { return is_time(one) ? static_cast<float>(one) : 0.0f; });
  numbers[kLeastInside] = static_cast<float>(plan_.least_inside);
  numbers[kNeededLooks] = static_cast<float>(plan_.patience.needed());
  numbers[kLooksToTest] = static_cast<float>(plan_.patience.to_test());
  numbers[kOfMessage] = plan_.watch.is_known() ? static_cast<float>(plan_.watch.usual) : 0.0f;
  return numbers;
}

/// Nothing for numbers that no plan has.
std::optional<Auto::Plan> Auto::read_plan(Span<const float> numbers) const {
  const auto all = static_cast<float>(candidates());
  const auto is_below = [&](std::size_t place, float end) {
    return numbers[place] >= 0 && numbers[place] < end && numbers[place] == std::floor(numbers[place]);
  };
  const auto are_times = [&](std::size_t place, std::size_t count) {
    return std::ranges::all_of(numbers.subspan(place, count),
                               [](float one) { return is_time(static_cast<double>(one)); });
  };
  if (!(is_below(kChoice, all + 1) && is_below(kRanks, 1e7f) && is_below(kFlags, 8) &&
        is_below(kComing, all) && is_below(kBase, static_cast<float>(members_.size())) &&
        is_below(kQuartersTried, kQuarters) && is_below(kNeededLooks, Patience::kMost + 1) &&
        is_below(kLooksToTest, Patience::kMostToTest + 1) && are_times(kUsual, 1) &&
        are_times(kOfSeconds, Trial::kMostCandidates) && are_times(kLeastInside, 1) &&
        are_times(kOfMessage, 1))) {
    return {};
  }
  const auto whole = [&](std::size_t place) { return static_cast<std::size_t>(numbers[place]); };
  Plan plan(trial_of_members(rules_.trial, {}));
  plan.duels = (whole(kFlags) & kDuels) != 0;
  if (plan.duels) plan.trial = Trial(of_duel());
  if (!plan.trial.resume(numbers.subspan(kOfTrial, Trial::kNumbers)) ||
      (plan.duels && plan.trial.left() != 2)) {
    return {};
  }
  plan.tried = whole(kChoice) > 0;
  plan.choice = plan.tried ? whole(kChoice) - 1 : 0;
  plan.chosen = plan.tried && (whole(kFlags) & kIsChosen) != 0;
  plan.inferred = (whole(kFlags) & kIsInferred) != 0;
  plan.usual = static_cast<double>(numbers[kUsual]);
  plan.ranks = static_cast<int>(numbers[kRanks]);
  plan.coming = whole(kComing);
  plan.base = whole(kBase);
  plan.quarters = whole(kQuartersTried);
  std::ranges::copy(numbers.subspan(kOfSeconds, Trial::kMostCandidates), plan.seconds.begin());
  plan.least_inside = static_cast<double>(numbers[kLeastInside]);
  plan.patience = Patience(static_cast<int>(numbers[kNeededLooks]), static_cast<int>(numbers[kLooksToTest]));
  plan.watch.usual = static_cast<double>(numbers[kOfMessage]);
  if (plan.watch.usual > 0) plan.watch.seen = LinkWatch::kFirst;
  plan.loaded = plan.chosen;
  return plan;
}

}  // namespace thinwire::planner
