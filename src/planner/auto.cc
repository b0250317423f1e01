// A system that chooses among systems by what they bring here: this model, this machine, this network.
//
//   step 0 --> settle with half --> each candidate for some steps, timed --> the mildest of the fastest
//                                    ^                                         |
//                                    '---- steps take another time, for long --'
//
// Candidates stand in the order of what they leave out; dense, the first, leaves out nothing. The choice is
// the first one whose step takes at most (1 + within) times the fastest one's. So compression stays off where
// it does not pay. Where one takes a little more than that, few steps are no proof: it and the fastest one
// have a duel, by turns, until pairs of their steps leave no doubt. A candidate that is far behind after the
// first round is dropped. dense comes last, since over a thin wire its steps are by far the longest: where
// half is far behind by what its exchange takes, dense, which sends twice as much, need not be tried at all.
// Which candidates there are is what training runs have shown to keep the loss (docs/loss.md).
//
// Where the choice leaves something out, buckets that are ready first may do without it: their exchange lies
// behind the rest of backward. So the choice is tried once more with dense for the first quarter of the
// elements, or for two or three quarters. The mildest that takes as long stays.
//
// All candidates are given the same residual. So nothing is lost where they change. The lossy one stands
// behind the stage `guard` (stages/guard.cc), which gives a bucket of which too little arrives to finer steps
// (`ecsq:step=0.1`) for a while.
//
// Times are means over ranks of each rank's own, so all ranks choose alike. A choice is part of the state,
// with the time of a step and the number of ranks that it rests on: a resumed run keeps it, and looks
// whether these are still true.
//
// Steps that take another time than when the choice was made start the trial again. A rank that alone has
// become slower does not: it spends no more time in the exchange, where all others wait for it.
//
// Where a process has several sessions for parts of one model, the first one decides for all
// (Synchronizer::follow). So what the coming step uses is known one step earlier.
//
// With `link` the choice is for another link than the one at hand (planner/link_estimate.h): what the
// machine computes is taken from the trial's steps, and what the network takes is computed.
//
// Bytes per rank: those of the candidate whose step it is. Times are counted with the headers.

#include "planner/auto.h"

#include <array>
#include <cstdio>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "planner/auto_parts.h"
#include "planner/link_text.h"

namespace thinwire {
namespace planner {

std::string milliseconds(double seconds) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.1f ms", 1e3 * seconds);
  return text.data();
}

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
  // Under DDP every lane has buckets of its own, and the share is that of each.
  return names_[plan_.base] + " (" + names_[0] + " for the buckets of the first " + std::to_string(quarters) +
         "/4 of the elements)";
}

/// At a step's first bucket. Returns the bytes that were sent to agree.
std::uint64_t Auto::begin_step(Step& step) {
  if (timed_ && step.index == index_) return 0;
  const double now = step.communicator.now_seconds();
  const bool follows_on = timed_ && step.index == index_ + 1 && !suspicion_.dense_runs();
  if (estimate_ && follows_on) estimate_->end_step(now - began_, !plan_.changed, replaced_);
  if (!std::exchange(loaded_, false)) {
    before_ = plan_;
    replaced_by_load_.reset();
  }
  suspicion_.begin_step(step.index == index_);
  alone_ = step.communicator.size() == 1;
  const bool dense = alone_ || suspicion_.dense_runs() || suspicion_.leaves_out(member_behind(plan_.coming));
  const std::size_t use = dense ? 0 : plan_.coming;
  plan_.changed = plan_.use != use;
  plan_.use = use;
  std::uint64_t sent = 0;
  if (decides(step) && !suspicion_.dense_runs()) {
    sent = go_on(step, follows_on ? std::optional<double>(now - began_) : std::nullopt,
                 inside_ + step.waited_seconds);
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
  replaced_ = false;
  began_ = step.communicator.now_seconds();
  return sent;
}

/// seconds: of the step before, if they are known, of which `inside` were the exchange's.
std::uint64_t Auto::go_on(Step& step, std::optional<double> seconds, double inside) {
  leave_out_what_failed(step);
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
    plan_.trial.begin_step(seconds, inside, replaced_);
    const std::uint64_t sent = plan_.trial.round_is_over() ? after_round(step) : 0;
    if (!plan_.chosen) plan_.coming = plan_.trial.coming();
    return sent;
  }
  if (!rules_.link.empty()) return 0;      // it does not change
  if (plan_.moved) plan_.times.count = 0;  // steps before are like no others
  if (seconds && !plan_.moved && !before_->changed) plan_.times.add(*seconds, inside);
  if (std::exchange(plan_.moved, false)) plan_.unlike = true;
  return plan_.times.count >= rules_.interval ? look(step) : 0;
}

std::vector<Change> Auto::changes() const {
  std::vector<Change> all = changes_;
  for (const Pipeline& member : members_) add_changes(all, member.synchronizer->changes());
  return all;
}

