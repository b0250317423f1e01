#include "apps/simulation.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>

#include "apps/gradients/synthetic.h"

namespace thinwire::apps {
namespace {

constexpr VirtualLink kLink{.bytes_per_second = 1e9, .latency_seconds = 1e-5};

TEST(Simulation, DenseTakesTheTimeOfItsRing) {
  for (const int workers : {2, 4, 16}) {
    const SyntheticSource source({.elements = 16'000}, workers);
    const Simulation simulation = simulate("dense", source, {.workers = workers, .link = kLink});
    // Before the ring ranks compare stamps of 20 bytes, each with at most seven others in a hop.
    const double stamps = workers == 16 ? 2 * 1e-5 + 20.0 * (7 + 1) / 1e9 : 1e-5 + 20.0 * (workers - 1) / 1e9;
    const double expected = stamps + 2 * (workers - 1) * (1e-5 + 4.0 * 16'000 / workers / 1e9);
    EXPECT_NEAR(*simulation.measurement.modelled_seconds, expected, 1e-9 * expected);
    EXPECT_NEAR(simulation.formula_seconds, expected, 1e-9 * expected);
    EXPECT_EQ(simulation.stages, (workers == 16 ? 2u : 1u) + 2u * static_cast<std::size_t>(workers - 1));
    EXPECT_DOUBLE_EQ(simulation.gamma, 1);
    EXPECT_LT(*simulation.measurement.relative_error, 1e-6);
    EXPECT_LT(*simulation.measurement.conservation_error, 1e-6);
  }
}

TEST(Simulation, TimesAreWithinTwoPercentOfTheFormula) {
  for (const char* spec :
       {"dense", "half", "marsit:full_every=0", "signsgd", "ef_signsgd", "zen:scheme=push_pull",
        "zen:scheme=centralization", "sparcml", "agsparse", "omnireduce", "sparse_ps", "s2_reducer"}) {
    for (const std::uint64_t elements : {1000u, 300'000u}) {
      const SyntheticSource source({.elements = elements, .density = 0.1}, 8);
      const Simulation simulation = simulate(spec, source, {.workers = 8, .link = kLink, .steps = 2});
      EXPECT_NEAR(*simulation.measurement.modelled_seconds / simulation.formula_seconds, 1, 0.02)
          << spec << ", " << elements;
      EXPECT_TRUE(simulation.measurement.ranks_agree());
      if (simulation.measurement.conservation_error) {
        EXPECT_LT(*simulation.measurement.conservation_error, 1e-5) << spec;
      }
    }
  }
}

TEST(Simulation, WhatZenMeasuresFirstIsNotCounted) {
  for (const int workers : {2, 8}) {
    const SyntheticSource source({.elements = 20'000, .density = 0.02}, workers);
    const auto seconds = [&](const char* spec) {
      return *simulate(spec, source, {.workers = workers, .link = kLink}).measurement.modelled_seconds;
    };
    // Whichever it chose, and a time that only a settled system can have.
    const double one = seconds("zen:scheme=push_pull");
    const double other = seconds("zen:scheme=centralization");
    const double chosen = seconds("zen");
    EXPECT_TRUE(std::abs(chosen / one - 1) < 1e-9 || std::abs(chosen / other - 1) < 1e-9)
        << workers << " workers: " << chosen << " s, neither " << one << " nor " << other;
    EXPECT_GT(*simulate("zen", source, {.workers = workers, .link = kLink, .warm_up = 1})
                   .measurement.modelled_seconds,
              chosen);
  }
}

/// Dense on hosts: parts go around inside, each rank's part around the hosts, over the link that they share.
TEST(Simulation, HostsSendBytesAndTakeTimeOnBothKindsOfLinks) {
  constexpr int kHosts = 3;
  constexpr int kRanks = 4;
  constexpr int kWorkers = kHosts * kRanks;
  constexpr std::uint64_t kElements = 480'000;
  const VirtualHosts hosts{.ranks_per_host = kRanks,
                           .inside = {.bytes_per_second = 8e9, .latency_seconds = 1e-6}};
  const SyntheticSource source({.elements = kElements}, kWorkers);
  const auto run = [&](const VirtualHosts& where, const VirtualLink& link) {
    return simulate("dense", source, {.workers = kWorkers, .link = link, .hosts = where});
  };
  const Simulation flat = run({}, kLink);
  const Simulation simulation = run(hosts, kLink);
  const auto json = to_json(simulation);
  // Bytes: a rank's part is a quarter, of which a ring of three sends 2 (1 - 1/3); a host sends four such.
  const double part = 4.0 * kElements / kRanks;
  EXPECT_EQ(json["wire_bytes_formula"].get<double>(), part * 4 / 3);
  EXPECT_EQ(to_json(flat)["host_bytes_sent_max"].get<double>(), 0);
  // Inside: three other ranks' parts, then the own part to three, and 1 % for what ranks compare.
  EXPECT_GE(json["host_bytes_sent_max"].get<double>(), 6 * part);
  EXPECT_LT(json["host_bytes_sent_max"].get<double>(), 6.06 * part);
  // Times: both of these, one after the other.
  const double inside = 6 * part / 8e9;
  const double outside = kRanks * part * 4 / 3 / 1e9;
  EXPECT_NEAR(*simulation.measurement.modelled_seconds, inside + outside, 0.05 * (inside + outside));
  EXPECT_NEAR(*simulation.measurement.modelled_seconds / simulation.formula_seconds, 1, 0.05);
  // A link that is twice as fast shortens its own share alone.
  VirtualHosts faster = hosts;
  faster.inside.bytes_per_second *= 2;
  const VirtualLink fast{.bytes_per_second = 2 * kLink.bytes_per_second,
                         .latency_seconds = kLink.latency_seconds};
  const double all = *simulation.measurement.modelled_seconds;
  EXPECT_NEAR(all - *run(faster, kLink).measurement.modelled_seconds, inside / 2, 0.05 * inside);
  EXPECT_NEAR(all - *run(hosts, fast).measurement.modelled_seconds, outside / 2, 0.05 * outside);
}

TEST(Simulation, HostsComputeTheSameMeansAndKeepTheirContract) {
  const VirtualHosts hosts{.ranks_per_host = 2, .inside = {.bytes_per_second = 8e9, .latency_seconds = 1e-6}};
  for (const std::size_t width : {1u, 8u}) {
    const SyntheticSource source({.elements = 80'000, .density = 0.05, .row_width = width}, 6);
    for (const char* spec : {"dense", "zen", "half:feedback=on", "ef_signsgd", "top_k:ratio=0.1+zen"}) {
      SCOPED_TRACE(testing::Message() << spec << ", width " << width);
      const SimulationOptions options{
          .workers = 6, .link = kLink, .hosts = hosts, .warm_up = 2, .steps = 2, .errors = true};
      const Simulation simulation = simulate(spec, source, options);
      SimulationOptions without = options;
      without.hosts = {};
      const Simulation flat = simulate(spec, source, without);
      EXPECT_TRUE(simulation.measurement.ranks_agree());
      EXPECT_LT(*simulation.measurement.conservation_error, 1e-5);
      EXPECT_DOUBLE_EQ(simulation.gamma, flat.gamma);
      EXPECT_DOUBLE_EQ(simulation.measurement.density_in, flat.measurement.density_in);
      if (*flat.measurement.relative_error < 1e-6) {
        EXPECT_LT(*simulation.measurement.relative_error, 1e-6);
      }
    }
  }
}

TEST(Simulation, ACodecWorksOnARanksPart) {
  const SyntheticSource source({.elements = 80'000}, 4);
  const auto seconds = [&](const CodecModel& codec) {
    return *simulate(
                "half", source,
                {.workers = 4,
                 .link = kLink,
                 .hosts = {.ranks_per_host = 2, .inside = {.bytes_per_second = 1e10, .latency_seconds = 0}},
                 .codec = codec})
                .measurement.modelled_seconds;
  };
  EXPECT_NEAR(seconds({.elements_per_second = 1e6}), seconds({}) + 0.04, 1e-9);
}

TEST(Simulation, TwoRunsAreTheSameToTheBit) {
  const SyntheticSource source({.elements = 50'000, .density = 0.02, .zipf = 1.1, .row_width = 5}, 12);
  const auto run = [&](const char* spec) {
    const Simulation simulation = simulate(spec, source, {.workers = 12, .steps = 3, .seed = 5});
    return std::pair(std::bit_cast<std::uint64_t>(*simulation.measurement.modelled_seconds),
                     simulation.measurement.ranks[0].hash);
  };
  for (const char* spec : {"dense", "marsit:full_every=2", "ef_signsgd", "zen", "sparcml", "omnireduce"})
    EXPECT_EQ(run(spec), run(spec));
}

TEST(Simulation, EveryStepHasAnErrorOfItsOwn) {
  const SyntheticSource source({.elements = 3000}, 3);
  const auto errors_of = [&](const char* spec, int steps) {
    return simulate(spec, source,
                    {.workers = 3, .link = kLink, .warm_up = 2, .steps = steps, .seed = 5, .errors = true});
  };
  const Simulation four = errors_of("ef_signsgd:feedback=off", 4);
  ASSERT_EQ(four.relative_errors.size(), 4u);
  for (int steps = 1; steps <= 4; ++steps) {
    const Simulation fewer = errors_of("ef_signsgd:feedback=off", steps);
    // The last step's error is also computed without being asked for.
    EXPECT_DOUBLE_EQ(*fewer.measurement.relative_error,
                     four.relative_errors[static_cast<std::size_t>(steps - 1)]);
    EXPECT_DOUBLE_EQ(fewer.gamma, four.gamma);
  }
  EXPECT_NE(four.relative_errors[0], four.relative_errors[1]);
  // Looking costs no time.
  const Simulation unseen = simulate("ef_signsgd:feedback=off", source,
                                     {.workers = 3, .link = kLink, .warm_up = 2, .steps = 4, .seed = 5});
  EXPECT_EQ(unseen.measurement.modelled_seconds, four.measurement.modelled_seconds);
  for (const double error : errors_of("dense", 2).relative_errors) EXPECT_LT(error, 1e-6);
  EXPECT_TRUE(simulate("dense", source, {.workers = 3, .link = kLink}).relative_errors.empty());
}

TEST(Simulation, SignsAgreeAsOftenAsTheyDo) {
  const SyntheticSource source({.elements = 3000}, 3);
  const auto agreements = [&](const char* spec) {
    return simulate(spec, source,
                    {.workers = 3, .link = kLink, .warm_up = 0, .steps = 2, .seed = 5, .errors = true})
        .sign_agreements;
  };
  EXPECT_EQ(agreements("dense"), (std::vector<double>{1, 1}));
  // The majority of three independent normal values often has the sum's sign, and not always.
  for (const double share : agreements("signsgd")) {
    EXPECT_GT(share, 0.7);
    EXPECT_LT(share, 0.95);
  }
  // Only what is delivered can agree: one element in ten.
  for (const double share : agreements("global_top_k:ratio=0.1")) EXPECT_NEAR(share, 0.1, 1e-9);
  EXPECT_TRUE(simulate("dense", source, {.workers = 3, .link = kLink}).sign_agreements.empty());
}

TEST(Simulation, RowsComeOutAsTheyWouldDensely) {
  const SyntheticSource source({.elements = 40'000, .density = 0.01, .gamma = 2.0, .row_width = 8}, 4);
  const Simulation simulation = simulate("dense", source, {.workers = 4, .link = kLink});
  const Measurement& measurement = simulation.measurement;
  EXPECT_EQ(measurement.row_width, 8u);
  EXPECT_EQ(measurement.elements, 40'000u);
  EXPECT_DOUBLE_EQ(measurement.density_in, 0.01);
  EXPECT_NEAR(simulation.gamma, 2, 0.3);  // about 100 rows in the union
  EXPECT_NEAR(measurement.density_out, 0.01 * simulation.gamma, 1e-9);
  EXPECT_LT(*measurement.relative_error, 1e-6);
}

TEST(Simulation, CodecsCostWhatTheyAreSaidToCost) {
  const SyntheticSource source({.elements = 10'000}, 4);
  const auto seconds = [&](const CodecModel& codec, double scale) {
    VirtualLink link = kLink;
    link.scale = scale;
    return *simulate("half", source, {.workers = 4, .link = link, .codec = codec})
                .measurement.modelled_seconds;
  };
  const double free = seconds({}, 1);
  EXPECT_NEAR(seconds({.elements_per_second = 1e6}, 1), free + 0.01, 1e-12);
  EXPECT_NEAR(seconds({.elements_per_second = 1e6}, 10), seconds({}, 10) + 0.1, 1e-12);
  EXPECT_GT(seconds({.measured = true}, 1), free);
}

TEST(Simulation, JsonHasTheKeysOfTheContract) {
  const SyntheticSource source({.elements = 1000}, 2);
  const auto json = to_json(simulate("marsit", source, {.workers = 2}));
  for (const char* key : {"system",
                          "spec",
                          "engine",
                          "workers",
                          "elements",
                          "row_width",
                          "density_in",
                          "density_out",
                          "steps",
                          "wire_bytes_sent_max",
                          "wire_bytes_sent_mean",
                          "wire_bytes_received_max",
                          "wire_bytes_formula",
                          "messages_max",
                          "seconds_median",
                          "seconds_min",
                          "seconds_compress",
                          "seconds_communicate",
                          "seconds_decompress",
                          "modelled_seconds",
                          "relative_error",
                          "sign_agreements",
                          "conservation_error",
                          "ranks_agree",
                          "imbalance_push",
                          "imbalance_pull",
                          "seed",
                          "gamma",
                          "formula_seconds"}) {
    EXPECT_TRUE(json.contains(key)) << key;
  }
  EXPECT_EQ(json["engine"], "virtual");
  EXPECT_EQ(json["system"], "marsit");
  EXPECT_TRUE(json["imbalance_push"].is_null());
  EXPECT_EQ(json["wire_bytes_sent_max"].get<double>(),
            json["wire_bytes_formula"].get<double>() + json["frame_header_bytes_max"].get<double>());
}

}  // namespace
}  // namespace thinwire::apps
