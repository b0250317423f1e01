#include "session/plan.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <stdexcept>
#include <utility>

#include "core/cpu_clock.h"
#include "planner/socket_cost.h"
#include "thinwire/session.h"

namespace thinwire {
namespace {

/// Systems agree on sizes in their first step; zen takes four to measure before it decides.
constexpr int kWarmUpSteps = 5;
/// Computing is timed with so many ranks, and on no more elements.
constexpr int kCodecRanks = 4;
constexpr std::size_t kMostCodecElements = std::size_t{1} << 21;
constexpr int kCodecSteps = 3;
/// Rounds are counted on no more than so many ranks.
constexpr int kMostCountedRanks = 16;
/// Of a matrix in which systems that look for low ranks find one.
constexpr std::size_t kMatrixSide = 256;
/// Formulas that change from step to step do so with a period of at most so many.
constexpr std::uint64_t kFormulaSteps = 100;
/// Behind what warms up.
constexpr std::uint64_t kFormulaBegin = 1'000'000;

constexpr VirtualLink kLatencyAlone{.bytes_per_second = 1e30, .latency_seconds = 1};
constexpr VirtualLink kFree{.bytes_per_second = 1e30, .latency_seconds = 0};

std::size_t elements_of(const BucketLayout& bucket) {
  std::size_t elements = 0;
  for (const Parameter& parameter : bucket) elements += parameter.elements;
  return elements;
}

bool is_matrix(const Parameter& parameter) {
  return parameter.rows != 1 && parameter.rows != parameter.elements && parameter.elements > 1;
}

/// A bucket that takes as many rounds: of a large one its kind alone counts.
BucketLayout stand_in(const BucketLayout& bucket) {
  constexpr std::size_t kElements = kMatrixSide * kMatrixSide;
  BucketLayout small = bucket;
  if (elements_of(bucket) > kElements) {
    const bool matrices = std::ranges::any_of(bucket, is_matrix);
    small = {{"", kElements, matrices ? kMatrixSide : kElements}};
  }
  for (std::size_t i = 0; i < small.size(); ++i) small[i].name = std::to_string(i);
  return small;
}

/// The first elements of the bucket, matrices with fewer rows.
BucketLayout part_of(const BucketLayout& bucket, std::size_t most) {
  BucketLayout part;
  std::size_t left = most;
  for (Parameter parameter : bucket) {
    if (left == 0) break;
    if (parameter.elements > left) {
      const std::size_t width = parameter.rows == 0 ? 1 : parameter.elements / parameter.rows;
      const std::size_t rows = std::max<std::size_t>(1, left / width);
      parameter.elements = rows * width;
      if (parameter.rows != 0) parameter.rows = rows;
    }
    left -= std::min(left, parameter.elements);
    part.push_back(std::move(parameter));
  }
  return part;
}

/// Values from -1 to 1, others for each rank, step and call; `density` of them are not zero.
class Drawing {
 public:
  Drawing(int rank, std::size_t elements, double density)
      : random_(static_cast<std::uint32_t>(rank) * 104729 + 1), values_(elements), density_(density) {}

  Span<float> draw() {
    for (float& value : values_) {
      const double chance = static_cast<double>(next()) * 0x1p-32;
      value = chance < density_ ? static_cast<float>(static_cast<std::int32_t>(next())) * 0x1p-31f : 0.0f;
    }
    return values_;
  }

 private:
  std::uint32_t next() { return random_ = random_ * 1664525u + 1013904223u; }