std::vector<Change> Auto::explanation() const {
  if (!begun_) return {};
  if (alone_) return {{index_, "dense: one rank sends nothing"}};
  std::vector<Change> all = changes_;
  if (changes_.empty() && !follows_) {
    all.push_back({index_, "the candidates are being tried, nothing is chosen yet"});
  } else if (!plan_.chosen && !follows_) {
    all.push_back({index_, "a trial goes on, in which this step ran " + name_of(plan_.use)});
  }
  // What another member measured last says nothing of what runs; what it did still belongs to the history.
  for (std::size_t i = 0; i < members_.size(); ++i) {
    const Synchronizer& member = *members_[i].synchronizer;
    add_changes(all, i == member_behind(plan_.use) ? member.explanation() : member.changes());
  }
  return all;
}

}  // namespace planner

namespace {

/// As reasons call them, mildest first.
std::vector<std::string> names_of(const Options& options) {
  if (options.flag("lossless")) return {"dense", "zen"};
  return {"dense", "half:format=bf16:feedback=on", "power_sgd:rank=32:bits=8"};
}

/// What is allowed where nothing else is given.
constexpr const char* kBudget = "0.5";

/// Of ecsq with a tenth of a block's root mean square as step, in the guard's unit, for two ranks that hardly
/// differ. Rounding is off by 0.3 of a step, steps are rounded to halves of octaves, and a mean is rounded
/// once more: 0.045 of the norm. The unit is at least 0.2 of it.
constexpr double kErrorOfCodes = 0.23;

/// The same of half in bf16: what rounding takes from an element is 0.0016 of it as a root mean square, and a
/// mean is rounded once more. The residual gets it back.
constexpr double kErrorOfHalf = 0.01;

/// The one that leaves something out is guarded. What the guard takes in its place leaves out less than the
/// budget allows.
std::vector<std::string> candidates(const Options& options) {
  std::vector<std::string> specs = names_of(options);
  const double budget = options.real("budget", 0, 1e6);
  if (options.flag("lossless") && options.text("budget") != kBudget) {
    throw std::invalid_argument("auto: with lossless every mean is exact, so budget=" +
                                options.text("budget") + " has no effect: leave one of them out");
  }
  if (!options.flag("lossless")) {
    if (budget < kErrorOfHalf) {
      throw std::invalid_argument("auto: budget=" + options.text("budget") +
                                  " allows less than 0.01, which rounding to 16 bits may take: with "
                                  "auto:lossless every mean is exact");
    }
    const std::string milder = budget >= kErrorOfCodes ? "ecsq/step=0.1" : "dense";
    specs.back() = "guard:noise=" + options.text("budget") + ":with=" + milder + "+" + specs.back();
  }
  return specs;
}

}  // namespace

SystemInfo auto_info() {
  SystemInfo info;
  info.name = "auto";
  info.summary =
      "measures steps with dense and with what keeps the loss; of the fastest, takes what changes least";
  info.paper = "src/planner/auto.cc";
  info.formula = "those of the system that runs in the step";
  info.feedback_default = true;
  info.state = {planner::kPlan};
  info.undoes_steps = true;
  info.turns_residual = true;
  info.options = {
      {"lossless", "off", "on: exact systems only, dense and zen"},
      {"budget", kBudget,
       "error of the mean that is allowed, in units of the noise of the mean gradient; see guard"},
      {"within", "0.02", "how much longer than the fastest a milder candidate's step may take"},
      {"settle", "2", "first steps of all that do not count; of half, or of dense with rounds=1 or lossless"},
      {"rounds", "2", "turns of each candidate"},
      {"steps", "2", "of a turn that count; one before them does not"},
      {"interval", "7", "steps from one look at the step's time to the next"},
      {"link", "here", "RATE:LATENCY, as in 1Gbit:50us: chooses once, for such a link and this computing"}};
  info.members = candidates;
  info.incomparable = [](const Options&) { return "it guards by itself"; };
  info.make = [](const Options& options, Inner inner) -> std::unique_ptr<Synchronizer> {
    planner::Auto::Rules rules;
    rules.trial.candidates = inner.members.size() + planner::kQuarters - 1;
    rules.trial.settle = static_cast<std::size_t>(options.integer("settle", 0, 1'000'000));
    rules.trial.rounds = static_cast<std::size_t>(options.integer("rounds", 1, 1000));
    rules.trial.steps = static_cast<std::size_t>(options.integer("steps", 1, Trial::kMostTimes));
    rules.within = options.real("within", 0, 1);
    rules.interval = static_cast<std::size_t>(options.integer("interval", 2, kMostInterval));
    if (options.text("link") != "here") rules.link = options.text("link");
    if (!rules.link.empty()) parse_link(rules.link);
    rules.trial.first_is_late = rules.trial.rounds > 1 && inner.members.size() > 2;
    return std::make_unique<planner::Auto>(rules, names_of(options), std::move(inner.members));
  };
  return info;
}

}  // namespace thinwire
