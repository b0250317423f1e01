// A system that chooses among systems by what they bring here: this model, this machine, this network.
//
//   step 0 --> settle with dense --> each candidate for some steps, timed --> the mildest of the fastest
//                                     ^                                         |
//                                     '---- steps take another time, for long --'
//
// Candidates stand in the order of what they leave out; dense, the first, leaves out nothing. The choice is
// the first one whose step takes at most (1 + within + error) times the fastest one's. error is how well the
// times are known. So compression stays off where it does not pay. A candidate that is far behind after the
// first round is dropped. Which candidates there are is what training runs have shown to keep the loss
// (docs/loss.md).
//
// Where the choice leaves something out, buckets that are ready first may do without it: their exchange lies
// behind the rest of backward. So the choice is tried once more with dense for the first quarter of the
// elements, or for two or three quarters. The mildest that takes as long stays.
//
// All candidates are given the same residual. So nothing is lost where they change. The lossy one stands
// behind the stage `guard` (stages/guard.cc), which takes dense for buckets of which too little arrives.
//
// Times are means over ranks of each rank's own, so all ranks choose alike. A choice is part of the state,
// with the time of a step and the number of ranks that it rests on: a resumed run keeps it, and looks whether
// these are still true.
//
// Steps that take another time than when the choice was made start the trial again. A rank that alone has
// become slower does not: it spends no more time in the exchange, where all others wait for it.
//
// Where a process has several sessions for parts of one model, the first one decides for all
// (Synchronizer::follow). So what the coming step uses is known one step earlier.
//
// With `link` the choice is for another link than the one at hand (planner/link_estimate.h): what the machine
// computes is taken from the trial's steps, and what the network takes is computed.
//
// Bytes per rank: those of the candidate whose step it is. Times are counted with the headers.

#include "planner/auto.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "exchange/collectives.h"
#include "planner/link_estimate.h"
#include "planner/link_text.h"
#include "planner/looks.h"
#include "planner/trials.h"

namespace thinwire {
namespace {

/// Of every parameter, since it may come to another bucket: the number of the candidate that was chosen,
/// counted from 1 (0: none was), the seconds that a step took with it, the number of ranks, whether it holds,
/// whose step comes, which one goes with dense, the quarters that are tried with it, and where the trial is.
constexpr StateKind kPlan = {.name = "auto_plan"};
constexpr std::size_t kPlanNumbers = 7 + Trial::kNumbers;

/// Shares of the elements that dense can have beside another candidate: one, two or three quarters.
constexpr std::size_t kQuarters = 4;

/// Looks in a row that see another step time before the trial is made again. Twice as many after each trial
/// that confirms the choice, since that was noise; half as many after a calm time.
constexpr int kLooksToRetry = 2;
constexpr int kMostLooksToRetry = 64;
constexpr int kCalmLooks = 30;
/// Looks after which a milder choice than the last candidate is put to the test again: a guard may have given
/// that candidate's buckets to dense in the trial. Twice as many after each trial that confirms the choice.
constexpr int kLooksToTryAgain = 70;
constexpr int kMostLooksToTryAgain = 64 * kLooksToTryAgain;

/// Times that are known worse than this get another round.
constexpr double kGoodError = 0.03;
/// The most by which a milder candidate may be behind for times that are not known better.
constexpr double kMostError = 0.05;

/// A candidate that takes so many times the fastest one's time after the first round has no second one.
constexpr double kHopeless = 1.5;

/// What no step takes.
constexpr double kMostSeconds = 1e7;
constexpr double kUnknown = 2 * kMostSeconds;

std::string percent(double share) {
  return std::to_string(std::lround(100 * share)) + " %";
}

std::string milliseconds(double seconds) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.1f ms", 1e3 * seconds);
  return text.data();
}

bool is_time(double seconds) {
  return seconds >= 0 && seconds < kMostSeconds;
}

class Auto final : public Synchronizer {
 public:
  struct Rules {
    TrialOptions trial;
    double within = 0;
    std::size_t interval = 0;
    std::string link;  // empty: the one at hand
  };