  std::uint32_t random_;
  std::vector<float> values_;
  double density_;
};

/// Runs `steps` steps of one bucket and hands each one's interval and report to `look`, on rank 0.
template <class Look>
void run_bucket(const std::string& spec, const BucketLayout& bucket, double density, int workers, int steps,
                Look look) {
  run_virtual(workers, kLatencyAlone, [&](VirtualCommunicator& communicator) {
    Session session(spec, communicator, {.undoes_steps = false});
    session.add_bucket(bucket);
    session.start();
    Drawing drawing(communicator.rank(), elements_of(bucket), density);
    for (int step = 0; step < steps; ++step) {
      const Span<float> gradient = drawing.draw();
      communicator.align();
      session.synchronize(0, gradient);
      const VirtualInterval interval = communicator.align();
      session.next_step();
      if (communicator.rank() == 0) look(interval.seconds, session.report(0));
    }
  });
}

/// CPU time of a rank and step, with the copies to which a step is undone: threads of the session's own make
/// these, so the whole process is timed.
double codec_seconds(const std::string& spec, const BucketLayout& bucket, double density) {
  double begin = 0;
  double end = 0;
  double draws = 0;
  run_virtual(kCodecRanks, kFree, [&](VirtualCommunicator& communicator) {
    Session session(spec, communicator);
    session.add_bucket(bucket);
    session.start();
    Drawing drawing(communicator.rank(), elements_of(bucket), density);
    for (int step = 0; step < kWarmUpSteps + kCodecSteps; ++step) {
      communicator.align();
      if (step == kWarmUpSteps && communicator.rank() == 0) begin = cpu_seconds(CLOCK_PROCESS_CPUTIME_ID);
      communicator.align();
      const double before = cpu_seconds();
      const Span<float> gradient = drawing.draw();
      if (step >= kWarmUpSteps) draws += cpu_seconds() - before;
      session.synchronize(0, gradient);
      session.next_step();
    }
    communicator.align();
    if (communicator.rank() == 0) end = cpu_seconds(CLOCK_PROCESS_CPUTIME_ID);
  });
  return std::max(0.0, end - begin - draws) / (kCodecSteps * kCodecRanks);
}

/// Hops in which ranks compare what they are about to exchange (comm/exchange_call.cc).
int comparison_hops(int workers) {
  int hops = 0;
  for (std::int64_t reach = 1; reach < workers; reach *= 8) ++hops;
  return hops;
}

/// What grows from 4 over 8 to 16 ranks goes on so: by as much for each rank, or for each doubling of them.
double extrapolated(const std::array<double, 3>& values, int workers) {
  const double first = values[1] - values[0];
  const double second = values[2] - values[1];
  const double more = workers;
  if (second > 1.5 * first) return values[2] + second / 8 * (more - 16);
  return values[2] + second * std::log2(more / 16);
}

std::string percent(double share) {
  return std::to_string(std::lround(100 * share)) + " %";
}

/// The share of a host's bytes that leaves it: sums go around a ring in the order of ranks, everything else
/// to any rank alike.
double link_share(const Synchronizer& system, int workers, int ranks_per_host) {
  if (workers <= ranks_per_host) return 0;
  if (system.is_plain_sum()) return 1;
  const double here = ranks_per_host;
  return here * (workers - here) / (workers - 1);
}

std::string reason_of(const Plan& plan, double within, bool first_is_exact) {
  const PlanRow& dense = plan.rows.front();
  const PlanRow& fastest = plan.rows[plan.fastest];
  const PlanRow& choice = plan.rows[plan.choice];
  if (plan.workers == 1) return "one worker: nothing is sent, so compression cannot help you here";
  if (plan.choice != 0) {
    std::string text = "a step takes " + percent(1 - choice.cost.step / dense.cost.step) +
                       " less time than with " + dense.spec;
    if (plan.choice != plan.fastest) {
      text += ", and " + fastest.spec + ", the fastest, would save less than " + percent(within) + " more";
    }
    return text;
  }
  // Of candidates among which there is none that is exact, the first one says nothing about compression.
  const std::string cannot =
      first_is_exact ? "compression cannot help you here: " : "nothing that was asked for is faster: ";
  if (dense.cost.exposed() <= within * dense.cost.step) {
    return cannot + percent(dense.cost.exposed() / dense.cost.step) + " of a step with " + dense.spec +
           " is synchronization that is waited for";
  }
  if (plan.fastest == 0) {
    return cannot + percent(dense.cost.exposed() / dense.cost.step) + " of a step with " + dense.spec +
           " is synchronization that is waited for, and every other candidate costs more";
  }
  return cannot + fastest.spec + ", the fastest, would save less than " + percent(within) + " of a step";
}

}  // namespace

std::vector<std::string> candidates_of_auto(bool lossless) {
  const SystemInfo& info = builtin_registry().find("auto");
  SpecPart part{"auto", {}};
  if (lossless) part.options.emplace_back("lossless", "on");
  std::vector<std::string> candidates = info.members(Options(part, info.options));
  // What a guard adds to a step vanishes in its 50, and would weigh too much in the few that are simulated.
  for (std::string& spec : candidates) {
    if (spec.starts_with("guard")) spec.erase(0, spec.find('+') + 1);
  }
  return candidates;
}

StepPlanner::StepPlanner(PlanRequest request) : request_(std::move(request)) {
  if (request_.buckets.empty() || request_.specs.empty())
    throw std::invalid_argument("a plan wants a bucket and a candidate at least");
  if (request_.codecs.empty()) request_.codecs.resize(request_.specs.size());
  if (request_.codecs.size() != request_.specs.size() ||
      request_.compute.ready.size() != request_.buckets.size())
    throw std::invalid_argument("a plan wants a codec for each candidate and a time for each bucket");
  if (!(request_.density > 0 && request_.density <= 1))
    throw std::invalid_argument("density = " + std::to_string(request_.density) +
                                ": above 0 and at most 1 is needed");
  if (!(request_.within >= 0 && request_.within <= 1))
    throw std::invalid_argument("within = " + std::to_string(request_.within) + ": 0 to 1 is needed");
  if (request_.ranks_per_host < 1) throw std::invalid_argument("ranks on a host: at least 1 is needed");
  for (const std::string& spec : request_.specs) {
    const SpecPair pair = parse_spec_pair(spec);
    if (pair.rows != pair.dense)
      throw std::invalid_argument("spec '" + spec + "': dense buckets alone are planned, so name one system");
    if (parse_spec(pair.dense).back().name == "auto")
      throw std::invalid_argument("spec 'auto': it is what chooses; name what it shall choose among");
    candidates_.push_back({.pipeline = builtin_registry().make(pair.dense)});
  }
  if (request_.sockets) socket_seconds_per_byte_ = measure_socket_seconds_per_byte();
  for (std::size_t spec = 0; spec < candidates_.size(); ++spec) measure_codecs(spec);
}

void StepPlanner::measure_codecs(std::size_t spec) {
  const PlanCodec& codec = request_.codecs[spec];
  std::map<std::vector<std::pair<std::size_t, std::size_t>>, double> known;  // by shapes
  for (const BucketLayout& bucket : request_.buckets) {
    const auto elements = static_cast<double>(elements_of(bucket));
    if (!codec.measured) {
      const double rate = codec.elements_per_second;
      candidates_[spec].codec_seconds.push_back(rate > 0 ? elements / rate : 0);
      continue;
    }
    std::vector<std::pair<std::size_t, std::size_t>> shapes;
    for (const Parameter& parameter : bucket) shapes.emplace_back(parameter.elements, parameter.rows);
    auto [found, is_new] = known.try_emplace(std::move(shapes), 0);
    if (is_new) {
      const BucketLayout part = part_of(bucket, kMostCodecElements);
      found->second = codec_seconds(request_.specs[spec], part, request_.density) * elements /
                      static_cast<double>(elements_of(part));
    }
    candidates_[spec].codec_seconds.push_back(found->second);
  }
}

StepPlanner::Rounds StepPlanner::measured_rounds(std::size_t spec, const BucketLayout& bucket, int workers) {
  Candidate& candidate = candidates_[spec];
  for (const Known& one : candidate.known) {
    if (one.workers == workers && one.bucket == bucket) return one.rounds;
  }
  Rounds last;
  run_bucket(request_.specs[spec], bucket, request_.density, workers, kWarmUpSteps + 1,
             [&](double seconds, const StepReport& report) {
               last = {std::round(seconds), static_cast<double>(report.frame_header_bytes)};
             });
  candidate.known.push_back({workers, bucket, last});
  return last;
}

StepPlanner::Rounds StepPlanner::rounds_of(std::size_t spec, const BucketLayout& bucket, int workers) {
  if (workers == 1) return {};
  const BucketLayout small = stand_in(bucket);
  if (workers <= kMostCountedRanks) return measured_rounds(spec, small, workers);
  std::array<double, 3> rounds{};
  std::array<double, 3> bytes{};
  for (std::size_t i = 0; i < rounds.size(); ++i) {
    const int few = 4 << i;
    const Rounds one = measured_rounds(spec, small, few);
    rounds[i] = one.rounds - comparison_hops(few);
    bytes[i] = one.header_bytes;
  }
  return {extrapolated(rounds, workers) + comparison_hops(workers), extrapolated(bytes, workers)};
}

PlanRow StepPlanner::row_of(std::size_t spec, int workers, const VirtualLink& link) {
  const Candidate& candidate = candidates_[spec];
  const Synchronizer& system = *candidate.pipeline.synchronizer;
  const double share = link_share(system, workers, request_.ranks_per_host);
  PlanRow row{.spec = request_.specs[spec]};
  std::vector<BucketCost> costs;
  double payload_bytes = 0;
  for (std::size_t i = 0; i < request_.buckets.size(); ++i) {
    const BucketLayout& bucket = request_.buckets[i];
    std::vector<std::size_t> ends;
    std::vector<std::size_t> rows;
    std::vector<std::string> names;
    for (const Parameter& parameter : bucket) {
      ends.push_back((ends.empty() ? 0 : ends.back()) + parameter.elements);
      rows.push_back(parameter.rows);
      names.push_back(parameter.name);
    }
    Workload workload{.elements = ends.back(),
                      .density = request_.density,
                      .densification = (1 - std::pow(1 - request_.density, workers)) / request_.density,
                      .world_size = workers,
                      .feedback = candidate.pipeline.feedback,
                      .parameter_ends = ends,
                      .parameter_rows = rows,
                      .parameter_names = names};
    std::array<double, 2> sent{};  // by the first and the last rank: parts differ by an element at most
    for (std::uint64_t step = 0; workers > 1 && step < kFormulaSteps; ++step) {
      workload.step = kFormulaBegin + step;
      for (std::size_t end = 0; end < sent.size(); ++end) {
        workload.rank = end == 0 ? 0 : workers - 1;
        sent[end] += static_cast<double>(system.payload_bytes(workload)) / kFormulaSteps;
      }
    }
    const double bytes = std::max(sent[0], sent[1]);
    const Rounds rounds = rounds_of(spec, bucket, workers);
    const double all = bytes + rounds.header_bytes;
    const double codec = workers == 1 ? 0 : candidate.codec_seconds[i];
    costs.push_back({.codec_seconds = codec + all * socket_seconds_per_byte_,
                     .link_bytes = all * share,
                     .rounds = rounds.rounds});
    payload_bytes += bytes;
    row.header_bytes += rounds.header_bytes;
    row.codec_seconds += codec;
    row.socket_seconds += all * socket_seconds_per_byte_;
    row.rounds = std::max(row.rounds, rounds.rounds);
  }
  row.payload_bytes = static_cast<std::uint64_t>(std::llround(payload_bytes));
  row.cost = step_cost(costs, request_.compute,
                       {.bytes_per_second = link.bytes_per_second,
                        .latency_seconds = link.latency_seconds,
                        .cores = request_.cores / request_.ranks_per_host,
                        .lanes = request_.lanes});
  return row;
}

Plan StepPlanner::plan(int workers, const VirtualLink& link) {
  if (workers < 1)
    throw std::invalid_argument("workers = " + std::to_string(workers) + ": at least 1 is needed");
  if (workers > request_.ranks_per_host && workers % request_.ranks_per_host != 0) {
    throw std::invalid_argument(std::to_string(workers) + " workers do not fill hosts of " +
                                std::to_string(request_.ranks_per_host) + " ranks each: give a multiple");
  }
  Plan plan{.workers = workers, .link = link};
  std::vector<double> seconds;
  for (std::size_t spec = 0; spec < candidates_.size(); ++spec) {
    candidates_[spec].pipeline.synchronizer->require_world(workers);
    plan.rows.push_back(row_of(spec, workers, link));
    seconds.push_back(plan.rows.back().cost.step);
  }
  const auto least = std::ranges::min_element(seconds);
  plan.fastest = static_cast<std::size_t>(least - seconds.begin());
  const double bound = (1 + request_.within) * *least;
  const auto mildest = std::ranges::find_if(seconds, [&](double one) { return one <= bound; });
  plan.choice = static_cast<std::size_t>(mildest - seconds.begin());
  plan.reason = reason_of(plan, request_.within, candidates_.front().pipeline.lossless);
  return plan;
}

PlansElsewhere StepPlanner::plan_elsewhere(int workers, const VirtualLink& link) {
  PlansElsewhere plans;
  for (const int gbit : {1, 10, 25}) {
    const VirtualLink other{.bytes_per_second = gbit * 1e9 / 8, .latency_seconds = link.latency_seconds};
    plans.emplace_back(std::to_string(gbit) + " Gbit", plan(workers, other));
  }
  return plans;
}

double StepPlanner::simulate(std::size_t spec, int workers, const VirtualLink& link) const {
  // Of many ranks each step takes seconds, and what chooses by its first steps is not simulated with so many.
  constexpr int kMany = 64;
  const int warm_up = workers > kMany ? 1 : kWarmUpSteps;
  const StepCompute& compute = request_.compute;
  const std::vector<double>& codec = candidates_[spec].codec_seconds;
  double result = 0;
  run_virtual(workers, link, [&](VirtualCommunicator& communicator) {
    Session session(request_.specs[spec], communicator, {.undoes_steps = false});
    std::vector<Drawing> drawings;
    for (const BucketLayout& bucket : request_.buckets) {
      session.add_bucket(bucket);
      drawings.emplace_back(communicator.rank(), elements_of(bucket), request_.density);
    }
    session.start();
    for (int step = 0; step <= warm_up; ++step) {
      communicator.align();
      const double begin = communicator.now_seconds();
      // The clock is that of the lane: it waits for what backward has not made ready yet.
      const auto wait_until = [&](double time) {
        communicator.advance(std::max(0.0, begin + time - communicator.now_seconds()));
      };
      for (std::size_t i = 0; i < drawings.size(); ++i) {
        const Span<float> gradient = drawings[i].draw();
        wait_until(compute.ready[i]);
        communicator.advance(workers == 1 ? 0 : codec[i] / 2);
        session.synchronize(static_cast<BucketId>(i), gradient);
        communicator.advance(workers == 1 ? 0 : codec[i] / 2);
      }
      wait_until(compute.backward_end);
      const VirtualInterval interval = communicator.align();
      session.next_step();
      if (communicator.rank() == 0) result = interval.seconds + compute.rest;
    }
  });
  return result;
}

}  // namespace thinwire
