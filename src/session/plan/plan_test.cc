#include "session/plan/plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "thinwire/session.h"

namespace thinwire::plan_test {
namespace {

/// Two buckets, the second with a vector behind its matrix. Backward covers a part of the first one's way.
PlanRequest small_model() {
  PlanRequest request{.buckets = {{{"b", 10'000, 100}}, {{"a", 22'500, 150}, {"v", 300, 300}}},
                      .compute = {.ready = {0.0002, 0.0004}, .backward_end = 0.0004, .rest = 0.0001},
                      .specs = candidates_of_auto(),
                      .cores = 1e6,
                      .lanes = 1,
                      .sockets = false};
  request.codecs.assign(request.specs.size(), {.measured = false});
  return request;
}

constexpr VirtualLink kGbit{.bytes_per_second = 1e9 / 8, .latency_seconds = 50e-6};

TEST(Plan, TheCandidatesAreThoseOfAuto) {
  EXPECT_EQ(candidates_of_auto(),
            (std::vector<std::string>{"dense", "half:format=bf16:feedback=on", "power_sgd:rank=32:bits=8"}))
      << "without their guard";
  for (const std::string& spec : candidates_of_auto(true))
    EXPECT_TRUE(builtin_registry().make(spec).lossless) << spec;
}

/// What the model says against what the virtual network does, from a few ranks to more than rounds are
/// counted on.
TEST(Plan, APredictedStepIsTheSimulatedOne) {
  PlanRequest request = small_model();
  request.specs = {"dense",  "half",      "power_sgd:rank=32:bits=8", "power_sgd:rank=4", "casq",
                   "marsit", "ef_signsgd"};
  request.codecs.assign(request.specs.size(), {.measured = false, .elements_per_second = 3e8});
  request.codecs[0].elements_per_second = 0;
  StepPlanner planner(request);
  const VirtualLink fast{.bytes_per_second = 25e9 / 8, .latency_seconds = 20e-6};
  const std::vector<std::pair<int, VirtualLink>> places = {{2, kGbit}, {5, fast}, {24, kGbit}, {24, fast}};
  for (const auto& [workers, link] : places) {
    const Plan plan = planner.plan(workers, link);
    for (std::size_t i = 0; i < plan.rows.size(); ++i) {
      EXPECT_NEAR(plan.rows[i].cost.step / planner.simulate(i, workers, link), 1, 0.03)
          << plan.rows[i].spec << ", " << workers << " workers at " << link.bytes_per_second * 8e-9
          << " Gbit/s";
    }
  }
}

/// By the virtual network: no other candidate is more than 2 % faster than the one that was chosen.
void expect_the_fastest(StepPlanner& planner, int workers, double gbit) {
  const VirtualLink link{.bytes_per_second = gbit * 1e9 / 8, .latency_seconds = 20e-6};
  const Plan plan = planner.plan(workers, link);
  std::vector<double> simulated;
  for (std::size_t i = 0; i < plan.rows.size(); ++i) simulated.push_back(planner.simulate(i, workers, link));
  EXPECT_LE(simulated[plan.choice], 1.02 * *std::min_element(simulated.begin(), simulated.end()))
      << plan.rows[plan.choice].spec << ", " << workers << " workers, " << gbit << " Gbit/s";
}

TEST(Plan, TheChoiceIsTheFastestWithinTheBound) {
  StepPlanner little(small_model());
  expect_the_fastest(little, 16, 1);
  expect_the_fastest(little, 16, 100);
  expect_the_fastest(little, 128, 25);
  PlanRequest request = small_model();
  for (double& ready : request.compute.ready) ready *= 20;  // enough to compute to hide some of it
  request.compute.backward_end *= 20;
  StepPlanner much(request);
  for (const double gbit : {0.1, 1.0, 25.0}) expect_the_fastest(much, 16, gbit);
}

TEST(Plan, BytesAreThoseThatASessionSends) {
  PlanRequest request = small_model();
  request.buckets.pop_back();
  request.compute.ready.pop_back();
  StepPlanner planner(request);
  const Plan plan = planner.plan(4, kGbit);
  for (const PlanRow& row : plan.rows) {
    double sent = 0;
    double messages = 0;
    run_virtual(4, kGbit, [&](VirtualCommunicator& communicator) {
      Session session(row.spec, communicator);
      session.add_bucket(request.buckets[0]);
      for (int step = 0; step < 3; ++step) {
        std::vector<float> gradient(10'000, static_cast<float>(communicator.rank() + 1));
        const Traffic& wire = session.synchronize(0, gradient).wire;
        const auto now = static_cast<double>(wire.sent_bytes);
        sent = step == 0 ? now : std::max(sent, now);
        messages = static_cast<double>(wire.sent_messages);
        session.next_step();
      }
    });
    EXPECT_NEAR(static_cast<double>(row.payload_bytes) + row.header_bytes, sent, 0.001 * sent + 200)
        << row.spec;
    EXPECT_EQ(row.messages, messages) << row.spec;
  }
}

TEST(Plan, SaysWhereCompressionCannotHelp) {
  PlanRequest request = small_model();
  const VirtualLink fast{.bytes_per_second = 1e12, .latency_seconds = 0};
  const Plan off = StepPlanner(request).plan(4, fast);
  EXPECT_EQ(off.choice, 0u);
  EXPECT_NE(off.reason.find("compression cannot help you here: 0 % of a step"), std::string::npos)
      << off.reason;
  EXPECT_NE(StepPlanner(request).plan(1, kGbit).reason.find("one worker"), std::string::npos);
  request.codecs.assign(request.specs.size(), {.measured = false, .elements_per_second = 1e6});
  request.codecs[0].elements_per_second = 0;
  const Plan slow = StepPlanner(request).plan(4, kGbit);
  EXPECT_EQ(slow.choice, 0u);
  EXPECT_NE(slow.reason.find("every other candidate costs more"), std::string::npos) << slow.reason;
  request.codecs.clear();
  for (const auto& [specs, says] : {std::pair<std::vector<std::string>, std::string>{
                                        {"casq", "qsgd"}, "no candidate after it is much faster: "},
                                    {{"zen"}, "zen is the only candidate: "}}) {
    request.specs = specs;
    const std::string lossy = StepPlanner(request).plan(4, fast).reason;
    EXPECT_EQ(lossy.find("compression"), std::string::npos) << lossy;
    EXPECT_EQ(lossy.find(says), 0u) << lossy;
  }
  request.specs = {"dense", "casq"};
  request.ranks_per_host = 4;
  EXPECT_EQ(StepPlanner(request).plan(4, kGbit).reason.find("all 4 workers share a host: nothing crosses"),
            0u);
}

TEST(Plan, SaysWhatIsGained) {
  const Plan plan = StepPlanner(small_model()).plan(4, kGbit);
  EXPECT_EQ(plan.rows[plan.choice].spec, "power_sgd:rank=32:bits=8");
  EXPECT_NE(plan.reason.find(" % less time than with dense"), std::string::npos) << plan.reason;
}

/// A bucket of which computing is timed on a part is charged for all of it; every candidate computes
/// something.
TEST(Plan, ComputingIsTimedOnThisMachine) {
  PlanRequest request = small_model();
  request.buckets = {{{"a", 4'000'000, 2000}}, {{"b", 1'000'000, 1000}}};
  request.codecs.clear();
  StepPlanner planner(request);
  const Plan plan = planner.plan(2, kGbit);
  for (const PlanRow& row : plan.rows) {
    EXPECT_GT(row.codec_seconds, 1e-5) << row.spec;
    EXPECT_LT(row.codec_seconds, 60) << row.spec;
  }
  EXPECT_GT(plan.rows.back().codec_seconds, plan.rows.front().codec_seconds);
}

TEST(Plan, RanksOfAHostShareItsLinkAndCores) {
  PlanRequest request = small_model();
  const Plan apart = StepPlanner(request).plan(8, kGbit);
  request.ranks_per_host = 4;
  const Plan together = StepPlanner(request).plan(8, kGbit);
  EXPECT_NEAR(together.rows[0].cost.step, apart.rows[0].cost.step, 1e-12) << "a ring leaves a host once";
  EXPECT_GT(together.rows[1].cost.wire, apart.rows[1].cost.wire) << "owners are on all hosts";
  const Plan alone = StepPlanner(request).plan(4, kGbit);
  EXPECT_EQ(alone.rows[0].cost.wire, 0) << "one host";
  EXPECT_EQ(alone.rows[0].cost.wait, 0) << "no latency of a link";
  EXPECT_EQ(alone.choice, 0u) << alone.reason;
  EXPECT_THROW(StepPlanner(request).plan(6, kGbit), std::invalid_argument);
}

/// Hosts of four ranks, of which each sends as a rank alone would.
TEST(Plan, RanksOfAHostThatAddUpFirstSendAsOne) {
  PlanRequest request = small_model();
  request.buckets = {{{"a", 1'000'000, 1000}}, {{"b", 1'000'000, 1000}}};
  const Plan hosts = StepPlanner(request).plan(2, kGbit);
  request.ranks_per_host = 4;
  const Plan apart = StepPlanner(request).plan(8, kGbit);
  request.reduce_in_host = true;
  StepPlanner planner(request);
  const Plan together = planner.plan(8, kGbit);
  for (std::size_t i = 0; i < together.rows.size(); ++i) {
    const PlanRow& row = together.rows[i];
    EXPECT_EQ(row.rounds, hosts.rows[i].rounds) << row.spec;
    EXPECT_LT(row.cost.wire, apart.rows[i].cost.wire) << row.spec;
    if (i < 2) {  // of each of four pieces the low ranks are larger than a fourth of the whole one's
      EXPECT_NEAR(row.cost.wire / hosts.rows[i].cost.wire, 1, 0.01) << row.spec;
    }
    EXPECT_EQ(row.host_bytes, 2 * 4 * 2'000'000 * 0.75) << row.spec;
    EXPECT_EQ(apart.rows[i].host_bytes, 0);
  }
  EXPECT_NE(plan_table(request, together, {}).find("hosts of 4 ranks, which add up first"),
            std::string::npos);
  EXPECT_THROW(planner.plan(4, kGbit), std::invalid_argument) << "one host";
  EXPECT_THROW(planner.plan(6, kGbit), std::invalid_argument);
}

TEST(Plan, BytesOfHostsAreThoseThatSessionsSend) {
  PlanRequest request = small_model();
  request.buckets = {{{"a", 60'000, 200}, {"v", 300, 300}}};
  request.compute.ready.pop_back();
  request.ranks_per_host = 2;
  request.reduce_in_host = true;
  for (const PlanRow& row : StepPlanner(request).plan(4, kGbit).rows) {
    double most = 0;
    double in_hosts = 0;
    run_virtual(4, kGbit, [&](VirtualCommunicator& communicator) {
      Session session(row.spec, communicator, {.ranks_per_host = 2});
      session.add_bucket(request.buckets[0]);
      std::vector<float> gradient(60'300, static_cast<float>(communicator.rank() + 1));
      const StepReport& report = session.synchronize(0, gradient);
      most = std::max(most, static_cast<double>(report.wire.sent_bytes));
      in_hosts += static_cast<double>(report.host_bytes_sent) / 4;
    });
    EXPECT_NEAR(static_cast<double>(row.payload_bytes) + row.header_bytes, most, 0.001 * most + 200)
        << row.spec;
    EXPECT_NEAR(row.host_bytes, in_hosts, 200) << row.spec;
  }
}

/// Over a link of much latency each of W - 1 long messages waits for the one before it. The virtual network
/// knows no turns, so nothing is simulated here.
TEST(Plan, LongMessagesTakeTurns) {
  PlanRequest request = small_model();
  request.specs = {"dense", "half"};
  request.codecs.assign(2, {.measured = false});
  request.buckets[0] = {{"b", 4'000'000, 2000}};
  StepPlanner planner(request);
  const auto rounds = [&](int workers, double gbit) {
    const Plan plan = planner.plan(workers, {.bytes_per_second = gbit * 1e9 / 8, .latency_seconds = 10e-3});
    return std::pair(plan.rows[0].rounds, plan.rows[1].rounds);
  };
  EXPECT_EQ(rounds(4, 0.1), std::pair(2 * 3 + 1.0, 2 + 1 + 2 * (4 - 2.0)));
  EXPECT_EQ(rounds(4, 100), std::pair(2 * 3 + 1.0, 2 + 1.0)) << "the queue holds them";
  EXPECT_EQ(rounds(2, 0.1).second, 2 + 1.0) << "two ranks have no turns";
  EXPECT_EQ(rounds(32, 0.1).second, 2 + 2 + 2 * (32 - 2.0));
  // By core/turns.h long are messages of 20 ms over 3 peers, here of N / 2 bytes.
  request.buckets[0] = {{"b", 1'600'000, 1000}};
  EXPECT_EQ(StepPlanner(request).plan(4, kGbit).rows[1].rounds, 2 + 1);
  request.buckets[0] = {{"b", 1'700'000, 1000}};
  EXPECT_EQ(StepPlanner(request).plan(4, kGbit).rows[1].rounds, 2 + 1 + 2 * (4 - 2));
  request.buckets[0] = {{"b", 4'000'000, 2000}};
  request.turns = false;
  const VirtualLink far{.bytes_per_second = 1e8 / 8, .latency_seconds = 10e-3};
  StepPlanner without(request);
  const Plan plan = without.plan(4, far);
  EXPECT_EQ(plan.rows[1].rounds, 2 + 1);
  EXPECT_NEAR(plan.rows[1].cost.step / without.simulate(1, 4, far), 1, 0.03) << "which has none";
  request.buckets[0] = {{"b", 40'000, 200}};
  const Plan little = StepPlanner(request).plan(4, {.bytes_per_second = 1e5, .latency_seconds = 10e-3});
  EXPECT_EQ(little.rows[1].rounds, 2 + 1) << "below 32 KiB nothing is long";
}

/// What separates candidates there is noise and a few latencies.
TEST(Plan, TinyModelsStayDense) {
  for (const std::size_t elements : {1, 100, 1000}) {
    PlanRequest request{.buckets = {{{"a", elements, 1}}},
                        .compute = {.ready = {0}},
                        .specs = candidates_of_auto(),
                        .ranks_per_host = 1};
    StepPlanner planner(request);
    for (const double gbit : {1, 10, 100}) {
      const Plan plan = planner.plan(4, {.bytes_per_second = gbit * 1e9 / 8, .latency_seconds = 50e-6});
      EXPECT_EQ(plan.choice, 0u) << elements << " elements, " << gbit << " Gbit/s: " << plan.reason;
    }
  }
}

/// Rates that are given are no measurement, and leave no doubt.
TEST(Plan, WhatTimingCannotTellDoesNotDecide) {
  PlanRequest request = small_model();
  request.buckets = {{{"a", 1000, 1}}};
  request.compute = {.ready = {0}};
  request.specs = {"dense", "half"};
  request.codecs.assign(2, {.measured = false});
  const VirtualLink link{.bytes_per_second = 1e9, .latency_seconds = 50e-6};
  const Plan exact = StepPlanner(request).plan(4, link);
  EXPECT_EQ(exact.choice, 1u) << exact.reason;
  EXPECT_EQ(exact.rows[1].doubt_seconds, 0);
  request.codecs.assign(2, {});
  const Plan measured = StepPlanner(request).plan(4, link);
  EXPECT_EQ(measured.choice, 0u);
  EXPECT_GE(measured.rows[1].doubt_seconds, 0.5e-3);
  if (measured.fastest != 0) {
    EXPECT_NE(measured.reason.find("is what timing cannot tell"), std::string::npos) << measured.reason;
  }
  const VirtualLink far{.bytes_per_second = 1e9, .latency_seconds = 20e-3};
  EXPECT_EQ(StepPlanner(request).plan(4, far).choice, 1u) << "four latencies are no noise";
}

/// What timing cannot tell of one candidate must not let it in before a milder one that is faster.
TEST(Plan, AChoiceIsNotSlowerThanAMilderCandidate) {
  const auto row = [](double step, double doubt) {
    PlanRow result;
    result.cost.step = step;
    result.doubt_seconds = doubt;
    return result;
  };
  Plan plan{.workers = 4, .rows = {row(22.5, 0.5), row(23.5, 3), row(20.5, 0.6)}};
  choose(plan, 0.02);
  EXPECT_EQ(plan.choice, 2u);
  plan.rows[0].doubt_seconds = 2;
  choose(plan, 0.02);
  EXPECT_EQ(plan.choice, 0u);
  plan.rows[0] = row(25, 0.5);
  choose(plan, 0.02);
  EXPECT_EQ(plan.choice, 1u);
  EXPECT_EQ(plan.fastest, 2u);
}

TEST(Plan, RefusesWhatCannotBePlanned) {
  const auto refused = [](auto change) {
    PlanRequest request = small_model();
    change(request);
    request.codecs.assign(request.specs.size(), {.measured = false});
    EXPECT_THROW(StepPlanner planner(request), std::invalid_argument);
  };
  refused([](PlanRequest& request) { request.specs = {"dense", "auto"}; });
  refused([](PlanRequest& request) { request.specs = {"rows=zen,dense=half"}; });
  refused([](PlanRequest& request) { request.specs = {"nonsense"}; });
  refused([](PlanRequest& request) { request.specs.clear(); });
  refused([](PlanRequest& request) { request.buckets.clear(); });
  refused([](PlanRequest& request) { request.density = 0; });
  refused([](PlanRequest& request) { request.within = -1; });
  refused([](PlanRequest& request) { request.compute.ready.pop_back(); });
  refused([](PlanRequest& request) { request.ranks_per_host = 0; });
  refused([](PlanRequest& request) { request.reduce_in_host = true; });
  refused([](PlanRequest& request) {
    request.ranks_per_host = 2;
    request.reduce_in_host = true;
    request.specs = {"clip+dense"};
  });
  EXPECT_THROW(StepPlanner(small_model()).plan(0, kGbit), std::invalid_argument);
}

TEST(PlanText, TheChoiceIsMarkedOnEveryLink) {
  StepPlanner planner(small_model());
  const Plan slow = planner.plan(4, kGbit);
  const Plan fast = planner.plan(4, {.bytes_per_second = 1e12, .latency_seconds = 0});
  const std::string table = plan_table(planner.request(), slow, {{"fast", fast}});
  EXPECT_NE(table.find("4 workers, 1 Gbit/s and 50 us; 32800 elements in 2 buckets; a step computes 0.50 ms"),
            std::string::npos)
      << table;
  EXPECT_NE(table.find("choice (*): power_sgd:rank=32:bits=8: "), std::string::npos) << table;
  EXPECT_EQ(std::count(table.begin(), table.end(), '*'), 3);
  const std::string json = plan_json(planner.request(), slow, {{"fast", fast}});
  EXPECT_NE(json.find("\"seconds_step_at\": {\"fast\": "), std::string::npos) << json;
  EXPECT_EQ(std::count(json.begin(), json.end(), '{'), std::count(json.begin(), json.end(), '}'));
}

}  // namespace
}  // namespace thinwire::plan_test