  Auto(const Rules& rules, std::vector<std::string> names, std::vector<Pipeline> members)
      : rules_(rules), names_(std::move(names)), members_(std::move(members)) {}

  void synchronize(BucketId bucket, Span<float> gradient, Span<float> residual, Step& step) override {
    run(bucket, residual, step, [&](Synchronizer& member, Span<float> to_add) {
      member.synchronize(bucket, gradient, to_add, step);
      return true;
    });
  }

  bool sum_in_type(BucketId bucket, Span<const float> residual, Step& step,
                   const std::function<void()>& sum) override {
    return run(bucket, residual, step, [&](Synchronizer& member, Span<const float> to_add) {
      return member.sum_in_type(bucket, to_add, step, sum);
    });
  }

  void require_world(int world_size) const override {
    for (const Pipeline& member : members_) member.synchronizer->require_world(world_size);
  }

  std::uint64_t payload_bytes(const Workload& workload) const override {
    const bool begun = timed_ && workload.step == index_;
    return members_[member_of(workload.bucket, begun ? plan_.use : plan_.coming)].synchronizer->payload_bytes(
        workload);
  }

  std::vector<Change> changes() const override;
  std::vector<Change> explanation() const override;

  std::vector<float> decision() const override { return numbers(); }
  void follow(Span<const float> decision) override {
    plan_ = read_plan(decision).value_or(plan_);
    plan_.loaded = false;
    follows_ = true;
  }

  void save(BucketWriter& writer) const override;
  void load(const BucketReader& reader) override;

  void keep_step(BucketId bucket) override {
    for_each_used(bucket, [&](Synchronizer& member) { member.keep_step(bucket); });
    if (const auto found = buckets_.find(bucket); found != buckets_.end()) found->second.counted = true;
    before_.reset();
  }
  void undo_step(BucketId bucket) override {
    for_each_used(bucket, [&](Synchronizer& member) { member.undo_step(bucket); });
    forget_delivery(bucket);
    const auto found = buckets_.find(bucket);
    if (found != buckets_.end() && !found->second.counted) buckets_.erase(found);
    take_back();
  }
  void undo_step(BucketId bucket, std::size_t begin, std::size_t count) override {
    for_each_used(bucket, [&](Synchronizer& member) { member.undo_step(bucket, begin, count); });
    forget_delivery(bucket);
  }

 private:
  /// Of a step with each candidate.
  using Seconds = std::array<double, Trial::kMostCandidates>;

  /// What is true of all buckets. A step that does not count takes back what it changed of it.
  struct Plan {
    explicit Plan(const Trial& of_members) : trial(of_members) {}

    // Candidates are the members, and behind them one of these with dense for one, two or three quarters.
    std::size_t use = 0;       // in this step
    std::size_t coming = 0;    // in the next one
    std::size_t base = 0;      // what goes with dense
    std::size_t quarters = 0;  // that the trial compares with base; 0: it compares the members
    Seconds seconds{};         // of the members, once they were compared
    Seconds middle{};          // of those that the last round had, as looks take a step's time
    bool chosen = false;       // else the trial goes on
    bool tried = false;        // there is a choice, of a trial before this one or of a state
    std::size_t choice = 0;
    double usual = 0;    // seconds of a step with the choice; 0: not known yet
    bool fresh = false;  // which are those of the trial
    double suspect = 0;  // the time of a step that made it try again; 0: none did, or the choice changed
    double usual_inside = -1;  // of this rank, in the exchange
    int ranks = 0;             // that the choice was made with
    bool loaded = false;       // and not looked at since
    Trial trial;
    StepTimes times;       // since the last look
    bool changed = false;  // the step before had another candidate
    int drifted = 0;       // looks in a row
    int looks_to_retry = kLooksToRetry;
    int calm = 0;
    int looks = 0;  // since the choice
    int looks_to_try_again = kLooksToTryAgain;
    std::size_t changes = 0;
  };

