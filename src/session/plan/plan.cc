#include "session/plan/plan.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <map>
#include <stdexcept>
#include <thread>
#include <utility>

#include "core/turns.h"
#include "thinwire/session.h"

namespace thinwire {
namespace {

/// Ranks that compute at the same time while codecs are timed. Each takes up to 200 MB.
constexpr int kMostAtOnce = 16;
/// Rounds are counted on no more than so many ranks.
constexpr int kMostCountedRanks = 16;
/// Formulas that change from step to step do so with a period of at most so many.
constexpr std::uint64_t kFormulaSteps = 100;
/// Behind what warms up.
constexpr std::uint64_t kFormulaBegin = 1'000'000;
/// What is timed says nothing about less of a step: when a thread that sleeps is woken, and how far ranks are
/// apart, makes real steps differ by some tenths of a millisecond, and the threads of the virtual network
/// cost a candidate's codec as much.
constexpr double kLeastDoubtSeconds = 0.5e-3;

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

/// Rounds that turns add: where messages are long by the rule of core/turns.h, over a link of that rate.
double turn_rounds(const Exchanges& exchanges, double payload_bytes, int workers, double bytes_per_second) {
  const double messages = exchanges.messages - exchanges.compared;
  if (workers <= 2 || messages <= 0) return 0;
  const double message = payload_bytes / messages;
  const bool is_long = message >= static_cast<double>(Turns::kShortBytes) &&
                       message * (workers - 1) >= Turns::kQueue.count() * bytes_per_second;
  return is_long ? exchanges.turns : 0;
}

std::string milliseconds(double seconds) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.2g ms", 1e3 * seconds);
  return text.data();
}

/// How far timing can be wrong about which one of both is faster.
double doubt_between(const PlanRow& one, const PlanRow& other) {
  return one.doubt_seconds + other.doubt_seconds;
}

/// What the fastest candidate would save beside the choice; `of` follows the amount.
std::string what_is_left(const Plan& plan, double within, const std::string& of) {
  const PlanRow& fastest = plan.rows[plan.fastest];
  const PlanRow& choice = plan.rows[plan.choice];
  const std::string who = fastest.spec + ", the fastest, would save ";
  if (choice.cost.step <= (1 + within) * fastest.cost.step) return who + "less than " + percent(within) + of;
  return who + milliseconds(choice.cost.step - fastest.cost.step) + of + ", and " +
         milliseconds(doubt_between(choice, fastest)) + " is what timing cannot tell";
}

std::string reason_of(const Plan& plan, double within, bool one_host) {
  const PlanRow& dense = plan.rows.front();
  const PlanRow& choice = plan.rows[plan.choice];
  if (plan.workers == 1) return "one worker: nothing is sent, so compression cannot help you here";
  if (one_host) {
    return "all " + std::to_string(plan.workers) +
           " workers share a host: nothing crosses the link, so compression cannot help you here";
  }
  if (plan.choice != 0) {
    std::string text = "a step takes " + percent(1 - choice.cost.step / dense.cost.step) +
                       " less time than with " + dense.spec;
    if (plan.choice != plan.fastest) text += ", and " + what_is_left(plan, within, " more");
    return text;
  }
  const std::string waited = percent(dense.cost.exposed() / dense.cost.step) + " of a step with " +
                             dense.spec + " is synchronization that is waited for";
  if (plan.rows.size() == 1) return dense.spec + " is the only candidate: " + waited;
  // Beside any other one than dense the first says nothing about compression.
  const std::string cannot =
      dense.spec == "dense" ? "compression cannot help you here: " : "no candidate after it is much faster: ";
  if (dense.cost.exposed() <= within * dense.cost.step) return cannot + waited;
  if (plan.fastest == 0) return cannot + waited + ", and every other candidate costs more";
  return cannot + what_is_left(plan, within, " of a step");
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

void StepPlanner::check() const {
  if (request_.buckets.empty() || request_.specs.empty())
    throw std::invalid_argument("a plan wants a bucket and a candidate at least");
  if (request_.codecs.size() != request_.specs.size() ||
      request_.compute.ready.size() != request_.buckets.size())
    throw std::invalid_argument("a plan wants a codec for each candidate and a time for each bucket");
  if (!(request_.density > 0 && request_.density <= 1))
    throw std::invalid_argument("density = " + std::to_string(request_.density) +
                                ": above 0 and at most 1 is needed");
  if (!(request_.within >= 0 && request_.within <= 1))
    throw std::invalid_argument("within = " + std::to_string(request_.within) + ": 0 to 1 is needed");
  if (request_.ranks_per_host < 1) throw std::invalid_argument("ranks on a host: at least 1 is needed");
  if (request_.reduce_in_host && request_.ranks_per_host == 1)
    throw std::invalid_argument("--reduce-in-host: say by --ranks-per-host how many a host has, 2 or more");
}

StepPlanner::StepPlanner(PlanRequest request) : request_(std::move(request)) {
  if (request_.codecs.empty()) request_.codecs.resize(request_.specs.size());
  check();
  for (const std::string& spec : request_.specs) {
    const SpecPair pair = parse_spec_pair(spec);
    if (pair.rows != pair.dense)
      throw std::invalid_argument("spec '" + spec + "': dense buckets alone are planned, so name one system");
    if (parse_spec(pair.dense).back().name == "auto")
      throw std::invalid_argument("spec 'auto': it is what chooses; name what it shall choose among");
    candidates_.push_back({.pipeline = builtin_registry().make(pair.dense)});
    if (!request_.reduce_in_host) continue;
    const int ranks = request_.ranks_per_host;
    run_virtual(ranks, {}, [&](VirtualCommunicator& communicator) {
      const Session refuses(spec, communicator, {.ranks_per_host = ranks});  // what sees no parts
    });
  }
  for (const BucketLayout& bucket : request_.buckets) {
    if (request_.reduce_in_host) parts_.push_back(parts_of_host(bucket, request_.ranks_per_host));
  }
  if (request_.sockets) sockets_ = measure_socket_cost();
  for (std::size_t spec = 0; spec < candidates_.size(); ++spec) measure_codecs(spec);
}

void StepPlanner::measure_codecs(std::size_t spec) {
  const PlanCodec& codec = request_.codecs[spec];
  const int cores = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  const CodecRun run{.density = request_.density,
                     .at_once = std::min({request_.ranks_per_host, cores, kMostAtOnce}),
                     .ranks_per_host = request_.reduce_in_host ? request_.ranks_per_host : 1};
  std::map<std::vector<std::pair<std::size_t, std::size_t>>, CodecTime> known;  // by shapes
  for (const BucketLayout& bucket : request_.buckets) {
    if (!codec.measured) {
      const double rate = codec.elements_per_second;
      const auto elements = static_cast<double>(elements_of(bucket));
      candidates_[spec].codec.push_back({.seconds = rate > 0 ? elements / rate : 0});
      continue;
    }
    std::vector<std::pair<std::size_t, std::size_t>> shapes;
    for (const Parameter& parameter : bucket) shapes.emplace_back(parameter.elements, parameter.rows);
    auto [found, is_new] = known.try_emplace(std::move(shapes));
    if (is_new) found->second = time_codec(request_.specs[spec], bucket, run);
    candidates_[spec].codec.push_back(found->second);
  }
}

Exchanges StepPlanner::counted(std::size_t spec, const BucketLayout& small, int workers) {
  Candidate& candidate = candidates_[spec];
  for (const Known& one : candidate.known) {
    if (one.workers == workers && one.small == small) return one.exchanges;
  }
  const Exchanges exchanges = count_exchanges(request_.specs[spec], small, request_.density, workers);
  candidate.known.push_back({workers, small, exchanges});
  return exchanges;
}

Exchanges StepPlanner::exchanges_of(std::size_t spec, const BucketLayout& bucket, int workers) {
  if (workers == 1) return {};
  const BucketLayout small = stand_in(bucket);
  if (workers <= kMostCountedRanks) return counted(spec, small, workers);
  return extrapolated({counted(spec, small, 4), counted(spec, small, 8), counted(spec, small, 16)}, workers);
}

/// By the formula, of the rank that sends more.
double StepPlanner::payload_of(std::size_t spec, const BucketLayout& bucket, int workers) const {
  const Pipeline& pipeline = candidates_[spec].pipeline;
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
                    .feedback = pipeline.feedback,
                    .parameter_ends = ends,
                    .parameter_rows = rows,
                    .parameter_names = names};
  std::array<double, 2> sent{};  // by the first and the last rank: parts differ by an element at most
  for (std::uint64_t step = 0; workers > 1 && step < kFormulaSteps; ++step) {
    workload.step = kFormulaBegin + step;
    for (std::size_t end = 0; end < sent.size(); ++end) {
      workload.rank = end == 0 ? 0 : workers - 1;
      sent[end] += static_cast<double>(pipeline.synchronizer->payload_bytes(workload)) / kFormulaSteps;
    }
  }
  return std::max(sent[0], sent[1]);
}

/// What one of so many ranks sends to the others. bytes_per_second: its share of the link.
StepPlanner::Sent StepPlanner::sent_among(int workers, std::size_t spec, const BucketLayout& bucket,
                                          double bytes_per_second) {
  const double payload = payload_of(spec, bucket, workers);
  const Exchanges exchanges = exchanges_of(spec, bucket, workers);
  const double turns = request_.turns ? turn_rounds(exchanges, payload, workers, bytes_per_second) : 0;
  return {.payload_bytes = payload,
          .header_bytes = exchanges.header_bytes,
          .messages = exchanges.messages,
          .rounds = exchanges.rounds + turns,
          .link_bytes = payload + exchanges.header_bytes};
}

StepPlanner::Sent StepPlanner::sent_of(std::size_t spec, std::size_t bucket, int workers,
                                       const VirtualLink& link) {
  const BucketLayout& whole = request_.buckets[bucket];
  const double here = std::min(workers, request_.ranks_per_host);
  const double bytes_per_second = link.bytes_per_second / here;
  if (!request_.reduce_in_host) {
    Sent sent = sent_among(workers, spec, whole, bytes_per_second);
    sent.link_bytes *= link_share(*candidates_[spec].pipeline.synchronizer, workers, request_.ranks_per_host);
    if (sent.link_bytes == 0) sent.rounds = 0;  // one host: no latency of a link passes
    return sent;
  }
  Sent most;
  double link_bytes = 0;
  for (const BucketLayout& part : parts_[bucket]) {
    if (part.empty()) continue;
    const Sent sent = sent_among(hosts_of(workers), spec, part, bytes_per_second);
    link_bytes += sent.link_bytes;
    if (sent.payload_bytes >= most.payload_bytes) most = sent;
  }
  most.link_bytes = link_bytes;
  // To each other rank of the host: its part of the gradient, this rank's part of the mean, and of both
  // whether all is finite. Each has a checksum behind it.
  most.bytes_inside = 2 * sizeof(float) * static_cast<double>(elements_of(whole)) * (here - 1) / here;
  most.messages_inside = 8 * (here - 1);
  return most;
}

/// Workers among which the candidates work: ranks, or hosts.
int StepPlanner::hosts_of(int workers) const {
  return request_.reduce_in_host ? workers / request_.ranks_per_host : workers;
}

PlanRow StepPlanner::row_of(std::size_t spec, int workers, const VirtualLink& link) {
  PlanRow row{.spec = request_.specs[spec]};
  std::vector<BucketCost> costs;
  std::vector<BucketCost> longer;  // by what timing may be wrong
  double payload_bytes = 0;
  for (std::size_t i = 0; i < request_.buckets.size(); ++i) {
    const CodecTime codec = workers == 1 ? CodecTime() : candidates_[spec].codec[i];
    const Sent sent = sent_of(spec, i, workers, link);
    const double sockets =
        (sent.payload_bytes + sent.header_bytes + sent.bytes_inside) * sockets_.seconds_per_byte +
        (sent.messages + sent.messages_inside) * sockets_.seconds_per_message;
    costs.push_back(
        {.codec_seconds = codec.seconds + sockets, .link_bytes = sent.link_bytes, .rounds = sent.rounds});
    longer.push_back(costs.back());
    longer.back().codec_seconds += codec.spread / 2;
    payload_bytes += sent.payload_bytes;
    row.header_bytes += sent.header_bytes;
    row.messages += sent.messages;
    row.codec_seconds += codec.seconds;
    row.socket_seconds += sockets;
    row.rounds = std::max(row.rounds, sent.rounds);
    row.host_bytes += sent.bytes_inside;
  }
  row.payload_bytes = static_cast<std::uint64_t>(std::llround(payload_bytes));
  const StepResources resources{.bytes_per_second = link.bytes_per_second,
                                .latency_seconds = link.latency_seconds,
                                .cores = request_.cores / request_.ranks_per_host,
                                .lanes = request_.lanes};
  row.cost = step_cost(costs, request_.compute, resources);
  if (request_.codecs[spec].measured && workers > 1) {
    row.doubt_seconds =
        std::max(kLeastDoubtSeconds, step_cost(longer, request_.compute, resources).step - row.cost.step);
  }
  return row;
}

void choose(Plan& plan, double within) {
  const auto step_of = [](const PlanRow& row) { return row.cost.step; };
  const auto least = std::ranges::min_element(plan.rows, {}, step_of);
  plan.fastest = static_cast<std::size_t>(least - plan.rows.begin());
  const double bound = (1 + within) * least->cost.step;
  // Doubts differ: one that is let through must not be slower than a milder one that is not.
  double shortest = plan.rows.front().cost.step;
  const auto mildest = std::ranges::find_if(plan.rows, [&](const PlanRow& row) {
    shortest = std::min(shortest, row.cost.step);
    return row.cost.step == shortest &&
           row.cost.step <= std::max(bound, least->cost.step + doubt_between(row, *least));
  });
  plan.choice = static_cast<std::size_t>(mildest - plan.rows.begin());
}

Plan StepPlanner::plan(int workers, const VirtualLink& link) {
  const int here = request_.ranks_per_host;
  if (workers < 1)
    throw std::invalid_argument("workers = " + std::to_string(workers) + ": at least 1 is needed");
  if (workers > here && workers % here != 0) {
    throw std::invalid_argument(std::to_string(workers) + " workers do not fill hosts of " +
                                std::to_string(here) + " ranks each: give a multiple");
  }
  if (request_.reduce_in_host && workers <= here) {
    throw std::invalid_argument(std::to_string(workers) + " workers are one host of " + std::to_string(here) +
                                " ranks, which sends nothing to others: leave out --reduce-in-host");
  }
  Plan plan{.workers = workers, .link = link};
  for (std::size_t spec = 0; spec < candidates_.size(); ++spec) {
    candidates_[spec].pipeline.synchronizer->require_world(hosts_of(workers));
    plan.rows.push_back(row_of(spec, workers, link));
  }
  choose(plan, request_.within);
  plan.reason = reason_of(plan, request_.within, workers <= here && !request_.reduce_in_host);
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
  const int warm_up = workers > kMany ? 1 : kPlanWarmUpSteps;
  const StepCompute& compute = request_.compute;
  const std::vector<CodecTime>& codec = candidates_[spec].codec;
  double result = 0;
  run_virtual(workers, link, [&](VirtualCommunicator& communicator) {
    Session session(request_.specs[spec], communicator, {.undoes_steps = false});
    std::vector<DrawnGradient> drawings;
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
        communicator.advance(workers == 1 ? 0 : codec[i].seconds / 2);
        session.synchronize(static_cast<BucketId>(i), gradient);
        communicator.advance(workers == 1 ? 0 : codec[i].seconds / 2);
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
