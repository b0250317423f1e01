#pragma once
// The system `auto`: auto.cc has its steps, auto_trial.cc the choice, auto_looks.cc what may end it, and
// auto_state.cc what is saved.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "planner/link_estimate.h"
#include "planner/looks.h"
#include "planner/suspicion.h"
#include "planner/trials.h"
#include "thinwire/registry.h"
#include "thinwire/state.h"
#include "thinwire/synchronizer.h"

namespace thinwire::planner {

/// Of every parameter, since it may come to another bucket: the number of the candidate that was chosen,
/// counted from 1 (0: none was), the seconds that a step took with it, the number of ranks, whether it holds
/// (2 more: dense's seconds are inferred, 4 more: the trial is a duel), whose step comes, which one goes with
/// dense, the quarters that are tried with it, where the trial is, the seconds of each candidate's step
/// (0: not known), those in the exchange, both numbers of looks, and the seconds of a message (0: not known).
inline constexpr StateKind kPlan = {.name = "auto_plan"};

/// Shares of the elements that dense can have beside another candidate: one, two or three quarters.
inline constexpr std::size_t kQuarters = 4;

/// What a message has to say about the link that the chosen system does not show: large enough for a network
/// that lets some ten kilobytes pass at once.
inline constexpr std::size_t kProbeBytes = 128 * 1024;
/// Looks from one message to the next, at least. There are more where it would take a larger share of the
/// time. One that took less than half is followed by another one at the next look.
inline constexpr int kLooksToProbe = 3;
inline constexpr double kShareOfProbe = 0.02;
/// Of the mildest members the exchange itself shows the link: it is mostly bytes.
inline constexpr std::size_t kShowTheLink = 2;

/// Turns of each of two candidates that take about as long, and steps of a turn that count.
inline constexpr std::size_t kDuelRounds = 6;
inline constexpr std::size_t kDuelSteps = 2;

/// What no step takes.
inline constexpr double kMostSeconds = 1e7;
/// Of a candidate that takes no part.
inline constexpr double kUnknown = 2 * kMostSeconds;

inline bool is_time(double seconds) {
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
    sums_in_type_ = true;
    return run(bucket, residual, step, [&](Synchronizer& member, Span<const float> to_add) {
      return member.sum_in_type(bucket, to_add, step, sum);
    });
  }

  void require_world(int world_size) const override {
    for (const Pipeline& member : members_) member.synchronizer->require_world(world_size);
  }