  struct BucketState {
    std::optional<std::size_t> used;  // member, in the last step
    std::size_t parameters = 1;
    std::size_t elements = 0;    // 0: not known yet
    bool delivered_all = false;  // the residual is 0
    bool counted = false;        // a step of its has not been undone, or it was loaded
  };

  /// body(system, residual): whether the bucket was synchronized with the system whose step it is.
  template <class Float, class Body>
  bool run(BucketId bucket, Span<Float> residual, Step& step, Body body) {
    step.report.frame_header_bytes += begin_step(step);
    BucketState& own = buckets_[bucket];
    own.parameters = std::max<std::size_t>(1, step.parameter_ends.size());
    const std::size_t used = member_of(bucket, plan_.use);
    own.used = used;
    const Pipeline& member = members_[used];
    // What has delivered everything leaves nothing to add; reading it would cost a pass.
    const bool skip = residual.empty() || (member.lossless && own.delivered_all);
    const Before before(step);
    const bool done = body(*member.synchronizer, skip ? Span<Float>() : residual);
    inside_ += step.communicator.now_seconds() - before.began;
    if (!done) return false;
    if (estimate_) estimate_->add(before.until_now(step));
    own.elements = step.report.elements;
    own.delivered_all = member.lossless && step.report.finite;
    // A guard says where another system had the bucket.
    if (member.lossless || step.report.scheme == nullptr) step.report.scheme = names_[used].c_str();
    return true;
  }

  /// How things stood before a bucket's exchange.
  struct Before {
    explicit Before(Step& step)
        : began(step.communicator.now_seconds()),
          codec(codec_seconds(step)),
          traffic(step.communicator.traffic()),
          messages(step.communicator.messages_in_turn()) {}

    static double codec_seconds(Step& step) {
      step.clock.enter(step.clock.enter(Phase::compress));  // what has passed is charged, the phase goes on
      return step.clock.seconds(Phase::compress) + step.clock.seconds(Phase::decompress);
    }
    LinkEstimate::Exchange until_now(Step& step) const {
      const Traffic moved = step.communicator.traffic() - traffic;
      return {.began = began,
              .ended = step.communicator.now_seconds(),
              .cost = {.codec_seconds = codec_seconds(step) - codec,
                       .link_bytes = static_cast<double>(std::max(moved.sent_bytes, moved.received_bytes)),
                       .rounds = static_cast<double>(step.communicator.messages_in_turn() - messages)}};
    }

    double began;
    double codec;
    Traffic traffic;
    std::uint64_t messages;
  };

  template <class Body>
  void for_each_used(BucketId bucket, Body body) {
    const auto found = buckets_.find(bucket);
    const bool known = found != buckets_.end() && found->second.used;
    for (std::size_t i = 0; i < members_.size(); ++i) {
      if (!known || *found->second.used == i) body(*members_[i].synchronizer);
    }
  }

  void forget_delivery(BucketId bucket) {
    const auto found = buckets_.find(bucket);
    if (found != buckets_.end()) found->second.delivered_all = false;
  }

  void take_back() {
    if (!before_) return;
    plan_ = *before_;
    changes_.resize(plan_.changes);
    before_.reset();
    timed_ = false;
  }

  bool decides(const Step& step) const {
    return !follows_ && members_.size() > 1 && step.communicator.size() > 1;
  }
  /// Of whose step a bucket of it is. Where shares are not known yet no bucket is given to dense.
  std::size_t member_of(BucketId bucket, std::size_t candidate) const;
  /// Buckets that dense has then.
  std::size_t buckets_of_dense(std::size_t quarters) const;
  std::string name_of(std::size_t candidate) const;
  bool takes_part(std::size_t candidate) const {
    return plan_.quarters == 0 ? candidate < members_.size()
                               : candidate == plan_.base || candidate == with_dense(plan_.quarters);
  }
  std::size_t with_dense(std::size_t quarters) const { return members_.size() + quarters - 1; }
  std::size_t candidates() const { return members_.size() + kQuarters - 1; }
  /// Lower is milder: what a plan's next step leaves out.
  std::size_t mildness(const Plan& plan) const {
    return plan.coming < members_.size() ? kQuarters * plan.coming
                                         : kQuarters * plan.base - (plan.coming - members_.size() + 1);
  }
  Trial trial_of_members(const TrialOptions& options, std::optional<std::size_t> before) const;
  bool try_with_dense(std::size_t quarters);
  std::vector<float> numbers() const;
  std::optional<Plan> read_plan(Span<const float> numbers) const;
  /// A trial that is not the first one has nothing to settle.
  TrialOptions again() const {
    TrialOptions options = rules_.trial;
    options.settle = 0;
    return options;
  }
  std::uint64_t begin_step(Step& step);
  std::uint64_t go_on(Step& step, std::optional<double> seconds, double inside);
  std::uint64_t after_round(Step& step);
  void end_trial(Step& step, const Seconds& seconds, double error);
  void choose(Step& step, const Seconds& seconds, std::size_t choice, double allowed);
  std::uint64_t look(Step& step);
  void judge(Step& step, Span<const Seen> ranks);
  void try_again(Step& step, const std::string& why);
  void add_change(Step& step, std::string reason) {
    changes_.push_back({step.index, std::move(reason)});
    plan_.changes = changes_.size();
    ++step.report.changes;
  }

  Rules rules_;
  std::vector<std::string> names_;  // of the candidates, as short as can be
  std::vector<Pipeline> members_;
  std::map<BucketId, BucketState> buckets_;
  std::vector<Change> changes_;
  Plan plan_{trial_of_members(rules_.trial, {})};
  std::optional<LinkEstimate> estimate_;  // while there is a trial for another link
  std::optional<Plan> before_;            // this step, which may not count
  bool follows_ = false;