  std::uint64_t payload_bytes(const Workload& workload) const override {
    const bool begun = timed_ && workload.step == index_;
    const std::size_t coming = suspicion_.dense_is_next() ? 0 : plan_.coming;
    return members_[member_of(workload.bucket, begun ? plan_.use : coming)].synchronizer->payload_bytes(
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

  void others_changed() override { plan_.moved = true; }

  void save(BucketWriter& writer) const override;
  void load(const BucketReader& reader) override;

  bool keeps_little(BucketId bucket) const override {
    bool little = true;
    for_each_used(bucket,
                  [&](const Synchronizer& member) { little = little && member.keeps_little(bucket); });
    return little;
  }
  void keep_step(BucketId bucket) override {
    for_each_used(bucket, [&](Synchronizer& member) { member.keep_step(bucket); });
    if (const auto found = buckets_.find(bucket); found != buckets_.end()) found->second.counted = true;
    // Without a step that has begun something else has changed, such as the loss scale.
    if (timed_) suspicion_.counts(plan_.use);
    before_.reset();
    replaced_by_load_.reset();
    loaded_ = false;
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
  /// What this rank saw of each candidate in a trial.
  struct Measured {
    Seconds seconds{};
    Seconds error{};
    Seconds middle{};
    Seconds inside{};         // in the exchange, in the step that had least of it
    Pairs pairs{};            // in a duel
    double sums_in_type = 0;  // 1: gradients are of a type in which dense sums them
  };
  /// How long a candidate's steps were beside those of the fastest one.
  struct Duel {
    Pairs pairs{};  // count is 0: there was none
    std::size_t faster = 0;
  };
  /// Of a candidate's steps that were timed, how many the guard gave in part to what stands in for it.
  struct Replaced {
    std::size_t steps = 0;
    std::size_t timed = 0;
  };
  /// Of each member, whether something is true of it.
  using Members = std::array<bool, Trial::kMostCandidates>;

  /// What is true of all buckets. A step that does not count takes back what it changed of it.
  struct Plan {
    explicit Plan(const Trial& of_members) : coming(of_members.coming()), trial(of_members) {}

    // Candidates are the members, and behind them one of these with dense for one, two or three quarters.
    std::size_t use = 0;       // in this step
    std::size_t coming;        // in the next one
    std::size_t base = 0;      // what goes with dense
    std::size_t quarters = 0;  // that the trial compares with base; 0: it compares the members
    Seconds seconds{};         // of the members, once they were compared
    Seconds middle{};          // of those that the last round had, as looks take a step's time
    Members earlier{};         // whose seconds are those of an earlier trial
    bool duels = false;        // two are left in the trial, and steps of both are compared in pairs
    std::array<Duel, Trial::kMostCandidates> duel{};  // that the candidate had with a faster one
    std::array<Replaced, Trial::kMostCandidates> replaced{};
    bool inferred = false;  // those of dense are what half's say
    bool chosen = false;    // else the trial goes on
    bool tried = false;     // there is a choice, of a trial before this one or of a state
    std::size_t choice = 0;
    double usual = 0;     // seconds of a step with the choice; 0: not known yet
    bool moved = false;   // in the step before a guard changed what a bucket does
    bool unlike = false;  // which it did since the last look, so that the usual time is no more
    bool fresh = false;   // which are those of the trial
    double suspect = 0;   // the time of a step that made it try again; 0: none did, or the choice changed
    double usual_inside = -1;  // of this rank, in the exchange
    double least_inside = 0;   // of the rank that spends least there; 0: not known
    int ranks = 0;             // that the choice was made with
    bool loaded = false;       // and not looked at since
    Trial trial;
    StepTimes times;       // since the last look
    bool changed = false;  // the step before had another candidate
    Patience patience;
    LinkWatch watch;
    int looks_to_probe = 0;
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
    const auto changes = step.report.changes;
    const bool done = body(*member.synchronizer, skip ? Span<Float>() : residual);
    inside_ += step.communicator.now_seconds() - before.began;
    if (!done) return false;
    if (step.report.changes != changes) plan_.moved = true;  // by the guard
    if (estimate_) estimate_->add(before.until_now(step));
    own.elements = step.report.elements;
    own.delivered_all = member.lossless && step.report.finite;
    // The member was given no residual, and so reports none: it is 0.
    if (skip && !residual.empty() && step.report.finite) step.report.residual_norm = 0;
    // A guard says where another system had the bucket.
    if (!member.lossless && step.report.scheme != nullptr) {
      replaced_ = true;
      stands_in_ = step.report.scheme;
    } else {
      step.report.scheme = names_[used].c_str();
    }
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
  void for_each_used(BucketId bucket, Body body) const {
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
    if (timed_) suspicion_.does_not_count(plan_.use, plan_.use < members_.size() ? plan_.use : before_->base);
    plan_ = *before_;
    if (replaced_by_load_) {
      changes_ = std::move(replaced_by_load_->changes);
      buckets_ = std::move(replaced_by_load_->buckets);
      suspicion_ = replaced_by_load_->suspicion;
      follows_ = replaced_by_load_->follows;
      begun_ = replaced_by_load_->begun;
      replaced_by_load_.reset();
      for (auto& [bucket, own] : buckets_) own.used.reset();  // every member has loaded
    }
    changes_.resize(plan_.changes);
    before_.reset();
    loaded_ = false;
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
  std::size_t member_behind(std::size_t candidate) const {
    return candidate < members_.size() ? candidate : plan_.base;
  }
  bool takes_part(std::size_t candidate) const {
    if (suspicion_.leaves_out(member_behind(candidate))) return false;
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
  Trial trial_of_members(TrialOptions options, std::optional<std::size_t> before) const;
  bool dense_need_not_come(Span<const Measured> ranks, const Seconds& seconds) const;
  bool try_with_dense(std::size_t quarters);
  std::vector<float> numbers() const;
  std::optional<Plan> read_plan(Span<const float> numbers) const;
  /// Where times are computed, or one round was asked for, there are no steps by turns.
  bool may_duel() const { return rules_.link.empty() && rules_.trial.rounds > 1; }
  TrialOptions of_duel() const {
    return {.candidates = candidates(), .rounds = kDuelRounds, .steps = kDuelSteps, .in_pairs = true};
  }
  /// A trial that is not the first one has nothing to settle.
  TrialOptions again() const {
    TrialOptions options = rules_.trial;
    options.settle = 0;
    return options;
  }
  std::uint64_t begin_step(Step& step);
  std::uint64_t go_on(Step& step, std::optional<double> seconds, double inside);
  Measured measured();
  std::uint64_t after_round(Step& step);
  void begin_trial();
  void end_trial(Step& step, const Seconds& seconds, double error);
  std::optional<std::size_t> rival_in_doubt(std::size_t choice, const Seconds& seconds, double error) const;
  void begin_duel(std::size_t milder, std::size_t faster);
  std::pair<std::size_t, std::size_t> duelists() const;
  bool end_duel(Span<const Measured> ranks, Seconds& seconds);
  void choose(Step& step, const Seconds& seconds, std::size_t choice);
  std::string told_of_times(std::size_t candidate) const;
  std::uint64_t look(Step& step);
  void judge(Step& step, Span<const Seen> ranks, double now);
  void act_on_another_time(Step& step, Span<const Seen> ranks, double now, const Seconds& seconds);
  std::uint64_t watch_link(Step& step, double now);
  void take_time(Step& step, double now);
  void try_again(Step& step, const std::string& why);
  Seconds expected(double now, const std::function<double(double)>& from_before) const;
  Members near(const Seconds& expected, double now, double most) const;
  bool has_rivals(const Members& rivals) const;
  bool milder_may_do(const Seconds& expected, double now) const;
  bool would_choose_another(const Seconds& expected) const;
  bool exchange_is_shorter(double inside) const;
  void take_as_usual(double seconds);
  void try_again_with(Step& step, const Members& rivals, const std::string& why);
  void leave_out_what_failed(Step& step);
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
  Suspicion suspicion_;  // before the plan, whose trial asks it
  Plan plan_{trial_of_members(rules_.trial, {})};
  std::optional<LinkEstimate> estimate_;  // while there is a trial for another link
  std::optional<Plan> before_;            // this step, which may not count
  /// What load() put other things in the place of, until it is kept.
  struct ReplacedByLoad {
    std::vector<Change> changes;
    std::map<BucketId, BucketState> buckets;
    Suspicion suspicion;
    bool follows;
    bool begun;
  };
  std::optional<ReplacedByLoad> replaced_by_load_;
  bool loaded_ = false;  // since, so that the step goes on in which that was saved
  bool follows_ = false;
  bool sums_in_type_ = false;  // some gradient was of a type in which dense sums it

  std::vector<std::byte> probe_;  // of watch_link
  bool begun_ = false;
  bool alone_ = false;
  bool timed_ = false;       // the step that began last was not undone
  std::uint64_t index_ = 0;  // of it
  double began_ = 0;         // by the communicator's clock
  double inside_ = 0;        // seconds of this step in the exchange
  bool replaced_ = false;    // some of it went to what stands in for the candidate
  std::string stands_in_;
};

std::string milliseconds(double seconds);

}  // namespace thinwire::planner