  bool begun_ = false;
  bool alone_ = false;
  bool timed_ = false;       // the step that began last was not undone
  std::uint64_t index_ = 0;  // of it
  double began_ = 0;         // by the communicator's clock
  double inside_ = 0;        // seconds of this step in the exchange
};

std::size_t Auto::buckets_of_dense(std::size_t quarters) const {
  std::uint64_t all = 0;
  for (const auto& [bucket, state] : buckets_) {
    if (state.elements == 0) return 0;
    all += state.elements;
  }
  std::uint64_t first = 0;
  std::size_t count = 0;
  for (const auto& [bucket, state] : buckets_) {
    first += state.elements;
    if (kQuarters * first > quarters * all) break;
    ++count;
  }
  return count;
}

std::size_t Auto::member_of(BucketId bucket, std::size_t candidate) const {
  if (candidate < members_.size()) return candidate;
  const auto found = buckets_.find(bucket);
  const auto place = std::distance(buckets_.begin(), found);
  const std::size_t exact = buckets_of_dense(candidate - members_.size() + 1);
  return found != buckets_.end() && place < static_cast<std::ptrdiff_t>(exact) ? 0 : plan_.base;
}

std::string Auto::name_of(std::size_t candidate) const {
  if (candidate < members_.size()) return names_[candidate];
  const std::size_t quarters = candidate - members_.size() + 1;
  return names_[plan_.base] + " (" + names_[0] + " for the first " +
         std::to_string(buckets_of_dense(quarters)) + " of " + std::to_string(buckets_.size()) + " buckets)";
}

Trial Auto::trial_of_members(const TrialOptions& options, std::optional<std::size_t> before) const {
  Trial trial(options, before);
  for (std::size_t i = members_.size(); i < candidates(); ++i) trial.drop(i);
  return trial;
}

/// At a step's first bucket. Returns the bytes that were sent to agree.
std::uint64_t Auto::begin_step(Step& step) {
  if (timed_ && step.index == index_) return 0;
  const double now = step.communicator.now_seconds();
  const bool follows_on = timed_ && step.index == index_ + 1;
  if (estimate_ && follows_on) estimate_->end_step(now - began_, !plan_.changed);
  before_ = plan_;
  plan_.changed = plan_.use != plan_.coming;
  plan_.use = plan_.coming;
  std::uint64_t sent = 0;
  alone_ = step.communicator.size() == 1;
  if (decides(step)) {
    sent = go_on(step, follows_on ? std::optional<double>(now - began_) : std::nullopt, inside_);
  }
  if (rules_.link.empty() || plan_.chosen || !decides(step)) {
    estimate_.reset();
  } else {
    if (!estimate_) estimate_.emplace(parse_link(rules_.link), static_cast<std::size_t>(step.sharing));
    estimate_->begin_step(plan_.use);
  }
  begun_ = timed_ = true;
  index_ = step.index;
  inside_ = 0;
  began_ = step.communicator.now_seconds();
  return sent;
}

/// seconds: of the step before, if they are known, of which `inside` were the exchange's.
std::uint64_t Auto::go_on(Step& step, std::optional<double> seconds, double inside) {
  if (plan_.loaded) {
    plan_.loaded = false;
    const int now = step.communicator.size();
    if (plan_.ranks != now) {
      try_again(step, std::to_string(now) + " ranks, and " + name_of(plan_.choice) + " was chosen with " +
                          std::to_string(plan_.ranks));
    } else {
      add_change(step, name_of(plan_.choice) + ", as in the state that was loaded. A step took " +
                           milliseconds(plan_.usual) + " then");
    }
  }
  if (!plan_.chosen) {
    plan_.trial.begin_step(seconds);
    const std::uint64_t sent = plan_.trial.round_is_over() ? after_round(step) : 0;
    if (!plan_.chosen) plan_.coming = plan_.trial.coming();
    return sent;
  }
  if (!rules_.link.empty()) return 0;  // it does not change
  if (seconds && !before_->changed) plan_.times.add(*seconds, inside);
  return plan_.times.count >= rules_.interval ? look(step) : 0;
}

/// Every candidate has had one turn more.
std::uint64_t Auto::after_round(Step& step) {
  struct Measured {
    std::array<double, Trial::kMostCandidates> seconds{};
    std::array<double, Trial::kMostCandidates> error{};
    std::array<double, Trial::kMostCandidates> middle{};
  };
  Measured own;
  for (std::size_t i = 0; i < candidates(); ++i) {
    const auto times = plan_.trial.times(i);
    // None where its steps did not count, or came before the run was resumed.
    const std::vector<double> estimates = estimate_ ? estimate_->seconds(i) : std::vector<double>();
    const auto known = estimate_ ? Span<const double>(estimates) : times;
    const bool missing = times.empty() || known.empty();
    const Timing timing = missing ? Timing{kUnknown, 0, kUnknown}
                                  : timing_of(known.first(std::min(known.size(), Trial::kMostTimes)));
    own.seconds[i] = timing.seconds;
    own.error[i] = timing.error;
    own.middle[i] = timing.middle;
  }
  const Span<Measured> all = gather(step, own);
  const auto world = static_cast<double>(all.size());
  Seconds seconds{};
  plan_.middle = {};
  double error = 0;
  bool known = true;
  for (const Measured& one : all) {
    for (std::size_t i = 0; i < seconds.size(); ++i) {
      if (!takes_part(i)) {
        seconds[i] = kUnknown;
        continue;
      }
      known = known && is_time(one.seconds[i]) && is_time(one.middle[i]) && one.error[i] >= 0 &&
              std::isfinite(one.error[i]);
      seconds[i] += one.seconds[i] / world;
      plan_.middle[i] += one.middle[i] / world;
      error += plan_.trial.has(i) ? one.error[i] / world / static_cast<double>(plan_.trial.left()) : 0;
    }
  }
  const std::uint64_t sent = sizeof(Measured) * (all.size() - 1);
  const double fastest = *std::ranges::min_element(seconds);
  if (!known) {
    // Some candidate's steps did not count, or a clock told nonsense.
    plan_.quarters = 0;
    plan_.trial = trial_of_members(again(), plan_.use);
    return sent;
  }
  for (std::size_t i = 0; i < candidates(); ++i) {
    if (seconds[i] > kHopeless * fastest && plan_.trial.has(i)) plan_.trial.drop(i);
  }
  if (plan_.trial.is_over() && !(error > kGoodError && plan_.trial.extend())) end_trial(step, seconds, error);
  return sent;
}

/// Of candidates that take no part, seconds are more than any.
void Auto::end_trial(Step& step, const Seconds& seconds, double error) {
  const double allowed = rules_.within + std::min(error, kMostError);
  const double bound = (1 + allowed) * *std::ranges::min_element(seconds);
  if (plan_.quarters != 0) {
    const std::size_t mixed = with_dense(plan_.quarters);
    if (seconds[mixed] <= bound) return choose(step, seconds, mixed, allowed);
    if (try_with_dense(plan_.quarters - 1)) return;
    return choose(step, seconds, plan_.base, allowed);
  }
  const auto mildest = std::ranges::find_if(seconds, [&](double one) { return one <= bound; });
  const auto choice = static_cast<std::size_t>(mildest - seconds.begin());
  plan_.base = choice;
  plan_.seconds = seconds;
  if (!members_[choice].lossless) {
    // Its bytes alone take as long as the same share of all bytes with dense, about.
    std::size_t most = kQuarters - 1;
    while (most > 0 && static_cast<double>(most) / kQuarters * seconds[0] > bound) --most;
    if (try_with_dense(most)) return;
  }
  choose(step, seconds, choice, allowed);
}

/// Begins the trial of the base with dense for so many quarters, or for fewer where these give it no bucket
/// more. Returns false where there is nothing to try.
bool Auto::try_with_dense(std::size_t quarters) {
  const std::size_t before = plan_.quarters == 0 ? buckets_.size() : buckets_of_dense(plan_.quarters);
  while (quarters > 0 && buckets_of_dense(quarters) >= before) --quarters;
  if (quarters == 0 || buckets_of_dense(quarters) == 0) return false;
  plan_.quarters = quarters;
  plan_.trial = Trial(again(), plan_.use);
  for (std::size_t i = 0; i < candidates(); ++i) {
    if (!takes_part(i)) plan_.trial.drop(i);
  }
  plan_.coming = plan_.trial.coming();
  return true;
}

void Auto::choose(Step& step, const Seconds& seconds, std::size_t choice, double allowed) {
  const bool confirmed = plan_.tried && choice == plan_.choice;
  plan_.looks_to_retry = confirmed ? std::min(2 * plan_.looks_to_retry, kMostLooksToRetry) : kLooksToRetry;
  plan_.looks_to_try_again =
      confirmed ? std::min(2 * plan_.looks_to_try_again, kMostLooksToTryAgain) : kLooksToTryAgain;
  plan_.looks = 0;
  plan_.choice = plan_.coming = choice;
  plan_.chosen = plan_.tried = true;
  plan_.quarters = 0;
  plan_.ranks = step.communicator.size();
  plan_.usual = plan_.middle[choice];
  plan_.fresh = true;
  if (!confirmed) plan_.suspect = 0;
  plan_.usual_inside = -1;
  plan_.times = StepTimes();
  plan_.drifted = plan_.calm = 0;
  std::string all;
  for (std::size_t i = 0; i < candidates(); ++i) {
    const double one = seconds[i] < kUnknown ? seconds[i] : plan_.seconds[i];
    if (one < kUnknown && one > 0)
      all += (all.empty() ? "" : ", ") + milliseconds(one) + " with " + name_of(i);
  }
  const std::string of_which = allowed == rules_.within
                                   ? ""
                                   : ": " + percent(rules_.within) + ", and " +
                                         percent(allowed - rules_.within) + " for what is not known better";
  const std::string where =
      rules_.link.empty() ? ". A step takes " : ". Over " + rules_.link + " a step takes ";
  add_change(step, name_of(choice) + where + all + ". The mildest is taken whose step takes at most " +
                       percent(allowed) + " more than the shortest" + of_which);
}

std::uint64_t Auto::look(Step& step) {
  Seen own;
  own.step = median({plan_.times.steps.data(), plan_.times.count});
  own.inside = median({plan_.times.inside.data(), plan_.times.count});
  own.inside_before = plan_.usual_inside;
  plan_.times.count = 0;
  const Span<Seen> all = gather(step, own);
  if (std::ranges::all_of(all, [](const Seen& one) {
        return is_time(one.step) && is_time(one.inside) && std::abs(one.inside_before) < kMostSeconds;
      })) {
    judge(step, all);
    // What a rank spends in the exchange is known from the first calm look on.
    if (plan_.chosen && plan_.usual_inside < 0 && plan_.drifted == 0) plan_.usual_inside = own.inside;
  }
  return sizeof(Seen) * (all.size() - 1);
}

void Auto::judge(Step& step, Span<const Seen> ranks) {
  double now = 0;
  for (const Seen& one : ranks) now += one.step / static_cast<double>(ranks.size());
  // A trial knows its times by few steps, all of them soon after another candidate's. Where a time has led to
  // another trial, and that to the same choice, it is no news any more.
  const bool is_known = plan_.suspect > 0 && !has_drifted(plan_.suspect, now);
  if (plan_.usual == 0 || (plan_.fresh && (is_known || !has_drifted_far(plan_.usual, now))))
    plan_.usual = now;
  plan_.fresh = false;
  if (++plan_.looks >= plan_.looks_to_try_again && plan_.choice + 1 != members_.size()) {
    return try_again(step, name_of(plan_.choice) + " was chosen " +
                               std::to_string(static_cast<std::size_t>(plan_.looks) * rules_.interval) +
                               " steps ago");
  }
  if (!has_drifted(plan_.usual, now)) {
    plan_.drifted = 0;
    if (++plan_.calm < kCalmLooks) return;
    plan_.calm = 0;
    plan_.looks_to_retry = std::max(plan_.looks_to_retry / 2, kLooksToRetry);
    return;
  }
  plan_.calm = 0;
  const int patience = has_drifted_far(plan_.usual, now) ? kLooksToRetry : plan_.looks_to_retry;
  if (++plan_.drifted < patience) return;
  const std::string what =
      "a step takes " + milliseconds(now) + " where it took " + milliseconds(plan_.usual);
  if (const auto rank = rank_that_changed(ranks, now - plan_.usual)) {
    add_change(step, what + ", by rank " + std::to_string(*rank) +
                         " alone, for which the others wait: " + name_of(plan_.choice) + " stays");
    plan_.usual = now;
    plan_.usual_inside = -1;
    plan_.drifted = 0;
    return;
  }
  try_again(step, what);
  plan_.suspect = now;
}

void Auto::try_again(Step& step, const std::string& why) {
  add_change(step, why + ": the candidates are tried again");
  plan_.quarters = 0;
  plan_.trial = trial_of_members(again(), plan_.use);
  plan_.chosen = false;
  plan_.coming = plan_.trial.coming();
}

std::vector<Change> Auto::changes() const {
  std::vector<Change> all = changes_;
  for (const Pipeline& member : members_) add_changes(all, member.synchronizer->changes());
  return all;
}

std::vector<Change> Auto::explanation() const {
  if (!begun_) return {};
  if (alone_) return {{index_, "dense: one rank sends nothing"}};
  if (changes_.empty() && !follows_) {
    return {{index_, "the candidates are being tried, nothing is chosen yet"}};
  }
  std::vector<Change> all = changes_;
  for (const Pipeline& member : members_) add_changes(all, member.synchronizer->explanation());
  return all;
}

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
  plan_ = complete && mildest ? *mildest : Plan(trial_of_members(rules_.trial, {}));
  before_.reset();
  changes_.clear();
  buckets_ = std::move(buckets);
  begun_ = timed_ = follows_ = false;
}

std::vector<float> Auto::numbers() const {
  std::vector<float> numbers = {plan_.tried ? static_cast<float>(plan_.choice + 1) : 0.0f,
                                static_cast<float>(plan_.usual),
                                static_cast<float>(plan_.ranks),
                                plan_.chosen ? 1.0f : 0.0f,
                                static_cast<float>(plan_.coming),
                                static_cast<float>(plan_.base),
                                static_cast<float>(plan_.quarters)};
  const auto trial = plan_.trial.numbers();
  numbers.insert(numbers.end(), trial.begin(), trial.end());
  return numbers;
}

/// Nothing for numbers that no plan has.
std::optional<Auto::Plan> Auto::read_plan(Span<const float> numbers) const {
  const auto all = static_cast<float>(candidates());
  const auto known = [&](std::size_t place, float end) {
    return numbers[place] >= 0 && numbers[place] < end && numbers[place] == std::floor(numbers[place]);
  };
  Plan plan(trial_of_members(rules_.trial, {}));
  if (!(known(0, all + 1) && is_time(static_cast<double>(numbers[1])) && known(2, 1e7f) && known(4, all) &&
        known(5, static_cast<float>(members_.size())) && known(6, kQuarters)) ||
      !plan.trial.resume(numbers.subspan(7, Trial::kNumbers))) {
    return {};
  }
  plan.tried = numbers[0] >= 1;
  plan.chosen = plan.tried && numbers[3] != 0;
  plan.choice = plan.tried ? static_cast<std::size_t>(numbers[0]) - 1 : 0;
  plan.usual = static_cast<double>(numbers[1]);
  plan.ranks = static_cast<int>(numbers[2]);
  plan.coming = static_cast<std::size_t>(numbers[4]);
  plan.base = static_cast<std::size_t>(numbers[5]);
  plan.quarters = static_cast<std::size_t>(numbers[6]);
  plan.loaded = plan.chosen;
  return plan;
}

/// As reasons call them, mildest first.
std::vector<std::string> names_of(const Options& options) {
  if (options.flag("lossless")) return {"dense", "zen"};
  return {"dense", "half:feedback=on", "power_sgd:rank=32:bits=8"};
}

/// The one that leaves something out is guarded.
std::vector<std::string> candidates(const Options& options) {
  std::vector<std::string> specs = names_of(options);
  options.real("budget", 0, 1e6);
  if (!options.flag("lossless")) specs.back() = "guard:noise=" + options.text("budget") + "+" + specs.back();
  return specs;
}

}  // namespace

SystemInfo auto_info() {
  SystemInfo info;
  info.name = "auto";
  info.summary =
      "measures steps with dense and with what keeps the loss, and takes the mildest of the fastest";
  info.paper = "src/planner/auto.cc";
  info.formula = "that of the system whose step it is";
  info.feedback_default = true;
  info.state = {kPlan};
  info.undoes_steps = true;
  info.turns_residual = true;
  info.options = {
      {"lossless", "off", "on: exact systems only, dense and zen"},
      {"budget", "0.75",
       "error of the mean that is allowed, in units of the noise of the mean gradient; see guard"},
      {"within", "0.02", "how much longer than the fastest a milder candidate's step may take"},
      {"settle", "2", "first steps of all that do not count"},
      {"rounds", "2", "turns of each candidate"},
      {"steps", "2", "of a turn that count; one before them does not"},
      {"interval", "7", "steps from one look at the step's time to the next"},
      {"link", "here", "RATE:LATENCY, as in 1Gbit:50us: chooses once, for such a link and this computing"}};
  info.members = candidates;
  info.incomparable = [](const Options&) { return "it guards by itself"; };
  info.make = [](const Options& options, Inner inner) -> std::unique_ptr<Synchronizer> {
    Auto::Rules rules;
    rules.trial.candidates = inner.members.size() + kQuarters - 1;
    rules.trial.settle = static_cast<std::size_t>(options.integer("settle", 0, 1'000'000));
    rules.trial.rounds = static_cast<std::size_t>(options.integer("rounds", 1, 1000));
    rules.trial.steps = static_cast<std::size_t>(options.integer("steps", 1, Trial::kMostTimes));
    rules.within = options.real("within", 0, 1);
    rules.interval = static_cast<std::size_t>(options.integer("interval", 2, kMostInterval));
    if (options.text("link") != "here") rules.link = options.text("link");
    if (!rules.link.empty()) parse_link(rules.link);
    return std::make_unique<Auto>(rules, names_of(options), std::move(inner.members));
  };
  return info;
}

}  // namespace thinwire
